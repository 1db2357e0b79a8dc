"""The experience store: what is added comes back bit for bit, old groups are left out, memory stays flat."""

from __future__ import annotations

import gc
import random
import struct
import tempfile
import tracemalloc
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from palestra.errors import ConfigError, StoreError
from palestra.store import ExperienceStore, RunFolder
from palestra.types import Facts, Message, StopReason, Task, Trajectory, TrajectoryGroup, Turn


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    return RunFolder.create(tmp_path / "run", config_text="", resolved={}, command="")


def make_group(name: str, versions: Sequence[int], turns: int = 1, tokens: int = 3) -> TrajectoryGroup:
    """A group with one attempt a version; its contents follow from its name."""
    rng = random.Random(name)
    task = Task(f"w/train/{name}", "w", "train", rng.getrandbits(20), f"ticket {rng.random()}")
    prompt = (Message("system", "You act."), Message("user", task.prompt))

    def turn() -> Turn:
        ids = tuple(rng.randrange(1500) for _ in range(tokens))
        text = f"look {rng.random()}"
        return Turn(text, text[::-1], Facts(), action_ids=ids, sampled_logprobs=(-0.5,) * tokens)

    trajectories = tuple(
        Trajectory(
            f"{name}/{attempt}",
            task,
            prompt,
            tuple(turn() for _ in range(turns)),
            StopReason.terminated,
            attempt == 0,
            policy_version=version,
        )
        for attempt, version in enumerate(versions)
    )
    return TrajectoryGroup(name, task, trajectories)


def update_groups(update: int, version: int | None = None) -> list[TrajectoryGroup]:
    """Two groups, sampled by the version that the loop has at this update."""
    sampled_by = update - 1 if version is None else version
    return [make_group(f"rl/{update}/{number}", (sampled_by, sampled_by)) for number in range(2)]


def filled(run: RunFolder, updates: int, **bounds: int) -> ExperienceStore:
    store = ExperienceStore(run, "rl", **bounds)
    for update in range(1, updates + 1):
        store.add(update, update_groups(update))
    return store


def names(groups: Sequence[TrajectoryGroup]) -> list[str]:
    return [group.id for group in groups]


finite = st.floats(allow_nan=False, allow_infinity=False)
token_ids = st.lists(st.integers(0, 2**31 - 1), max_size=5).map(tuple)
turns = st.builds(
    Turn,
    action=st.text(),
    observation=st.text(),
    facts=st.builds(
        Facts, parameters=st.none() | st.dictionaries(st.text(), st.none() | st.text(), max_size=2)
    ),
    env_reward=finite,
    reward=st.none() | finite,
    action_ids=token_ids,
    sampled_logprobs=st.lists(st.floats(width=32, allow_nan=False), max_size=5).map(tuple),
    observation_ids=token_ids,
)


