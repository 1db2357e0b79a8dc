"""Many episodes at once: groups of attempts, run concurrently, returned in the order asked for.

Each attempt gets a fresh world. One that fails in its world is tried once more on another fresh world,
then kept as an ``env_error``; siblings never notice. A run in which more than a fifth of the episodes
fail stops with the first traceback, because its numbers would mean nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from palestra.errors import TooManyFailures
from palestra.policy import Policy
from palestra.rewards import Rubric
from palestra.rollout.episode import EpisodeKey, run_episode
from palestra.rollout.limits import Limits
from palestra.types import StopReason, Task, Trajectory, TrajectoryGroup

MAX_FAILED_SHARE = 0.2
"""Share of episodes that may end in ``env_error``."""


@dataclass(frozen=True)
class Rollout:
    """What every episode of a collection shares."""

    make_world: Callable[[], Any]
    """A fresh world per attempt."""
    policy: Policy
    rubric: Rubric
    limits: Limits
    concurrency: int = 64
    """Most episodes at once."""
    retries: int = 1
    """Fresh worlds to try after an ``env_error``."""


def collect_groups(
    rollout: Rollout,
    tasks: Sequence[Task],
    group_size: int,
    *,
    stage: str,
    seed: int,
    progress: Callable[[Trajectory], None] | None = None,
) -> list[TrajectoryGroup]:
    """Attempt every task ``group_size`` times and score the results.

    Args:
        rollout: worlds, policy, rubric and limits.
        tasks: one group each; the same task may come twice.
        group_size: attempts per task.
        stage: prefix of the ids, such as ``rl/12``.
        seed: makes the policy's samples reproducible.
        progress: told of each finished trajectory.

    Raises:
        TooManyFailures: over a fifth of the episodes ended in ``env_error``.
    """
    return asyncio.run(_collect(rollout, tasks, group_size, stage, seed, progress or (lambda _: None)))


async def _collect(
    rollout: Rollout,
    tasks: Sequence[Task],
    group_size: int,
    stage: str,
    seed: int,
    progress: Callable[[Trajectory], None],
) -> list[TrajectoryGroup]:
    gate = asyncio.Semaphore(rollout.concurrency)

    async def attempt(group: int, index: int) -> Trajectory:
        async with gate:
            key = EpisodeKey(f"{stage}/{group}/{index}", (seed * 100_003 + group) * 1_009 + index)
            trajectory = await _with_retries(rollout, tasks[group], key)
        progress(trajectory)
        return trajectory

    flat = await asyncio.gather(*(attempt(g, i) for g in range(len(tasks)) for i in range(group_size)))
    _refuse_many_failures(flat)
    return [
        TrajectoryGroup(f"{stage}/{g}", task, tuple(flat[g * group_size : (g + 1) * group_size]))
        for g, task in enumerate(tasks)
    ]


async def _with_retries(rollout: Rollout, task: Task, key: EpisodeKey) -> Trajectory:
    for retry in range(rollout.retries + 1):
        again = replace(key, id=key.id if retry == 0 else f"{key.id}-retry{retry}")
        trajectory = await run_episode(rollout.make_world(), task, rollout.policy, rollout.limits, again)
        if trajectory.stop_reason is not StopReason.env_error:
            break
    return rollout.rubric.score(replace(trajectory, id=key.id))


def _refuse_many_failures(trajectories: Sequence[Trajectory]) -> None:
    failed = [t for t in trajectories if t.stop_reason is StopReason.env_error]
    if len(failed) > MAX_FAILED_SHARE * len(trajectories):
        raise TooManyFailures(
            f"{len(failed)} of {len(trajectories)} episodes failed in their world, more than "
            f"{MAX_FAILED_SHARE:.0%}. First: {failed[0].id} on {failed[0].task.id}:\n{failed[0].error}"
        )
