"""Trajectories survive storage exactly; a damaged file is named and costs nothing else."""

from __future__ import annotations

import json
import random
import struct
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from palestra.errors import StoreError
from palestra.store import (
    RunFolder,
    read_trajectory_file,
    trajectory_from_dict,
    trajectory_to_dict,
    write_trajectory_file,
)
from palestra.types import (
    Action,
    Facts,
    Message,
    StopReason,
    Task,
    ToolSpec,
    Trajectory,
    TrajectoryGroup,
    Turn,
)

TASK = Task("w/train/1", "w", "train", 1, "prenota è", {"difficulty": [1, {"x": None}]}, ("book",), 3, "ff")


def make_group(index: int, task: Task = TASK, attempts: int = 2) -> TrajectoryGroup:
    ids = [f"rl/1/{index}/{attempt}" for attempt in range(attempts)]
    turn = Turn(
        Action("book"),
        "ok",
        Facts(parameters={"room": 4}, key_records=("room 4",)),
        action_ids=(5, 2),
        sampled_logprobs=(-0.5, -2.0),
    )
    prompt = (Message("system", "You act."), Message("user", task.prompt))
    return TrajectoryGroup(
        f"rl/1/{index}",
        task,
        tuple(Trajectory(name, task, prompt, (turn,), StopReason.terminated, True) for name in ids),
    )


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    return RunFolder.create(tmp_path / "run", config_text="", resolved={}, command="")


plain_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)
objects = st.dictionaries(st.text(), plain_json, max_size=3)
finite = st.floats(allow_nan=False, allow_infinity=False)
token_ids = st.lists(st.integers(0, 2**31 - 1), max_size=4).map(tuple)
logprobs = st.lists(st.floats(width=32, allow_nan=False), max_size=4).map(tuple)
facts = st.builds(
    Facts,
    error=st.none() | st.text(),
    parameters=st.none() | objects,
    new_milestones=st.lists(st.text()).map(tuple),
    success=st.booleans(),
    cost=finite,
)
turns = st.builds(
    Turn,
    action=st.text(),
    observation=st.text(),
    facts=facts,
    finish_reason=st.sampled_from(["stop", "length"]),
    env_reward=finite,
    reward=st.none() | finite,
    action_ids=token_ids,
    sampled_logprobs=logprobs,
    observation_ids=token_ids,
)


@st.composite
def groups(draw: st.DrawFn) -> TrajectoryGroup:
    task = draw(
        st.builds(Task, data=objects, tools=st.lists(st.text()).map(tuple), seed=st.integers(0, 2**40))
    )
    trajectory = st.builds(
        Trajectory,
        id=st.just(""),
        task=st.just(task),
        prompt=st.lists(st.builds(Message), max_size=2).map(tuple),
        turns=st.lists(turns, max_size=3).map(tuple),
        prompt_ids=token_ids,
        policy_version=st.integers(0, 2**40),
        milestones=st.lists(st.text()).map(tuple),
        reward_parts=st.dictionaries(st.text(), st.none() | finite, max_size=3),
        error=st.none() | st.text(),
        reward=st.none() | finite,
        seconds=finite,
    )
    drawn = draw(st.lists(trajectory, min_size=1, max_size=3))
    return TrajectoryGroup("g", task, tuple(replace(one, id=str(n)) for n, one in enumerate(drawn)))


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(groups())
def test_any_group_comes_back_equal(group: TrajectoryGroup) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x.parquet"
        write_trajectory_file(path, [group])
        assert read_trajectory_file(path) == [group]


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(groups())
def test_any_trajectory_comes_back_equal_from_json(group: TrajectoryGroup) -> None:
    for trajectory in group.trajectories:
        assert trajectory_from_dict(json.loads(json.dumps(trajectory_to_dict(trajectory)))) == trajectory


