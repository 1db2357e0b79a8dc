"""Hard-example weights: tasks that are rarely solved come more often.

Late in training most tasks are solved and teach nothing; this keeps the rest in play. The one surprising
choice: an unseen task counts as half solved (one success in two attempts is assumed), so it is neither
shunned nor preferred before it was tried.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

from palestra.errors import ConfigError
from palestra.types import Task

FLOOR = 0.1
"""Weight that even an always solved task keeps, so that forgetting is noticed."""


class TaskWeights:
    """Draws tasks with weight ``0.1 + (1 - estimated success)``."""

    def __init__(self, tasks: Sequence[Task]) -> None:
        """Start with all ``tasks`` equal.

        Raises:
            ConfigError: for no tasks, or two with one id.
        """
        self._tasks = {task.id: task for task in tasks}
        if not tasks or len(self._tasks) < len(tasks):
            raise ConfigError(
                f"weights need tasks with different ids; got {len(tasks)}, {len(self._tasks)} different"
            )
        self._counts = {task.id: (0, 0) for task in tasks}

    @property
    def size(self) -> int:
        """How many tasks there are."""
        return len(self._tasks)

    def next(self, rng: random.Random) -> Task:
        """One task, drawn by weight with ``rng``."""
        ids = list(self._tasks)
        return self._tasks[rng.choices(ids, [self.weight(task_id) for task_id in ids])[0]]

    def observe(self, task_id: str, successes: int, attempts: int) -> None:
        """Record how a task went; ids of other sources are ignored.

        Raises:
            ValueError: for more successes than attempts, or negative counts.
        """
        if not 0 <= successes <= attempts:
            raise ValueError(f"{successes} successes in {attempts} attempts at {task_id!r}")
        if task_id in self._counts:
            solved, tried = self._counts[task_id]
            self._counts[task_id] = (solved + successes, tried + attempts)

    def weight(self, task_id: str) -> float:
        """The weight of a task: 1.1 if never solved in the long run, 0.1 if always."""
        solved, tried = self._counts[task_id]
        return FLOOR + 1 - (solved + 1) / (tried + 2)

    def state(self) -> dict[str, list[int]]:
        """Plain counts for a checkpoint: ``id -> [successes, attempts]`` of the tasks that were tried."""
        return {task_id: list(counts) for task_id, counts in self._counts.items() if counts[1]}

    def load(self, state: Mapping[str, Sequence[int]]) -> None:
        """Continue from ``state()``; ids that are no longer among the tasks are ignored."""
        self._counts = dict.fromkeys(self._tasks, (0, 0))
        for task_id, (successes, attempts) in state.items():
            self.observe(task_id, successes, attempts)
