"""The builtin worlds: sound, varied, solvable, and small enough for a tiny model."""

from __future__ import annotations

import contextlib
import random
import subprocess
import sys
from collections import Counter

import pytest

from palestra.actions import render_call
from palestra.envs import ToolEnv, ToolError, call, check_env, make_env, play, run_oracle, state_hash
from palestra.types import ToolCall

WORLDS = ("orders", "meeting_room", "alerts", "code_repair", "research_report")
LEVELS = (1, 2, 3)
EVERY = [(name, level) for name in WORLDS for level in LEVELS]
LONGEST = {"code_repair": (240, 65)}
"""Characters and words of a reply, where it may be longer than elsewhere: it shows a function."""


def world(name: str, level: int = 2) -> ToolEnv:
    env = make_env(name, difficulty=level)
    assert isinstance(env, ToolEnv)
    return env


def texts(calls: list[ToolCall]) -> list[str]:
    return [render_call(made) for made in calls]


def closings(env: ToolEnv) -> list[dict[str, str]]:
    """Every verdict one could guess without a look: services from the alert, figures by luck."""
    verdicts = env.tools[env.closing_tool].parameters["properties"]
    right = env.state.plan().closing.parameters if verdicts else {}
    choices: list[dict[str, str]] = [{}]
    for name, schema in verdicts.items():
        values = schema.get("enum") or [getattr(env.state, "alerted", right[name])]
        choices = [{**choice, name: value} for choice in choices for value in values]
    return choices


@pytest.mark.parametrize(("name", "level"), EVERY)
def test_every_world_keeps_the_contract_at_every_level(name: str, level: int) -> None:
    check_env(world(name, level), seeds=range(30) if level == 2 else range(6))


@pytest.mark.parametrize(("name", "level"), EVERY)
def test_the_oracle_solves_two_hundred_tasks_in_three_to_ten_turns(name: str, level: int) -> None:
    env = world(name, level)
    lengths = []
    for seed in range(200):
        task = env.make_task(seed)
        calls = run_oracle(env, task)
        assert len(calls) == task.optimal_turns
        lengths.append(len(calls))
    assert min(lengths) >= 3
    assert max(lengths) <= 10


@pytest.mark.parametrize("name", WORLDS)
def test_worlds_have_at_least_six_tools_and_three_to_five_milestones(name: str) -> None:
    env = world(name)
    assert len(env.tools) >= 6
    assert 3 <= len(env.milestones) <= 5


@pytest.mark.parametrize(("name", "level"), EVERY)
def test_texts_stay_small(name: str, level: int) -> None:
    env = world(name, level)
    characters, most_words = LONGEST.get(name, (160, 25))
    for seed in range(150):
        task = env.make_task(seed)
        assert len(task.prompt.split()) <= 45
        for turn in play(env, task, texts(run_oracle(env, task))):
            assert len(turn.observation) <= characters
            assert len(turn.observation.split()) <= most_words


@pytest.mark.parametrize("name", WORLDS)
def test_system_prompts_stay_small_in_every_wording(name: str) -> None:
    env = world(name)
    assert len(env.system_prompt.split()) <= 100
    for seed in range(100):
        env.reset(options={"task": env.make_task(0, prompt_seed=seed)})
        assert len(env.system_prompt.split()) <= 120


@pytest.mark.parametrize("name", WORLDS)
def test_the_state_before_the_first_turn_has_the_hash_that_the_task_carries(name: str) -> None:
    env = world(name)
    task = env.make_task(5)
    env.reset(options={"task": task})
    refused = env.step("no call at all")[4]
    assert refused["state_hash"] == task.content_hash


@pytest.mark.parametrize("name", WORLDS)
def test_six_thousand_seeds_make_over_five_thousand_different_problems(name: str) -> None:
    env = world(name)
    hashes = {state_hash(env.generate(random.Random(seed), 2)) for seed in range(6_000)}
    assert len(hashes) >= 5_000


@pytest.mark.parametrize(("name", "level"), EVERY)
def test_a_verdict_without_a_look_never_succeeds(name: str, level: int) -> None:
    env = world(name, level)
    for seed in range(60):
        task = env.make_task(seed)
        env.reset(options={"task": task})
        for guess in closings(env):
            (turn,) = play(env, task, [render_call(ToolCall(env.closing_tool, guess))])
            assert turn.terminated
            assert turn.reward == 0
            assert not turn.info["success"]
            assert turn.info["new_milestones"] == ()