@st.composite
def any_groups(draw: st.DrawFn) -> list[TrajectoryGroup]:
    task = Task("t", "w", "train", 1, draw(st.text()))
    attempt = st.builds(
        Trajectory,
        id=st.just(""),
        task=st.just(task),
        prompt=st.lists(st.builds(Message), max_size=2).map(tuple),
        turns=st.lists(turns, max_size=3).map(tuple),
        policy_version=st.integers(0, 5),
        prompt_ids=token_ids,
        reward=st.none() | finite,
        reward_parts=st.dictionaries(st.text(), st.none() | finite, max_size=2),
        seconds=finite,
    )
    drawn = draw(st.lists(st.lists(attempt, min_size=1, max_size=2), max_size=3))
    return [
        TrajectoryGroup(
            str(place), task, tuple(replace(each, id=f"{place}/{n}") for n, each in enumerate(attempts))
        )
        for place, attempts in enumerate(drawn)
    ]


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(any_groups(), st.integers(0, 7), st.integers(0, 1))
def test_any_groups_come_back_equal_hot_cold_and_fresh(
    groups: list[TrajectoryGroup], version: int, lag: int
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        run = RunFolder.create(Path(folder) / "run", config_text="", resolved={}, command="")
        store = ExperienceStore(run, "rl", max_policy_lag=lag)
        store.add(1, groups)
        young = [g for g in groups if all(version - t.policy_version <= lag for t in g.trajectories)]
        assert store.fresh(version) == young
        assert store.metrics()["experience/stale"] == len(groups) - len(young)
        assert store.read(1) == groups
        store.add(2, [])
        store.add(3, [])
        assert store.read(1) == groups


@pytest.mark.parametrize("cold", [False, True])
def test_logprobs_keep_their_bits(run: RunFolder, cold: bool) -> None:
    bits = (0x80000000, 0x00000001, 0xBF000001, 0xFF800000, 0x7F7FFFFF)
    sampled = tuple(struct.unpack("f", struct.pack("I", value))[0] for value in bits)
    group = make_group("g", (0,), tokens=len(bits))
    turn = replace(group.trajectories[0].turns[0], sampled_logprobs=sampled)
    store = ExperienceStore(run, "rl")
    store.add(1, [replace(group, trajectories=(replace(group.trajectories[0], turns=(turn,)),))])
    for update in (2, 3) if cold else ():
        store.add(update, update_groups(update))
    read = store.read(1)[0].trajectories[0].turns[0].sampled_logprobs
    assert tuple(struct.unpack("I", struct.pack("f", value))[0] for value in read) == bits


def test_only_the_newest_updates_stay_hot_and_all_are_read_on_demand(run: RunFolder) -> None:
    store = filled(run, 5)
    assert [path.name for path in run.trajectory_files("rl")] == [f"update-{n}.parquet" for n in range(1, 6)]
    sizes = [path.stat().st_size for path in run.trajectory_files("rl")]
    assert store.metrics()["experience/hot_updates"] == 2
    assert store.hot_bytes == sum(sizes[-2:])
    for path in run.trajectory_files("rl")[3:]:
        path.unlink()
    assert [store.read(update) for update in range(1, 6)] == [update_groups(n) for n in range(1, 6)]
    run.trajectory_file("rl", "update-3").unlink()
    with pytest.raises(StoreError, match=r"update-3\.parquet"):
        store.read(3)


def test_an_update_is_on_disk_when_add_returns(run: RunFolder) -> None:
    store = filled(run, 1)
    assert list(run.read_groups("rl", "update-1")) == store.read(1) == update_groups(1)


def test_without_lag_only_what_the_version_sampled_is_fresh(run: RunFolder) -> None:
    store = ExperienceStore(run, "rl")
    for update in range(1, 4):
        store.add(update, update_groups(update))
        assert names(store.fresh(update - 1)) == names(update_groups(update))
        assert store.metrics()["experience/stale"] == 0


def test_a_batch_that_was_sampled_ahead_is_fresh_within_the_lag_and_given_once(run: RunFolder) -> None:
    store = ExperienceStore(run, "rl", max_policy_lag=2)
    for update in range(1, 5):
        store.add(update, update_groups(update, max(0, update - 3)))
        assert store.fresh(update - 1) == update_groups(update, max(0, update - 3))
        assert store.fresh(update - 1) == []
        assert store.metrics()["experience/stale"] == 0


def test_a_group_with_one_attempt_too_old_is_dropped_whole_and_counted_once(run: RunFolder) -> None:
    store = ExperienceStore(run, "rl", max_policy_lag=1)
    mixed = make_group("mixed", (7, 4, 7))
    groups = [make_group("young", (7, 6)), mixed, make_group("old", (5,)), make_group("newest", (7,))]
    store.add(1, groups)
    assert names(store.fresh(7)) == ["young", "newest"]
    assert store.metrics()["experience/stale"] == 2
    assert store.fresh(7) == []
    assert store.metrics()["experience/stale"] == 0
    assert store.read(1)[1] == mixed


@pytest.mark.parametrize("lag", [0, 1])
def test_a_resumed_store_serves_what_an_uninterrupted_one_does(run: RunFolder, lag: int) -> None:
    store = ExperienceStore(run, "rl", max_policy_lag=lag)
    for update in range(1, 6):
        store.add(update, update_groups(update))
        store.fresh(update - 1)
    resumed = ExperienceStore(RunFolder.open(run.path), "rl", max_policy_lag=lag, after_update=5)
    for update in (6, 7, 8):
        for each in (store, resumed):
            each.add(update, update_groups(update, update - 1 - update % 2))
        assert resumed.fresh(update - 1) == store.fresh(update - 1)
        assert resumed.metrics()["experience/stale"] == store.metrics()["experience/stale"]
    assert resumed.read(1) == store.read(1)


def test_shards_past_the_checkpoint_are_not_read_and_are_replaced_whole(run: RunFolder) -> None:
    filled(run, 4, max_policy_lag=1)
    resumed = ExperienceStore(run, "rl", max_policy_lag=1, after_update=2)
    assert resumed.fresh(1) == []
    assert resumed.read(2) == update_groups(2)
    with pytest.raises(StoreError, match=r"update 3 .*not added yet"):
        resumed.read(3)
    again = [make_group("rl/3/0", (2,), turns=2)]
    resumed.add(3, again)
    assert resumed.read(3) == again == list(run.read_groups("rl", "update-3"))
    assert names(resumed.fresh(2)) == names(again)


def test_a_run_killed_before_its_first_checkpoint_starts_over(run: RunFolder) -> None:
    filled(run, 3)
    again = ExperienceStore(run, "rl")
    assert again.fresh(0) == []
    again.add(1, update_groups(1))
    assert again.fresh(0) == update_groups(1)


@pytest.mark.parametrize("update", [3, 2, 1])
def test_an_update_is_added_once_and_in_order(run: RunFolder, update: int) -> None:
    store = filled(run, 3)
    with pytest.raises(StoreError, match=f"update {update} of 'rl' .* after update 3.*resume"):
        store.add(update, [make_group("other", (0,))])
    assert store.read(update) == update_groups(update) == list(run.read_groups("rl", f"update-{update}"))


def test_what_cannot_be_stored_leaves_the_store_as_it_was(run: RunFolder) -> None:
    store = filled(run, 2)
    before = store.metrics()
    twice = make_group("g", (1, 1))
    with pytest.raises(StoreError, match="comes twice"):
        store.add(3, [twice, twice])
    assert store.metrics() == before
    store.add(3, [twice])
    assert store.read(3) == [twice]


@pytest.mark.parametrize(("lag", "updates"), [(-1, 2), (0, 0)])
def test_a_lag_or_a_buffer_that_cannot_be_is_refused(run: RunFolder, lag: int, updates: int) -> None:
    with pytest.raises(ConfigError, match=f"max_policy_lag is {lag}"):
        ExperienceStore(run, "rl", max_policy_lag=lag, hot_updates=updates)


def test_memory_is_flat_and_a_small_part_of_the_records(run: RunFolder) -> None:
    store = ExperienceStore(run, "rl", max_policy_lag=1)

    def batch(update: int) -> list[TrajectoryGroup]:
        return [make_group(f"rl/{update}/{n}", (update - 1,) * 4, turns=4, tokens=20) for n in range(4)]

    def drive(first: int, last: int) -> int:
        for update in range(first, last + 1):
            store.add(update, batch(update))
            store.fresh(update - 1)
        gc.collect()
        return tracemalloc.get_traced_memory()[0]

    tracemalloc.start()
    try:
        warm = drive(1, 10)
        grown = drive(11, 40) - warm
        records = [batch(update) for update in (39, 40)]
        kept = tracemalloc.get_traced_memory()[0] - warm - grown
    finally:
        tracemalloc.stop()
    hot = store.hot_bytes
    assert [store.read(update) for update in (39, 40)] == records
    assert hot < 0.35 * kept
    assert grown < 0.25 * hot  # a leak of one shard an update would be 15 times as much as the buffer