def test_logprobs_keep_their_bits(run: RunFolder) -> None:
    bits = (0x80000000, 0x00000001, 0xBF000001, 0xFF800000, 0x7F7FFFFF)
    sampled = tuple(struct.unpack("f", struct.pack("I", value))[0] for value in bits)
    group = make_group(0)
    turn = replace(group.trajectories[0].turns[0], sampled_logprobs=sampled, action_ids=(0,) * len(bits))
    group = replace(group, trajectories=(replace(group.trajectories[0], turns=(turn,)),))
    run.write_groups("rl", "update-1", [group])
    (back,) = run.read_groups("rl")
    read = back.trajectories[0].turns[0].sampled_logprobs
    assert tuple(struct.unpack("I", struct.pack("f", value))[0] for value in read) == bits


def test_arguments_come_back_without_invented_ones(run: RunFolder) -> None:
    def called(parameters: dict[str, Any], name: str) -> Trajectory:
        return Trajectory(
            name, TASK, (), (Turn("a", "", Facts(parameters=parameters)),), StopReason.max_turns, False
        )

    group = TrajectoryGroup("g", TASK, (called({"x": 1}, "a"), called({"y": None}, "b"), called({}, "c")))
    run.write_groups("rl", "update-1", [group])
    (back,) = run.read_groups("rl")
    assert [one.turns[0].facts.parameters for one in back.trajectories] == [{"x": 1}, {"y": None}, {}]


def test_a_stage_is_read_file_by_file_in_natural_order(run: RunFolder) -> None:
    for update in (10, 2, 1):
        run.write_groups("rl", f"update-{update}", [make_group(update), make_group(update + 100)])
    assert [group.id for group in run.read_groups("rl")] == [
        f"rl/1/{index}" for index in (1, 101, 2, 102, 10, 110)
    ]
    assert [group.id for group in run.read_groups("rl", "update-2")] == ["rl/1/2", "rl/1/102"]
    assert run.trajectory_stages() == ["rl"]
    assert list(run.read_groups("sft")) == []


def test_a_resumed_stage_replaces_the_file_it_collects_again(run: RunFolder) -> None:
    run.write_groups("rl", "update-1", [make_group(1)])
    run.write_groups("rl", "update-1", [make_group(2)])
    assert [group.id for group in run.read_groups("rl")] == ["rl/1/2"]


@pytest.mark.parametrize("damage", ["cut", "rubbish", "empty", "other"])
def test_a_damaged_file_is_named_and_skipped(run: RunFolder, damage: str) -> None:
    for update in (1, 2, 3):
        run.write_groups("rl", f"update-{update}", [make_group(update)])
    path = run.trajectory_files("rl")[1]
    data = path.read_bytes()
    path.write_bytes(
        {
            "cut": data[: len(data) // 2],
            "rubbish": b"rubbish",
            "empty": b"",
            "other": other_parquet(),
        }[damage]
    )
    with pytest.warns(UserWarning, match=r"update-2\.parquet"):
        assert [group.id for group in run.read_groups("rl")] == ["rl/1/1", "rl/1/3"]


def test_rewards_of_numpy_are_stored_as_plain_numbers(tmp_path: Path) -> None:
    half: Any = np.float32(0.5)
    group = make_group(0, attempts=1)
    turn = replace(group.trajectories[0].turns[0], env_reward=half, reward=half)
    trajectory = replace(group.trajectories[0], turns=(turn,), reward=half, reward_parts={"outcome": half})
    record = json.loads(json.dumps(trajectory_to_dict(trajectory)))
    write_trajectory_file(tmp_path / "x.parquet", [replace(group, trajectories=(trajectory,))])
    ((stored,),) = (group.trajectories for group in read_trajectory_file(tmp_path / "x.parquet"))
    for back in (trajectory_from_dict(record), stored):
        assert back == trajectory
        assert [type(value) for value in (back.reward, back.turns[0].env_reward)] == [float, float]


def test_a_hundred_long_replies_take_no_more_room_than_their_text(tmp_path: Path) -> None:
    rng = random.Random(0)
    group = make_group(0, attempts=1)
    turn = group.trajectories[0].turns[0]
    turns = tuple(replace(turn, observation=rng.randbytes(100_000).hex()) for _ in range(100))
    group = replace(group, trajectories=(replace(group.trajectories[0], turns=turns),))
    write_trajectory_file(tmp_path / "x.parquet", [group])
    assert (tmp_path / "x.parquet").stat().st_size < 1.05 * 100 * 100_000
    assert read_trajectory_file(tmp_path / "x.parquet") == [group]


def test_texts_are_stored_once_and_checked(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    write_trajectory_file(path, [make_group(0)])
    data = path.read_bytes()
    assert data.count(b"You act.") == 1
    path.write_bytes(data.replace(b"You act.", b"You ect."))
    with pytest.raises(StoreError, match=r"x\.parquet"):
        read_trajectory_file(path)


def other_parquet() -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"x": [1]}), sink)
    return bytes(sink.getvalue().to_pybytes())


