"""The curriculum of an online stage: how long episodes may be, how hard tasks are, which come more often."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from palestra.pipeline.config import CurriculumConfig
from palestra.tasks import Ladder, TaskWeights
from palestra.types import Task, Trajectory, TrajectoryGroup


class Curriculum:
    """What changes from update to update, told by how they went; its state is in every checkpoint."""

    def __init__(self, config: CurriculumConfig | None = None, weights: TaskWeights | None = None) -> None:
        """Ladders as configured, and the weights of a pool of tasks if there is one."""
        self.weights = weights
        self._ladders: dict[str, Ladder] = {}
        if config is not None:
            for name, steps in (("max_turns", config.max_turns), ("difficulty", config.difficulty)):
                if steps:
                    self._ladders[name] = Ladder(
                        steps, config.by, after=config.after, threshold=config.threshold
                    )

    @property
    def max_turns(self) -> int | None:
        """The turn limit of this update; None leaves it as it is."""
        return self._value("max_turns")

    @property
    def difficulty(self) -> int | None:
        """The level of this update's tasks; None leaves it as it is."""
        return self._value("difficulty")

    def metrics(self) -> dict[str, float]:
        """The steps that this update is on, and whether they are the last ones."""
        if not self._ladders:
            return {}
        complete = all(ladder.value == ladder.steps[-1] for ladder in self._ladders.values())
        steps = {f"curriculum/{name}": float(ladder.value) for name, ladder in self._ladders.items()}
        return steps | {"curriculum/complete": float(complete)}

    def observe(self, groups: Sequence[TrajectoryGroup]) -> None:
        """Learn how an update went."""
        if self.weights is not None:
            weigh(self.weights, groups)
        scored = _scored([t for group in groups for t in group.trajectories])
        success = _share([bool(t.success) for t in scored])
        cut = _share([t.stop_reason.is_truncation for t in scored])
        for ladder in self._ladders.values():
            ladder.observe(success, cut)

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps."""
        ladders = {name: ladder.state() for name, ladder in self._ladders.items()}
        return {"weights": self.weights.state() if self.weights else {}, "ladders": ladders}

    def load(self, state: Mapping[str, Any]) -> None:
        """Continue from ``state()``."""
        if self.weights is not None:
            self.weights.load(state["weights"])
        for name, ladder in self._ladders.items():
            ladder.load(state["ladders"][name])

    def _value(self, name: str) -> int | None:
        return self._ladders[name].value if name in self._ladders else None


def quarantine(groups: Sequence[TrajectoryGroup]) -> tuple[list[TrajectoryGroup], list[Task]]:
    """The groups that can be learned from, and the tasks whose world failed in every attempt.

    Such a task looks like the hardest of all, and would be drawn again and again.
    """
    bad = [group.task for group in groups if all(t.success is None for t in group.trajectories)]
    return [group for group in groups if group.task not in bad], bad


def weigh(weights: TaskWeights, groups: Sequence[TrajectoryGroup]) -> None:
    """Tell the weights how groups went."""
    for group in groups:
        scored = _scored(group.trajectories)
        weights.observe(group.task.id, sum(bool(t.success) for t in scored), len(scored))


def _scored(trajectories: Sequence[Trajectory]) -> list[Trajectory]:
    return [each for each in trajectories if each.success is not None]


def _share(flags: Sequence[bool]) -> float | None:
    return sum(flags) / len(flags) if flags else None
