"""Faults: what goes wrong, when, and that the record says what the agent saw."""

import json

import pytest

from palestra.envs import FAULT_KINDS, FaultSchedule, make_env, possible_faults
from palestra.envs.conversation import play
from palestra.errors import ConfigError
from palestra.evaluation import fault_landed, fault_results
from palestra.pipeline import parse_config
from palestra.pipeline.workshop import make_world
from palestra.policy import NoisyTeacher, ScriptedPolicy, oracle_script
from palestra.rewards import Rubric
from palestra.rollout import Limits, Rollout, collect_groups
from palestra.types import Facts, StopReason, Task, ToolCall, Trajectory, Turn

ALWAYS = 1.0
NOT_DONE = ("delay", "timeout", "transient_error", "illegal_input", "permanent_error")


def orders(*kinds: str, rate: float = ALWAYS, most: int = 1, seed: int = 0):
    return make_env("orders", difficulty=1, faults=FaultSchedule(kinds, rate, most, seed))


def look(world, task) -> str:
    world.reset(seed=task.seed, options={"task": task})
    return world.action_text(next(iter(world.oracle(world.state))))


@pytest.mark.parametrize("kind", NOT_DONE)
def test_a_call_that_fails_changes_nothing_and_may_be_made_again(kind):
    world = orders(kind)
    action = look(world, world.make_task(1))
    reply, _, _, _, info = world.step(action)
    assert json.loads(reply)["message"]
    assert (info["fault"], info["valid"], info["state_changed"]) == (kind, True, False)
    again, _, _, _, after = world.step(action)
    assert after["repeated"] is False
    if kind == "permanent_error":
        assert (again, after["fault"]) == (reply, kind)
    else:
        assert after["fault"] is None
        assert after["state_changed"]
        assert again.startswith("order ")


@pytest.mark.parametrize(
    ("kind", "holds"),
    [
        ("missing_field", lambda text, plain: len(text) < len(plain)),
        ("extra_field", lambda text, plain: "trace " in text),
        ("changed_format", lambda text, plain: text.startswith("{") or " | " in text),
        ("renamed_field", lambda text, plain: "_v2 " in text),
        ("corrupted_value", lambda text, plain: "\ufffd" in text),
    ],
)
def test_a_reply_that_is_disturbed_is_of_a_call_that_was_made(kind, holds):
    for seed in range(6):
        world = orders(kind, seed=seed)
        task = world.make_task(seed)
        action = look(world, task)
        reply, _, _, _, info = world.step(action)
        plain = make_env("orders", difficulty=1)
        plain.reset(seed=task.seed, options={"task": task})
        assert (info["fault"], info["state_changed"]) == (kind, True)
        assert holds(reply, plain.step(action)[0]), reply


def test_stale_data_is_an_earlier_reply_to_the_same_call():
    world = make_env("alerts", difficulty=3, faults=FaultSchedule(("stale_data",), ALWAYS))
    seen = 0
    for seed in range(40):
        task = world.make_task(seed)
        world.reset(seed=seed, options={"task": task})
        replies, text = {}, ""
        while world.state.plan() and not world.done(world.state):
            text = world.action_text(next(iter(world.oracle(world.state))))
            reply, _, _, _, info = world.step(text)
            if info["fault"]:
                assert reply == replies[text]
                seen += 1
            replies.setdefault(text, reply)
    assert seen


def test_the_schedule_follows_from_its_seed_and_the_task_and_is_one_for_a_group():
    def told(seed: int, task_seed: int) -> list:
        world = orders("timeout", "extra_field", rate=0.4, most=3, seed=seed)
        task = world.make_task(task_seed)
        actions = [look(world, task)] * 5
        return [(turn.observation, turn.info["fault"]) for turn in play(world, task, actions)]

    assert told(0, 3) == told(0, 3)
    assert len({str(told(seed, 3)) for seed in range(8)}) > 3
    assert len({str([fault for _, fault in told(0, task)]) for task in range(8)}) > 3


def test_no_more_calls_are_disturbed_than_may_be_and_none_at_a_rate_of_zero():
    world = orders("timeout", most=2)
    task = world.make_task(1)
    turns = play(world, task, [look(world, task)] * 6)
    assert [turn.info["fault"] for turn in turns] == ["timeout", "timeout", None, None, None, None]
    calm = orders("timeout", rate=0.0)
    assert all(turn.info["fault"] is None for turn in play(calm, task, [look(calm, task)] * 4))


def test_a_fault_that_nobody_sees_is_not_recorded():
    world = orders("extra_field")
    task = world.make_task(1)
    world.reset(seed=1, options={"task": task})
    _, _, terminated, _, info = world.step(world.action_text(ToolCall("finish", {"verdict": "refused"})))
    assert (terminated, info["fault"]) == (True, None)