def test_what_would_not_come_back_is_refused(run: RunFolder) -> None:
    group = make_group(0)
    twice = replace(group, trajectories=(group.trajectories[0], group.trajectories[0]))
    other = make_group(0, replace(TASK, seed=2))
    strange = make_group(0, replace(TASK, data={"x": {1, 2}}))
    turn = replace(group.trajectories[0].turns[0], action_ids=(2**40,))
    wide = replace(group, trajectories=(replace(group.trajectories[0], turns=(turn,)),))
    for bad, message in (
        ([twice], "comes twice"),
        ([group, group], "comes twice"),
        ([replace(group, trajectories=())], "no trajectory"),
        ([replace(group, trajectories=other.trajectories)], "another task"),
        ([strange], "a set cannot be stored"),
        ([wide], "cannot store"),
    ):
        with pytest.raises(StoreError, match=message):
            run.write_groups("rl", "update-1", bad)
    assert run.trajectory_files("rl") == []


def test_tools_that_a_chat_template_declared_come_back_and_cost_others_nothing(run: RunFolder) -> None:
    schema = {"type": "object", "properties": {"room": {"type": "integer", "enum": [1, 2]}}, "required": []}
    tools = (ToolSpec("book", "Book it.", schema, {"number": "room"}), ToolSpec("wait", "Wait.", {}))
    plain, declared = make_group(1), make_group(2)
    told = [
        replace(each, prompt=(replace(each.prompt[0], tools=tools), each.prompt[1]))
        for each in declared.trajectories
    ]
    declared = replace(declared, trajectories=tuple(told))
    run.write_groups("rl", "update-1", [plain, declared])
    assert list(run.read_groups("rl")) == [plain, declared]
    assert "tools" not in trajectory_to_dict(plain.trajectories[0])["prompt"][0]
    assert trajectory_from_dict(json.loads(json.dumps(trajectory_to_dict(told[0])))) == told[0]


def test_half_a_surrogate_pair_costs_one_character_and_not_the_file(run: RunFolder) -> None:
    group = make_group(0, replace(TASK, data={"x": "\ud83d"}))
    turn = replace(group.trajectories[0].turns[0], observation="no room \ud83d here \U0001f600")
    run.write_groups(
        "rl", "u", [replace(group, trajectories=(replace(group.trajectories[0], turns=(turn,)),))]
    )
    (back,) = run.read_groups("rl")
    assert back.trajectories[0].turns[0].observation == "no room � here \U0001f600"
    assert back.task.data == {"x": "\ud83d"}


def test_a_record_of_another_form_is_refused() -> None:
    record = trajectory_to_dict(make_group(0).trajectories[0])
    for wrong in ({**record, "new_field": 1}, {**record, "stop_reason": "bored"}, {}):
        with pytest.raises(StoreError, match="not the record of a trajectory"):
            trajectory_from_dict(wrong)
