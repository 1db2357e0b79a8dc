"""Episodes shared out to several processes are those that one process would have played."""

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from palestra.envs import make_env
from palestra.errors import PlayerLost, TooManyFailures
from palestra.pipeline import parse_config
from palestra.pipeline.model_parts import load_start
from palestra.pipeline.players import Players
from palestra.pipeline.sampling import Sampler
from palestra.rewards import Rubric
from palestra.rollout import Limits, Rollout, collect_groups
from palestra.tasks import GeneratedTasks

WORLD = f"{Path(__file__).with_name('echo_world.py')}:EchoWorld"
CONFIG = parse_config(f"world: {{name: '{WORLD}'}}\npolicy: {{action_tokens: 24}}")
TASKS = GeneratedTasks(make_env(WORLD).make_task).take("train", 5)


@pytest.fixture(scope="module")
def rollout():
    policy = load_start(CONFIG).policy("base", 1.0, version=3)
    return Rollout(partial(make_env, WORLD), policy, Rubric(), Limits(max_turns=2), concurrency=8)


@pytest.fixture(scope="module")
def players():
    made = Players(2)
    yield made
    made.close()


def collect(players, rollout, attempts=4, progress=lambda _: None):
    return players.collect(rollout, TASKS, attempts, stage="s", seed=7, progress=progress)


def gone(pid: int) -> bool:
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        state = Path(f"/proc/{pid}/stat")
        if not state.exists() or state.read_text().split(")")[-1].split()[0] == "Z":
            return True
        time.sleep(0.05)
    return False


def test_two_processes_play_the_very_episodes_that_one_plays(players, rollout):
    ended = []
    shared = collect(players, rollout, progress=ended.append)
    alone = collect_groups(rollout, TASKS, 4, stage="s", seed=7)
    assert [group.id for group in shared] == [group.id for group in alone] == [f"s/{n}" for n in range(5)]
    for one, other in zip(shared, alone, strict=True):
        for mine, theirs in zip(one.trajectories, other.trajectories, strict=True):
            assert (mine.id, mine.task, mine.reward, mine.policy_version) == (
                theirs.id,
                theirs.task,
                theirs.reward,
                3,
            )
            assert [turn.action_ids for turn in mine.turns] == [turn.action_ids for turn in theirs.turns]
            for turn, twin in zip(mine.turns, theirs.turns, strict=True):
                assert turn.sampled_logprobs == pytest.approx(twin.sampled_logprobs, abs=1e-4)
    assert sorted(ended) == sorted(t.stop_reason for group in alone for t in group.trajectories)
    assert players.peak_memory_mb > 100


def test_changed_weights_are_the_ones_that_the_next_collection_plays(players):
    loaded = load_start(CONFIG)
    rollout = Rollout(partial(make_env, WORLD), loaded.policy("base", 1.0), Rubric(), Limits(max_turns=2))
    before = collect(players, rollout)
    for parameter in loaded.model.parameters():
        parameter.data.mul_(0.5)
    loaded.engine.weights_changed(1)
    after = collect(players, rollout)
    assert all(
        [t.turns for t in one.trajectories] != [t.turns for t in other.trajectories]
        for one, other in zip(before, after, strict=True)
    )


def test_a_world_that_fails_in_another_process_stops_the_collection_with_its_traceback(players, rollout):
    broken = replace(rollout, make_world=BrokenWorld)
    with pytest.raises(TooManyFailures, match="the shop is on fire"):
        collect(players, broken)


class BrokenWorld:
    """A world whose every episode fails; the other process must find it where this one did."""

    milestones = ()

    def reset(self, **_):
        raise ZeroDivisionError("the shop is on fire")


def test_a_player_that_was_killed_is_named_and_the_next_collection_has_a_new_one(rollout):
    players = Players(2)
    players.start()
    os.kill(players._players[0]._process.pid, signal.SIGKILL)
    with pytest.raises(PlayerLost, match=r"exit code -9.*--resume"):
        collect(players, rollout)
    assert len(collect(players, rollout)) == len(TASKS)
    players.close()


def test_players_end_with_the_process_that_started_them():
    code = (
        "import os, signal; from palestra.pipeline.players import Players; p = Players(2); p.start();"
        "print(p._players[0]._process.pid, flush=True); os.kill(os.getpid(), signal.SIGKILL)"
    )
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False).stdout
    assert gone(int(printed))


def turns(groups):
    return [
        [(turn.action_ids, turn.observation) for turn in attempt.turns]
        for group in groups
        for attempt in group.trajectories
    ]


def begin(sampler, rollout):
    return sampler.begin(rollout, TASKS, 4, stage="s", seed=7)


def test_a_batch_that_is_begun_is_played_with_the_weights_of_that_moment(players):
    loaded = load_start(CONFIG)
    rollout = Rollout(partial(make_env, WORLD), loaded.policy("base", 1.0), Rubric(), Limits(max_turns=2))
    expected = turns(collect(players, rollout))
    first = begin(sampler := Sampler(players), rollout)
    for parameter in loaded.model.parameters():
        parameter.data.mul_(0.5)
    loaded.engine.weights_changed(1)
    second = begin(sampler, rollout)
    assert turns(first().groups) == expected
    assert turns(second().groups) == turns(collect(players, rollout)) != expected
    assert second().seconds > 0
    assert second().idle < 1


def test_a_sampler_whose_process_is_killed_plays_the_batch_anew(rollout):
    players = Players(2)
    expected = turns(collect(players, rollout))
    waiting = begin(Sampler(players), rollout)
    os.kill(players._players[0]._process.pid, signal.SIGKILL)
    assert turns(waiting().groups) == expected
    players.close()


def test_a_sampler_whose_process_dies_each_time_says_so(rollout):
    players = Players(2)
    with pytest.raises(PlayerLost, match=r"exit code -9"):
        begin(Sampler(players), replace(rollout, make_world=DeadlyWorld))()
    players.close()


def test_closed_players_play_nothing_that_was_begun_and_start_no_process(rollout):
    players = Players(2)
    sampler = Sampler(players)
    first, second = begin(sampler, rollout), begin(sampler, rollout)
    players.close()
    for waiting in (first, second):
        with pytest.raises(PlayerLost):
            waiting()
    assert not players._players


class DeadlyWorld:
    """A world that kills the process it is in."""

    milestones = ()

    def reset(self, **_):
        os.kill(os.getpid(), signal.SIGKILL)


def test_a_world_that_fails_beside_the_learning_stops_it_with_its_traceback(players, rollout):
    with pytest.raises(TooManyFailures, match="the shop is on fire"):
        begin(Sampler(players), replace(rollout, make_world=BrokenWorld))()


def test_one_thread_has_a_process_to_sample_beside_it(rollout):
    players = Players(1)
    assert len(begin(Sampler(players), rollout)().groups) == len(TASKS)
    players.close()
