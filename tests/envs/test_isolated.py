"""Worlds in processes of their own: whatever happens there is data, and nothing is left behind."""

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from palestra.envs import IsolatedWorlds, make_env
from palestra.errors import WorldCrashed, WorldError
from palestra.policy import NoisyTeacher, ScriptedPolicy, oracle_script, random_script, replay_script
from palestra.rewards import Rubric
from palestra.rollout import EpisodeKey, Limits, Rollout, collect_groups, run_episode
from palestra.tasks import GeneratedTasks
from palestra.types import StopReason

NAME = f"{Path(__file__).with_name('troubled_world.py')}:Troubled"
TASKS = GeneratedTasks(make_env(NAME).make_task).take("train", 4)
WORLDS = IsolatedWorlds(NAME, step_seconds=5.0)
ORACLE = ScriptedPolicy("oracle", oracle_script)


def acting(*actions):
    return ScriptedPolicy("replay", replay_script(actions))


def trouble(kind, where=""):
    return f'{{"tool_name": "trouble", "parameters": {{"kind": "{kind}", "where": "{where}"}}}}'


def play(policy, worlds=WORLDS, limits=Limits()):  # noqa: B008
    return asyncio.run(run_episode(worlds(), TASKS[0], policy, limits, EpisodeKey("t", 1)))


def groups(make_world, policy, name, attempts=2, retries=1):
    tasks = GeneratedTasks(make_env(name).make_task).take("train", 6)
    rollout = Rollout(make_world, policy, Rubric(), Limits(), retries=retries)
    return collect_groups(rollout, tasks, attempts, stage="s", seed=3)


def gone(pid):
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        try:
            if Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").split(")")[-1].split()[0] == "Z":
                return True
        except FileNotFoundError:
            return True
        time.sleep(0.02)
    return False


@pytest.mark.parametrize("name", ["orders", "alerts", "code_repair"])
@pytest.mark.parametrize("script", [oracle_script, random_script, NoisyTeacher(0.2, 0.2, 0.2)])
def test_an_isolated_episode_is_the_episode(name, script):
    policy = ScriptedPolicy("p", script)
    options = {"difficulty": 2, "action_format": "hermes", "tool_schemas": name == "alerts"}
    alone = groups(lambda: make_env(name, **options), policy, name)
    apart = groups(IsolatedWorlds(name, options), policy, name)
    for one, other in zip(alone, apart, strict=True):
        for here, there in zip(one.trajectories, other.trajectories, strict=True):
            assert replace(here, seconds=0.0) == replace(there, seconds=0.0)
            assert bool(there.prompt[0].tools) == (name == "alerts")


def test_every_episode_has_a_process_without_a_past():
    played = groups(WORLDS, ORACLE, NAME)
    said = [t.turns[-1].observation for group in played for t in group.trajectories]
    assert all(f", {text.split()[1].rstrip(',')} ever" in text for text in said)
    assert len({text.split()[-1] for text in said}) == len(said) == 12
    assert WORLDS.counts.open == 0


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        ("raise", "the till is empty"),
        ("crash", "the sandbox is gone"),
        ("exit", "SystemExit"),
        ("die", "died in step: killed by SIGSEGV"),
        ("grow", "MemoryError"),
    ],
)
def test_a_world_that_breaks_down_makes_an_env_error_that_says_how(kind, says):
    worlds = IsolatedWorlds(NAME, step_seconds=20.0, memory_mb=2048)
    trajectory = play(acting('{"tool_name": "add", "parameters": {}}', trouble(kind)), worlds)
    assert trajectory.stop_reason is StopReason.env_error
    assert says in trajectory.error
    assert trajectory.success is None
    assert len(trajectory.turns) == 1
    assert worlds.counts.open == 0


def test_a_world_that_hangs_is_stopped_in_time():
    worlds = IsolatedWorlds(NAME, step_seconds=0.6)
    before = time.monotonic()
    trajectory = play(acting(trouble("hang")), worlds)
    assert time.monotonic() - before < 15
    assert trajectory.stop_reason is StopReason.env_error
    assert trajectory.error == "no answer to step within 0.6 s; its process was stopped"
    assert (worlds.counts.stopped, worlds.counts.open) == (1, 0)


def test_what_a_world_started_ends_with_it(tmp_path):
    where = tmp_path / "pid"
    play(acting(trouble("spawn", where), *['{"tool_name": "add", "parameters": {}}'] * 4))
    assert gone(int(where.read_text(encoding="utf-8")))


def test_slow_worlds_do_not_wait_for_each_other():
    policy = acting(trouble("sleep"), *['{"tool_name": "add", "parameters": {}}'] * 4)
    groups(WORLDS, ORACLE, NAME)  # the host is there
    before = time.monotonic()
    played = groups(WORLDS, policy, NAME, attempts=4)
    assert time.monotonic() - before < 0.5 * 24 / 2
    assert all(t.success for group in played for t in group.trajectories)