@pytest.mark.parametrize("name", ["orders", "meeting_room", "alerts", "code_repair", "research_report"])
@pytest.mark.parametrize("kind", [kind for kind in FAULT_KINDS if kind != "permanent_error"])
def test_an_oracle_gets_over_every_fault_but_the_permanent_one(name, kind):
    if kind not in possible_faults(make_env(name).upsets):
        return

    def make():
        return make_env(name, faults=FaultSchedule((kind,), 0.5))

    tasks = [make().make_task(seed) for seed in range(8)]
    rollout = Rollout(make, ScriptedPolicy("oracle", oracle_script), Rubric(), Limits(14, 999, 3, 3, 60.0))
    groups = collect_groups(rollout, tasks, 2, stage="s", seed=0)
    played = [trajectory for group in groups for trajectory in group.trajectories]
    assert all(trajectory.success for trajectory in played)
    for group in groups:
        first, second = (
            [(turn.observation, turn.facts.fault) for turn in t.turns] for t in group.trajectories
        )
        assert first == second
    if kind not in ("stale_data", "missing_field", "slot_taken"):
        assert sum(map(fault_landed, played)) > len(played) // 2


def upset(kind: str, seed: int):
    """A world in which all goes well until a room is found, and then somebody wants something else."""
    world = make_env("meeting_room", faults=FaultSchedule((kind,), ALWAYS))
    task = world.make_task(seed)
    before = make_env("meeting_room")
    before.reset(seed=seed, options={"task": task})
    world.reset(seed=seed, options={"task": task})
    while True:
        call = next(iter(world.oracle(world.state)))
        reply, _, over, _, info = world.step(world.action_text(call))
        if over or info["fault"]:
            return world, before.state, call, reply, info


def test_a_requirement_that_changes_is_told_and_holds():
    world, before, _, reply, info = upset("changed_requirement", 1)
    assert info["fault"] == "changed_requirement"
    assert world.state.seats > before.seats
    assert reply.endswith(f"\nnews: {world.state.seats} seats are wanted")
    assert world.state.plan().checks[0].tool_name in ("find_room", "invite") or world.state.unseen()


def test_a_slot_that_somebody_takes_is_told_and_gone():
    world, _, call, reply, info = upset("slot_taken", 1)
    assert (info["fault"], call.tool_name) == ("slot_taken", "find_room")
    room, hour = reply.splitlines()[-1].removeprefix("news: ").split(" is taken at ")
    refused = world.step(world.action_text(ToolCall("book", {"room": room, "hour": int(hour)})))
    assert refused[4]["valid"] is False
    assert "is not free" in refused[0]


def test_a_fault_that_a_world_does_not_have_is_refused_by_name():
    with pytest.raises(ConfigError, match="orders has no fault 'slot_taken'"):
        orders("slot_taken")


@pytest.mark.parametrize("kind", ["missing_field", "corrupted_value"])
def test_a_teacher_asks_again_for_what_a_reply_lost(kind):
    world = orders(kind)
    task = world.make_task(1)
    teacher = ScriptedPolicy("teacher", NoisyTeacher(0.0, 0.0, 0.0))
    rollout = Rollout(lambda: orders(kind), teacher, Rubric(), Limits(14, 999, 3, 3, 60.0))
    (group,) = collect_groups(rollout, [task], 1, stage="s", seed=0)
    first, second, *_ = group.trajectories[0].turns
    assert first.facts.fault == kind
    assert first.action == second.action
    assert not second.facts.repeated
    assert second.facts.fault is None
    assert len(second.observation) > 0
    assert second.observation != first.observation
    assert group.trajectories[0].success


def test_a_schedule_that_cannot_be_is_refused():
    for kinds, rate, most, message in (
        (("flood",), 0.2, 1, "there is no fault 'flood'; there are delay"),
        ((), 0.2, 1, "no kind of fault is named"),
        (("timeout",), 1.5, 1, "rate is from 0 to 1"),
        (("timeout",), 0.5, 0, "most at least 1"),
    ):
        with pytest.raises(ConfigError, match=message):
            FaultSchedule(kinds, rate, most)


def test_a_configuration_brings_faults_into_the_world():
    config = parse_config("world: {name: orders, faults: {kinds: [timeout], rate: 1.0}}")
    world = make_world(config.world)
    task = world.make_task(1)
    assert play(world, task, [look(world, task)])[0].info["fault"] == "timeout"
    with pytest.raises(ConfigError, match=r"world.faults.kinds.0"):
        parse_config("world: {faults: {kinds: [flood]}}")


def attempt(number: int, faults: list[str | None], success: bool) -> Trajectory:
    turns = tuple(Turn("a", "b", Facts(fault=fault, success=success)) for fault in faults)
    task = Task(f"w/test/{number}", "w", "test", number, "?")
    return Trajectory(f"e/{number}", task, (), turns, StopReason.terminated, success)


def test_recovery_counts_only_where_a_fault_was_seen():
    clean = [attempt(number, [None, None], number != 3) for number in range(4)]
    faulty = [
        attempt(0, ["timeout", None, None], True),
        attempt(1, ["timeout", None], False),
        attempt(2, [None, "timeout"], True),
        attempt(3, [None, None], False),
    ]
    (result,) = fault_results(clean, {"timeout": faulty})
    assert (result.episodes, result.landed, result.success) == (4, 2, 0.5)
    assert result.recovery == 0.5
    assert result.turns_to_recover == 1.0
    assert result.against_clean.difference == -0.5
    (none,) = fault_results(clean, {"delay": clean})
    assert (none.recovery, none.recovery_ci95, none.turns_to_recover) == (None, None, None)
