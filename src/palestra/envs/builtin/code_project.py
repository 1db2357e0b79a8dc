"""A small project with a bug or two: the state of ``code_repair`` and how it is drawn.

The world's file holds what an agent can do; what there is to repair stands here. The surprising choice: bugs
are judged when a task is drawn, by running the tests in the sandbox, so no list of them can go out of date.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from random import Random
from typing import NamedTuple

from palestra.envs import call
from palestra.envs.builtin import words
from palestra.envs.builtin.mutations import KINDS, mutants
from palestra.envs.builtin.tested_code import Failure, examples, failures, functions
from palestra.errors import WorldError
from palestra.types import ToolCall


class Bug(NamedTuple):
    """A function's source with a bug; some of the visible tests fail, and some of the hidden ones."""

    name: str
    source: str
    visible: list[str]
    hidden: list[str]


@dataclass
class Project:
    """A few files of one function each; ``broken`` are those with a bug, tests are given by their texts."""

    name: str
    kind: str
    broken: list[str]
    files: dict[str, list[str]]
    functions: dict[str, str]
    visible: list[str]
    hidden: list[str]
    listed: bool
    read: set[str] = field(default_factory=set)
    seen_failing: bool = False
    tested: bool = False
    mended: bool = False
    submitted: bool = False

    def fails(self, tests: list[str]) -> list[Failure]:
        """The tests that fail, in their order."""
        failed = []
        for file, name in self.functions.items():
            own = [each for each in tests if examples()[each].function == name]
            failed += failures(name, "".join(f"{line}\n" for line in self.files[file]), own)
        return sorted(failed, key=lambda failure: tests.index(failure.example.text))

    def right(self, file: str) -> list[str]:
        """The lines of a file as they should be."""
        return functions()[self.functions[file]].source.splitlines()

    def wrong(self) -> list[str]:
        """Files that are not as they should be, those first that visible tests name first."""
        if self.mended:
            return []
        failing = [failure.example.function for failure in self.fails(self.visible)]
        named = [file for name in failing for file, own in self.functions.items() if own == name]
        return [file for file in dict.fromkeys([*named, *self.files]) if self.files[file] != self.right(file)]

    def found(self) -> bool:
        """Whether every file with a bug was read."""
        return self.read >= set(self.broken)

    def checked(self) -> bool:
        """Whether the tests were run on mended code."""
        return self.mended and self.tested


def draw_project(rng: Random, difficulty: int) -> Project:
    """A project of a level, as ``CodeRepair.generate`` says."""
    kind = rng.choice(KINDS[:4] if difficulty == 1 else KINDS)
    title, *names = rng.sample(words.THINGS, 1 + difficulty)
    places = [f"{name}.py" for name in names]
    files, own = dict[str, list[str]](), dict[str, str]()
    visible, hidden = list[str](), list[str]()
    broken = places[: 1 + difficulty // 3]
    for place, (name, source, shown, kept) in zip(broken, draw_bugs(rng, kind, len(broken)), strict=True):
        files[place], own[place] = source.splitlines(), name
        visible, hidden = visible + shown, hidden + kept
    others = rng.sample(sorted(functions().keys() - own.values()), difficulty)
    for place, name in zip(places[len(broken) :], others, strict=False):
        files[place], own[place] = functions()[name].source.splitlines(), name
        texts = [each.text for each in functions()[name].examples]
        shown = rng.sample(texts, 2)
        visible, hidden = visible + shown, hidden + [each for each in texts if each not in shown]
    rng.shuffle(visible)
    own = {place: own[place] for place in rng.sample(places, len(places))}
    return Project(title, kind, broken, files, own, visible, hidden, difficulty == 1)


def draw_bug(rng: Random, kind: str, name: str) -> Iterator[Bug]:
    """A bug of a kind in a function, if it has one that can be caught."""
    function = functions()[name]
    texts = [each.text for each in function.examples]
    bugs = [each.source for each in mutants(function.source) if each.kind == kind]
    for source in rng.sample(bugs, len(bugs)):
        failing = [each.example.text for each in failures(name, source, texts)]
        if len(failing) > 1:
            shown, kept = rng.sample(failing, 2)
            rest = [each for each in rng.sample(texts, len(texts)) if each not in (shown, kept)]
            yield Bug(name, source, rng.sample([shown, *rest[:2]], 3), [kept, *rest[2:]])
            return


def draw_bugs(rng: Random, kind: str, count: int) -> list[Bug]:
    """As ``draw_bug``, in ``count`` different functions.

    Raises:
        WorldError: there are not so many that can have it.
    """
    names = rng.sample(sorted(functions()), len(functions()))
    found = list(islice((bug for name in names for bug in draw_bug(rng, kind, name)), count))
    if len(found) < count:
        raise WorldError(f"only {len(found)} functions of {len(functions())} can have a bug of kind {kind!r}")
    return found


def changes(file: str, lines: list[str], right: list[str]) -> Iterator[ToolCall]:
    """Edits that turn ``lines`` into the right ones."""
    while lines != right:
        pairs = zip(lines, right, strict=False)
        at = next((n for n, (one, other) in enumerate(pairs) if one != other), min(len(lines), len(right)))
        if len(lines) < len(right):
            yield call("insert", file=file, line=at + 1, text=right[at])
            lines.insert(at, right[at])
        else:
            text = right[at] if len(lines) == len(right) else ""
            yield call("edit", file=file, line=at + 1, text=text)
            lines[at : at + 1] = [text] if text else []
