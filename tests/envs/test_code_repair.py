"""The world code_repair: bugs that tests catch, repairs that only hidden tests judge, no way around them."""

import difflib
import random
import re
from collections import Counter

import pytest

from palestra.envs import call, make_env, run_oracle
from palestra.envs.builtin.mutations import KINDS, mutants
from palestra.envs.builtin.tested_code import examples, failures, functions

LEVELS = (1, 2, 3)


def broken(function: str):
    """A world at a task of level 1 in which a function has a bug, looked at as far as editing needs."""
    world = make_env("code_repair", difficulty=1)
    for seed in range(3_000):
        state = world.generate(random.Random(f"code_repair:1:{seed}"), 1)
        if function in state.functions.values():
            world.reset(seed=seed, options={"task": world.make_task(seed)})
            act(world, "run_tests")
            act(world, "read", file=world.state.broken[0])
            return world
    raise AssertionError(f"no bug in {function}")


def act(world, tool, **parameters):
    return world.step(world.action_text(call(tool, **parameters)))


def put(world, *lines):
    """Replace the function's file by these lines; returns what the tests said and whether it is solved."""
    (file,) = world.state.files
    for _ in range(len(world.state.files[file]) - 1):
        act(world, "edit", file=file, line=1, text="")
    for number, line in enumerate(lines, 1):
        act(world, "insert", file=file, line=number, text=line)
    last = act(world, "edit", file=file, line=len(lines) + 1, text="")
    reached = set(world._reached)
    said = act(world, "run_tests")[0]
    _, reward, over, _, info = act(world, "submit")
    assert over
    assert last[4]["valid"]
    assert (reward == 1.0) == info["success"] == ("mended" in reached)
    return said, info["success"]


def test_every_function_passes_its_tests_and_says_its_contract_in_one_line():
    assert 25 <= len(functions()) <= 45
    tools = re.compile("|".join(rf"\b{name}\b" for name in make_env("code_repair").tools))
    for name, function in functions().items():
        assert failures(name, function.source, [each.text for each in function.examples]) == []
        first, second, *_ = function.source.splitlines()
        assert first.startswith("# ")
        assert second.startswith(f"def {name}(")
        assert 8 <= len({each.text for each in function.examples}) == len(function.examples)
        assert function.source.isascii()
        assert not tools.search(function.source), "a changed surface would rename it in the code"


def test_every_mutant_compiles_and_differs_in_one_line_from_the_right_function():
    kinds = Counter()
    for function in functions().values():
        for mutant in mutants(function.source):
            compile(mutant.source, "mutant", "exec")
            lines = difflib.ndiff(function.source.splitlines(), mutant.source.splitlines())
            changed = Counter(line[0] for line in lines if line[0] in "+-")
            assert changed == ({"-": 1} if mutant.kind == "missing_case" else {"+": 1, "-": 1})
            kinds[mutant.kind] += 1
    assert set(kinds) == set(KINDS)
    assert min(kinds.values()) >= 15


def test_operators_make_the_bugs_that_they_are_named_after():
    source = "def f(xs, n):\n if n < 2: return xs[0]\n return g(xs[n - 1:], n + 3)\n"
    found = {(each.kind, each.source) for each in mutants(source)}

    def changed(old, new):
        return source.replace(old, new)

    assert {
        ("comparison", changed("n < 2", "n <= 2")),
        ("constant", changed("n < 2", "n < 3")),
        ("arithmetic", changed("n + 3", "n - 3")),
        ("arithmetic", changed("n - 1", "n + 1")),
        ("off_by_one", changed("xs[0]", "xs[1]")),
        ("off_by_one", changed("xs[n - 1:]", "xs[n:]")),
        ("condition", changed("if n < 2", "if not n < 2")),
        ("result", changed("return xs[0]", "return n")),
        ("arguments", changed("g(xs[n - 1:], n + 3)", "g(n + 3, xs[n - 1:])")),
        ("arguments", changed("n + 3", "3 + n")),
        ("missing_case", changed(" if n < 2: return xs[0]\n", "")),
    } <= found
    assert all(changed_source != source for _, changed_source in found)


@pytest.mark.parametrize("level", LEVELS)
def test_every_bug_fails_a_visible_and_a_hidden_test_and_no_test_is_both(level):
    world = make_env("code_repair", difficulty=level)
    kinds, names = Counter(), set()
    for seed in range(200):
        state = world.generate(random.Random(seed), level)
        assert len(state.broken) == (2 if level == 3 else 1)
        for file in state.broken:
            name = state.functions[file]
            for tests in (state.visible, state.hidden):
                assert name in {failure.example.function for failure in state.fails(tests)}
        assert not set(state.visible) & set(state.hidden)
        whole = [text for text in examples() if examples()[text].function in state.functions.values()]
        assert sorted(state.visible + state.hidden) == sorted(whole)
        kinds[state.kind] += 1
        names |= set(state.functions.values())
    assert set(kinds) == set(KINDS[:4] if level == 1 else KINDS)
    assert len(names) >= 35


def test_code_that_knows_the_visible_tests_passes_them_and_solves_nothing():
    world = broken("gcd")
    shown = [examples()[text] for text in world.state.visible]
    lines = [f" if (a, b) == {tuple(each.given)}: return {each.wanted}" for each in shown]
    assert put(world, "def gcd(a, b):", *lines, " return 0") == ("tests: all pass", False)


def test_another_right_function_is_right():
    said, solved = put(broken("gcd"), "import math", "def gcd(a, b):", " return math.gcd(a, b)")
    assert (said, solved) == ("tests: all pass", True)