@pytest.mark.parametrize("isolated", [False, True])
@pytest.mark.parametrize(
    "answer",
    [
        "short",
        "no text",
        "not a number",
        "text for a number",
        "text for a flag",
        "text for success",
        "no mapping",
        "odd parameters",
        "unpicklable",
    ],
)
def test_an_answer_that_no_world_gives_is_never_scored(isolated, answer):
    world = WORLDS() if isolated else make_env(NAME)
    trajectory = asyncio.run(run_episode(world, TASKS[0], acting(answer), Limits(), EpisodeKey("t", 1)))
    assert trajectory.stop_reason is StopReason.env_error
    assert trajectory.success is None
    assert Rubric().score(trajectory).reward is None
    assert not trajectory.turns


def test_the_next_world_is_tried_where_one_failed_and_the_record_says_so():
    def script(world, rng, earlier):
        first = not seen and not earlier
        seen.append(1)
        return trouble("die") if first else oracle_script(world, rng, earlier)

    seen = []
    played = groups(WORLDS, ScriptedPolicy("p", script), NAME, attempts=1)
    tried = [group.trajectories[0] for group in played]
    assert all(t.success for t in tried)
    assert sorted(t.retries for t in tried) == [0, 0, 0, 0, 0, 1]
    for trajectory in tried:
        assert ("SIGSEGV" in (trajectory.error or "")) == bool(trajectory.retries)


def test_two_hundred_episodes_leave_no_process_thread_or_open_file():
    def held():
        children = Path(f"/proc/{worlds.host_pid}/task/{worlds.host_pid}/children").read_text()
        return children, threading.active_count(), len(os.listdir("/proc/self/fd"))

    worlds = IsolatedWorlds(NAME, step_seconds=8.0)
    groups(worlds, ORACLE, NAME, attempts=1)
    before = held()
    groups(worlds, ORACLE, NAME, attempts=34)
    assert held() == before
    assert worlds.counts.started >= 210


def test_episodes_are_played_and_stopped_in_time_in_any_thread():
    worlds = IsolatedWorlds(NAME, step_seconds=0.6)
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(play, ORACLE, WORLDS).result().success
        assert "within 0.6 s" in pool.submit(play, acting(trouble("hang")), worlds).result().error


def test_a_world_that_cannot_be_made_fails_its_episodes_only():
    made = []

    def make():
        made.append(1)
        if len(made) == 1:
            raise ConnectionError("no licence left")
        return make_env(NAME)

    first = groups(make, ORACLE, NAME, attempts=1, retries=0)[0].trajectories[0]
    assert first.stop_reason is StopReason.env_error
    assert "no licence left" in first.error


def test_the_host_is_started_anew_when_it_was_killed():
    worlds = IsolatedWorlds(NAME, step_seconds=7.0)
    assert play(ORACLE, worlds).success
    os.kill(worlds._host._popen.pid, signal.SIGKILL)
    worlds._host._popen.wait()
    assert play(ORACLE, worlds).stop_reason is StopReason.env_error
    assert play(ORACLE, worlds).success
    assert worlds.counts.open == 0


def test_a_host_that_was_killed_takes_its_episodes_along_and_the_next_one_is_not_asked_for_them():
    async def play_on():
        old, young = worlds(), worlds()
        await old.reset(seed=1, options={"task": TASKS[0]})
        hanging = asyncio.ensure_future(old.step(trouble("hang")))
        await asyncio.sleep(0.3)
        pid = old._process.pid
        os.kill(worlds.host_pid, signal.SIGKILL)
        worlds._host._popen.wait()
        with pytest.raises(WorldCrashed):
            await young.reset(seed=1, options={"task": TASKS[0]})
        await young.reset(seed=1, options={"task": TASKS[0]})
        with pytest.raises(WorldCrashed, match="died in step"):
            await hanging
        observation, *_ = await young.step('{"tool_name": "add", "parameters": {}}')
        await young.close()
        return observation, pid

    worlds = IsolatedWorlds(NAME, step_seconds=21.0)
    observation, pid = asyncio.run(play_on())
    assert observation.startswith("now 1,")
    assert gone(pid)
    assert worlds.counts.open == 0


def test_nothing_outlives_a_program_that_is_killed(tmp_path):
    where = tmp_path / "pid"
    code = f"""
import asyncio
from palestra.envs import IsolatedWorlds, make_env
async def main():
    world = IsolatedWorlds({NAME!r}, step_seconds=60.0)()
    await world.reset(seed=1, options={{"task": make_env({NAME!r}).make_task(1)}})
    await world.step({trouble("spawn", where)!r})
    print(world._process.pid, world._host._popen.pid, flush=True)
    await world.step({trouble("hang")!r})
asyncio.run(main())
"""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as program:
        pids = [int(pid) for pid in program.stdout.readline().split()]
        program.kill()
    assert all(gone(pid) for pid in [*pids, int(where.read_text(encoding="utf-8"))])


def test_a_world_asked_before_it_was_reset_says_so():
    with pytest.raises(WorldError, match="call reset"):
        asyncio.run(WORLDS().step("x"))