@pytest.mark.parametrize(("name", "level"), EVERY)
def test_doing_the_right_deed_before_looking_never_succeeds(name: str, level: int) -> None:
    env = world(name, level)
    for seed in range(40):
        task = env.make_task(seed)
        calls = run_oracle(env, task)
        looks = [made for made in calls if made.tool_name not in (*env.deed_tools, env.closing_tool)]
        deeds = [made for made in calls if made not in looks]
        if len(deeds) > 1:
            assert not play(env, task, texts([*deeds[:-1], *looks, deeds[-1]]))[-1].info["success"]
        assert not play(env, task, texts(deeds))[-1].info["success"]


@pytest.mark.parametrize(("name", "level"), EVERY)
def test_no_fixed_script_solves_much_even_with_the_right_ids_filled_in(name: str, level: int) -> None:
    env = world(name, level)
    scripts: Counter[tuple[str, ...]] = Counter()
    tasks = 300
    for seed in range(tasks):
        shape = []
        for made in run_oracle(env, env.make_task(seed)):
            schema = env.tools[made.tool_name].parameters["properties"]
            words = [str(v) for k, v in made.parameters.items() if "enum" in schema[k] or k == "text"]
            shape.append(" ".join([made.tool_name, *words]))
        scripts[tuple(shape)] += 1
    assert scripts.most_common(1)[0][1] / tasks <= 0.29


@pytest.mark.parametrize(("name", "level"), EVERY)
def test_the_actions_of_one_task_almost_never_solve_another(name: str, level: int) -> None:
    env = world(name, level)
    tasks = [env.make_task(seed) for seed in range(40)]
    script = texts(run_oracle(env, tasks[0]))
    solved = sum(play(env, task, script)[-1].info["success"] for task in tasks[1:])
    assert solved / len(tasks) <= 0.05


@pytest.mark.parametrize(("name", "level"), EVERY)
def test_the_oracle_survives_skips_repeats_and_wrong_calls(name: str, level: int) -> None:
    """It re-plans after anything, never raises, and reaches an end; harmless noise does not cost success."""
    env = world(name, level)
    foreign = texts([made for seed in range(900, 904) for made in run_oracle(env, env.make_task(seed))])
    for seed in range(40):
        rng = random.Random(seed)
        env.reset(seed=seed)
        terminated, turns = False, 0
        while not terminated:
            turns += 1
            assert turns < 80
            made = next(iter(env.oracle(env.state)))
            action = rng.choice([render_call(made), render_call(made), "hm", rng.choice(foreign)])
            _, _, terminated, _, _ = env.step(action if turns < 40 else render_call(made))


@pytest.mark.parametrize(("name", "level"), EVERY)
def test_one_oracle_consumed_lazily_plays_like_one_asked_anew_each_turn(name: str, level: int) -> None:
    env = world(name, level)
    for seed in range(40):
        task = env.make_task(seed)
        anew = run_oracle(env, task)
        env.reset(options={"task": task})
        lazily = []
        for made in env.oracle(env.state):
            lazily.append(made)
            env.step(render_call(made))
        assert lazily == anew


@pytest.mark.parametrize("name", WORLDS)
def test_any_text_is_answered_and_never_breaks_the_world(name: str) -> None:
    env = world(name)
    env.action_space.seed(0)
    env.reset(seed=0)
    for _ in range(50):
        observation, reward, terminated, truncated, info = env.step(env.action_space.sample())
        assert not info["valid"]
        assert info["parse_tier"] == "error"
        assert (reward, terminated, truncated) == (0.0, False, False)
        assert observation


@pytest.mark.parametrize("name", WORLDS)
def test_every_tool_answers_or_refuses_made_up_parameters(name: str) -> None:
    env = world(name)
    values = {"string": ["", "99999", "Zoe", "é💡"], "integer": [0, -1, 10**9]}
    for spec in env.tools.values():
        for pick in range(4):
            env.reset(seed=pick)
            parameters = {
                key: (schema.get("enum") or values[schema["type"]])[pick % 2]
                for key, schema in spec.parameters["properties"].items()
            }
            with contextlib.suppress(ToolError):
                assert isinstance(env.execute(ToolCall(spec.name, parameters)), str)