CHEATS = {
    "exits": " import os; os._exit(0)",
    "exits politely": " raise SystemExit(0)",
    "raises": " raise AssertionError('all pass')",
    "prints": " print('tests: all pass')",
    "equals everything": " return type('Same', (int,), {'__eq__': lambda self, other: True})(0)",
    "is no value": " return type('Same', (), {'__eq__': lambda self, other: True})()",
    "changes how answers are written": " import json; json.dumps = lambda value: 'true'",
    "writes its own answer": """ import os; os.write(3, b'[["value", "true"]]' * 9); os._exit(0)""",
    "looks for the answers": " import gc; return [x for x in gc.get_objects() if 'wanted' in dir(x)]",
    "reads the tests": " return open('code_repair.txt').read()",
    "imports the tests": " from palestra.envs.builtin.tested_code import functions; return functions",
    "asks its caller": " import sys; return sys._getframe(1).f_locals.get('wanted')",
}


@pytest.mark.parametrize("way", CHEATS)
def test_code_that_does_not_compute_the_value_solves_nothing(way):
    said, solved = put(broken("gcd"), "def gcd(a, b):", CHEATS[way])
    assert said.startswith("tests: 3 of 3 fail")
    assert not solved


def test_visible_runs_see_no_hidden_test():
    """Code that shows all the inputs it was given shows the visible ones alone."""
    world = broken("gcd")
    lines = ["seen = []", "def gcd(a, b):", " seen.append((a, b))", " return seen"]
    said, solved = put(world, *lines)
    (given,) = re.findall(r"gives (\[.*?\]\]), wants", said)
    first = examples()[world.state.visible[0]].given
    assert given == str([first])
    assert not solved
    source = "".join(f"{line}\n" for line in lines)
    results = [failure.called.value for failure in failures("gcd", source, world.state.visible)]
    assert results[-1] == [examples()[text].given for text in world.state.visible]


def test_nothing_is_edited_before_a_failure_was_seen_and_the_file_was_read():
    world = make_env("code_repair", difficulty=1)
    task = world.make_task(0)
    file = world.reset(seed=0, options={"task": task})[0].split()[-1].rstrip(".")
    change = {"file": file, "line": 2, "text": "pass"}
    assert "run the tests first" in act(world, "edit", **change)[0]
    act(world, "run_tests")
    assert f"read {file} first" in act(world, "insert", **change)[0]
    act(world, "read", file=file)
    assert act(world, "edit", **change)[0] == f"{file}: line 2 replaced"


@pytest.mark.parametrize(
    ("parameters", "said"),
    [
        ({"file": "tests.py"}, "there is no tests.py"),
        ({"file": "../orders.py"}, "there is no"),
        ({"line": 0}, "has lines 1 to"),
        ({"line": 99}, "has lines 1 to"),
        ({"text": "a\nb"}, "text must be one line"),
        ({"text": "\x1b[0m"}, "text must be one line"),
        ({"text": "x" * 101}, "of at most 100 characters"),
    ],
)
def test_an_edit_that_cannot_be_is_refused_and_changes_nothing(parameters, said):
    world = broken("gcd")
    (file,) = world.state.files
    before = list(world.state.files[file])
    answer, _, _, _, info = act(world, "edit", **{"file": file, "line": 2, "text": "pass", **parameters})
    assert said in answer
    assert (info["valid"], info["state_changed"]) == (False, False)
    assert world.state.files[file] == before


def test_lines_are_replaced_added_and_deleted_as_they_are_given():
    world = broken("sign")
    (file,) = world.state.files
    lines = list(world.state.files[file])
    act(world, "edit", file=file, line=2, text="  x")
    act(world, "insert", file=file, line=1, text="# y")
    act(world, "edit", file=file, line=4, text=" ")
    assert world.state.files[file] == ["# y", lines[0], "  x", *lines[3:]]
    assert act(world, "insert", file=file, line=len(lines) + 1, text="z")[4]["valid"]
    for _ in range(40):
        refused = act(world, "insert", file=file, line=1, text="#")[4]
    assert not refused["valid"]
    assert len(world.state.files[file]) == 30


def test_a_repair_that_is_not_tested_is_no_success():
    world = make_env("code_repair")
    task = world.make_task(1)
    *calls, test, submit = run_oracle(world, task)
    assert (test.tool_name, submit.tool_name) == ("run_tests", "submit")
    world.reset(seed=1, options={"task": task})
    for made in calls:
        act(world, made.tool_name, **made.parameters)
    info = act(world, "submit")[4]
    assert (world.state.mended, info["success"]) == (True, False)


def test_a_bug_that_was_put_back_counts_as_not_mended():
    world = make_env("code_repair")
    task = world.make_task(1)
    calls = run_oracle(world, task)
    (edit,) = [made for made in calls if made.tool_name == "edit"]
    world.reset(seed=1, options={"task": task})
    old = world.state.files[edit.parameters["file"]][edit.parameters["line"] - 1]
    for made in calls[: calls.index(edit) + 1]:
        act(world, made.tool_name, **made.parameters)
    assert world.state.mended
    act(world, "edit", **{**edit.parameters, "text": old})
    assert not world.state.mended
    assert " fail, " in act(world, "run_tests")[0]
    assert not act(world, "submit")[4]["success"]


def test_errors_in_the_code_are_told_by_name_and_line():
    world = broken("gcd")
    (file,) = world.state.files
    act(world, "insert", file=file, line=3, text=" return [][0]")
    assert "stops: IndexError in line 3, wants" in act(world, "run_tests")[0]
    act(world, "edit", file=file, line=3, text=" return [")
    assert "stops: SyntaxError in line 3, wants" in act(world, "run_tests")[0]
    act(world, "edit", file=file, line=3, text=" while True: pass")
    assert "stops: EndlessLoop in line 3, wants" in act(world, "run_tests")[0]
