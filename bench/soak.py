"""Ten thousand episodes in worlds of which one in twenty crashes, hangs or answers garbage; ``docs/evidence/soak.md``.

    python bench/soak.py            # some minutes on two cores
    python bench/soak.py --quick    # 200 episodes, writes no page

Every episode is played a second time in the healthy world, in this process, and has to be the same to the last
field unless its world failed twice; what failed has to be what the world says it made fail. Memory and open files
are read as it goes. It ends with one line of JSON: memory of this process and of the one that forks worlds behind
the last tenth (ours) and behind the first one (peer), and their ratio.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from soak_world import KINDS, RATE

from palestra.envs import IsolatedWorlds, make_env
from palestra.policy import NoisyTeacher, ScriptedPolicy
from palestra.rewards import Rubric
from palestra.rollout import Limits, Rollout, collect_groups
from palestra.tasks import GeneratedTasks
from palestra.types import StopReason, Task, Trajectory

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "evidence" / "soak.md"
WORLD = f"{ROOT / 'bench' / 'soak_world.py'}:TroubledOrders"
EPISODES, PARTS, GROUP = 10_000, 10, 4
HANGING = 5.0
"""Seconds after which a step is held to hang."""
POLICY = ScriptedPolicy("teacher", NoisyTeacher())


@dataclass(frozen=True)
class Usage:
    """What is in use after a part."""

    episodes: int
    main_mb: float
    host_mb: float
    files: int
    """Open ones of this process."""


@dataclass
class Outcome:
    """What came of the episodes."""

    episodes: int = 0
    same: int = 0
    """As in the healthy world."""
    lost: int = 0
    """Whose world failed twice."""
    retried: int = 0


def play(make_world: Any, tasks: list[Task], stage: str) -> list[Trajectory]:
    """All attempts at the tasks, in order."""
    rollout = Rollout(make_world, POLICY, Rubric(), Limits(), concurrency=32)
    groups = collect_groups(rollout, tasks, GROUP, stage=stage, seed=0)
    return [each for group in groups for each in group.trajectories]


def compare(troubled: list[Trajectory], healthy: list[Trajectory], outcome: Outcome) -> None:
    """Count; whatever is not as it has to be ends the benchmark."""
    for one, other in zip(troubled, healthy, strict=True):
        outcome.episodes += 1
        outcome.retried += one.retries
        if one.stop_reason is StopReason.env_error:
            assert (one.success, one.reward, one.retries) == (None, None, 1), one.id
            outcome.lost += 1
            continue
        assert replace(one, seconds=0.0, retries=0, error=None) == replace(other, seconds=0.0), one.id
        outcome.same += 1


def usage(episodes: int, worlds: IsolatedWorlds) -> Usage:
    """What is in use now."""
    return Usage(episodes, _mb("self"), _mb(str(worlds.host_pid)), len(os.listdir("/proc/self/fd")))


def _mb(pid: str) -> float:
    pages = int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def run(episodes: int) -> tuple[Outcome, list[Usage], Counter[str], IsolatedWorlds, float]:
    """The soak; the troubles are those that the world says it made."""
    outcome, used, spent = Outcome(), list[Usage](), 0.0
    worlds = IsolatedWorlds(WORLD, step_seconds=HANGING)
    tasks = GeneratedTasks(make_env("orders").make_task).take("train", episodes // GROUP)
    per_part = max(1, len(tasks) // PARTS)
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder, "log")
        os.environ["PALESTRA_SOAK_LOG"] = str(log)
        for first in range(0, len(tasks), per_part):
            part = tasks[first : first + per_part]
            started = time.perf_counter()
            troubled = play(worlds, part, f"s/{first}")
            spent += time.perf_counter() - started
            compare(troubled, play(lambda: make_env("orders"), part, f"s/{first}"), outcome)
            used.append(usage(outcome.episodes, worlds))
            print(f"{used[-1]}", flush=True)
        made = Counter(log.read_text(encoding="utf-8").split("\n")[:-1])
    assert sum(made.values()) == outcome.retried + outcome.lost, (made, outcome)
    assert worlds.counts.stopped == made["hang"]
    assert worlds.counts.died == made["exit"] + made["kill"]
    assert worlds.counts.open == 0
    assert worlds.counts.started == outcome.episodes + outcome.retried
    return outcome, used, made, worlds, spent


def page(
    outcome: Outcome, used: list[Usage], made: Counter[str], worlds: IsolatedWorlds, spent: float
) -> str:
    """The evidence."""
    rows = "\n".join(f"| {u.episodes:,} | {u.main_mb:.1f} | {u.host_mb:.1f} | {u.files} |" for u in used)
    troubles = ", ".join(f"{made[kind]} {kind}" for kind in KINDS)
    return f"""# Evidence: episodes in trouble

Command: `python bench/soak.py`. {outcome.episodes:,} episodes of the noisy teacher in `orders`, 32 at a time, each in a process
of its own (`world.isolation`). About {RATE:.0%} of worlds crash, hang or answer garbage, at random; a step that takes over
{HANGING:g} s is held to hang.

- Troubles that happened: {sum(made.values()):,} ({troubles}).
- Episodes that came out exactly as in the healthy world: {outcome.same:,}, of which {outcome.retried - outcome.lost:,} on a second world.
- Episodes whose world failed twice, kept as `env_error` and not scored: {outcome.lost:,}. Together that is all.
- Processes: {worlds.counts.started:,} started, {worlds.counts.died:,} died, {worlds.counts.stopped:,} stopped because they hung,
  {worlds.counts.open} left.
- {outcome.episodes / spent:.0f} episodes a second, hangs included.

| episodes | memory of the player, MB | of the process that forks, MB | open files |
|---|---|---|---|
{rows}

Measured on {platform.system()} {platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}.
"""


def main() -> None:
    """Soak, write the page, print the line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    quick = parser.parse_args().quick
    found = run(200 if quick else EPISODES)
    if not quick:
        PAGE.write_text(page(*found), encoding="utf-8")
    used = found[1]
    ours, peer = used[-1].main_mb + used[-1].host_mb, used[0].main_mb + used[0].host_mb
    print(json.dumps({"ours": round(ours, 1), "peer": round(peer, 1), "ratio": round(ours / peer, 3)}))


if __name__ == "__main__":
    main()
