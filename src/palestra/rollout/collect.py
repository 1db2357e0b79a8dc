"""Many episodes at once: groups of attempts, run concurrently, returned in the order asked for.

Each attempt gets a fresh world. One that fails in it, or in its model server, is tried once more on another
fresh world, then kept as an ``env_error``; siblings never notice. A run in which more than a fifth of the
episodes fail stops with the first traceback, because its numbers would mean nothing.
"""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from palestra.errors import PalestraError, TooManyFailures, WorldCrashed
from palestra.policy import Policy
from palestra.rewards import Rubric
from palestra.rollout.episode import EpisodeKey, World, run_episode
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
    progress: Callable[[StopReason], None] | None = None,
) -> list[TrajectoryGroup]:
    """Attempt every task ``group_size`` times and score the results; see ``collect_share``.

    Raises:
        TooManyFailures: over a fifth of the episodes ended in ``env_error``.
    """
    numbered = list(enumerate(tasks))
    groups = collect_share(rollout, numbered, group_size, stage=stage, seed=seed, progress=progress)
    refuse_many_failures(groups)
    return groups


def collect_share(
    rollout: Rollout,
    numbered: Sequence[tuple[int, Task]],
    group_size: int,
    *,
    stage: str,
    seed: int,
    progress: Callable[[StopReason], None] | None = None,
) -> list[TrajectoryGroup]:
    """Attempt some tasks of a collection ``group_size`` times and score the results.

    Args:
        rollout: worlds, policy, rubric and limits.
        numbered: tasks with their numbers in the whole collection, from which ids and seeds follow; one
            group each, and the same task may come twice.
        group_size: attempts per task.
        stage: prefix of the ids, such as ``rl/12``.
        seed: makes the policy's samples reproducible.
        progress: told how each episode ended.
    """
    return asyncio.run(_collect(rollout, numbered, group_size, stage, seed, progress or (lambda _: None)))


async def _collect(
    rollout: Rollout,
    numbered: Sequence[tuple[int, Task]],
    group_size: int,
    stage: str,
    seed: int,
    progress: Callable[[StopReason], None],
) -> list[TrajectoryGroup]:
    gate = asyncio.Semaphore(rollout.concurrency)

    async def attempt(number: int, task: Task, index: int) -> Trajectory:
        async with gate:
            key = EpisodeKey(f"{stage}/{number}/{index}", (seed * 100_003 + number) * 1_009 + index)
            try:
                trajectory = await _with_retries(rollout, task, key)
            except Exception as error:
                error.add_note(f"in episode {key.id} of task {task.id}")
                raise
        progress(trajectory.stop_reason)
        return trajectory

    flat = await asyncio.gather(
        *(attempt(number, task, index) for number, task in numbered for index in range(group_size))
    )
    return [
        TrajectoryGroup(f"{stage}/{number}", task, tuple(flat[place * group_size : (place + 1) * group_size]))
        for place, (number, task) in enumerate(numbered)
    ]


async def _with_retries(rollout: Rollout, task: Task, key: EpisodeKey) -> Trajectory:
    error: str | None = None
    for retry in range(rollout.retries + 1):
        again = replace(key, id=key.id if retry == 0 else f"{key.id}-retry{retry}")
        trajectory = await run_episode(_made(rollout), task, rollout.policy, rollout.limits, again)
        if trajectory.stop_reason is not StopReason.env_error:
            break
        error = trajectory.error
    return rollout.rubric.score(replace(trajectory, id=key.id, retries=retry, error=error))


def _made(rollout: Rollout) -> World:
    try:
        return rollout.make_world()  # type: ignore[no-any-return]
    except PalestraError:
        raise
    except Exception:
        return _Unmade(traceback.format_exc())


class _Unmade:
    """In place of a world that could not be made: its episode fails, and others go on."""

    system_prompt = ""
    milestones: Mapping[str, Any] = {}

    def __init__(self, error: str) -> None:
        self._error = error

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        raise WorldCrashed(f"the world could not be made:\n{self._error}")

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        raise NotImplementedError

    def close(self) -> None:
        """There is nothing to close."""


def refuse_many_failures(groups: Sequence[TrajectoryGroup]) -> None:
    """Stop where failures are too many for the rest to mean anything.

    Raises:
        TooManyFailures: over a fifth of the episodes ended in ``env_error``.
    """
    trajectories = [trajectory for group in groups for trajectory in group.trajectories]
    failed = [t for t in trajectories if t.stop_reason is StopReason.env_error]
    if len(failed) > MAX_FAILED_SHARE * len(trajectories):
        raise TooManyFailures(
            f"{len(failed)} of {len(trajectories)} episodes failed in their world or model server, more than "
            f"{MAX_FAILED_SHARE:.0%}. First: {failed[0].id} on {failed[0].task.id}:\n{failed[0].error}"
        )