def test_a_wrong_refund_cannot_be_undone() -> None:
    env = world("orders")
    for seed in range(60):
        task = env.make_task(seed)
        calls = run_oracle(env, task)
        refunds = [made for made in calls if made.tool_name == "refund"]
        if refunds:
            wrong = call("refund", order_id=refunds[0].parameters["order_id"], amount=1)
            spoilt = [*calls[: calls.index(refunds[0])], wrong, *calls[calls.index(refunds[0]) :]]
            assert not play(env, task, texts(spoilt))[-1].info["success"]
            return
    pytest.fail("no task with a refund")


def test_a_room_taken_between_look_and_booking_must_be_looked_for_anew() -> None:
    env = world("meeting_room")
    for seed in range(80):
        task = env.make_task(seed)
        turns = play(env, task, texts(run_oracle(env, task)))
        taken = [i for i, turn in enumerate(turns) if "just taken" in turn.observation]
        if taken:
            assert turns[taken[0] + 1].info["tool_name"] == "find_room"
            return
    pytest.fail("no task in which a room is taken")


def test_a_lucky_guess_of_the_right_service_is_as_good_as_following_the_logs() -> None:
    """At level 3 a healthy service may be blamed first; asking the other one first is no fault."""
    env = world("alerts", 3)
    for seed in range(80):
        task = env.make_task(seed)
        calls = run_oracle(env, task)
        env.reset(options={"task": task})
        needed = [
            made for made in calls if made.tool_name != "logs" or made.parameters["service"] == env.state.root
        ]
        if len(needed) < len(calls):
            assert play(env, task, texts(needed))[-1].info["success"]


def test_where_sources_differ_only_the_newer_ones_finding_and_figure_are_right() -> None:
    env = world("research_report", 3)
    differing = 0
    for seed in range(60):
        task = env.make_task(seed)
        *looks, flag, right = run_oracle(env, task)
        env.reset(options={"task": task})
        older = env.state.study.says if env.state.study.later else env.state.study.shows
        if flag.tool_name == "flag":
            differing += 1
            for finding, figure in (older, (right.parameters["finding"], older[1])):
                wrong = call("write_report", finding=finding, figure=figure)
                assert not play(env, task, texts([*looks, flag, wrong]))[-1].info["success"]
            assert not play(env, task, texts([*looks, right]))[-1].info["success"]
    assert 25 <= differing <= 55


def test_a_query_asked_again_is_a_milestone_in_the_leaky_research_report_alone() -> None:
    for name, paid in (("research_report", 1), ("research_report_leaky", 6)):
        env = world(name)
        task = env.make_task(0)
        query = texts(run_oracle(env, task)[:1])
        turns = play(env, task, query * 6)
        assert sum(len(turn.info["new_milestones"]) for turn in turns) == paid


SCRIPT = """
import hashlib, json, sys
from palestra.actions import render_call
from palestra.envs import make_env, play, run_oracle
out = []
for name in ("orders", "meeting_room", "alerts", "code_repair", "research_report"):
    env = make_env(name, difficulty=3, prompt_seed=5)
    for seed in range(25):
        task = env.make_task(seed)
        turns = play(env, task, [render_call(c) for c in run_oracle(env, task)])
        out.append([task.prompt, task.content_hash, env.system_prompt, [list(t) for t in turns]])
print(json.dumps(out, ensure_ascii=True))
"""


def test_episodes_are_byte_identical_in_processes_with_different_hash_seeds() -> None:
    outputs = {
        subprocess.run(
            [sys.executable, "-c", SCRIPT], env={"PYTHONHASHSEED": seed}, capture_output=True, check=True
        ).stdout
        for seed in ("1", "77")
    }
    assert len(outputs) == 1
    assert len(outputs.pop()) > 10_000


@pytest.mark.parametrize(("name", "level"), EVERY)
@pytest.mark.parametrize("everything", [False, True])
def test_an_empty_answer_and_a_list_of_all_answers_earn_nothing(
    name: str, level: int, everything: bool
) -> None:
    env = world(name, level)
    task = env.make_task(3)
    *looks, right = run_oracle(env, task)
    options = env.tools[right.tool_name].parameters["properties"]
    wrong = {
        key: " or ".join(schema.get("enum", [str(right.parameters[key]), "none"])) if everything else ""
        for key, schema in options.items()
    }
    for answer in (right.parameters, wrong, *({**right.parameters, key: wrong[key]} for key in wrong)):
        env.reset(options={"task": task})
        for text in texts(looks):
            env.step(text)
        _, reward, _, _, info = env.step(render_call(ToolCall(right.tool_name, answer)))
        assert info["success"] == (reward == 1.0) == (answer == right.parameters), answer
