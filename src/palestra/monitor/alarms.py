"""The words of monitoring: a window on a run, a detector, what it found, an alarm."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from palestra.types import Trajectory, TrajectoryGroup

Row = Mapping[str, float]
"""One update's metrics."""
REPLAYED = 5
"""Episodes that a finding names at most."""


@dataclass(frozen=True)
class Window:
    """What a detector may look at: a stage up to one of its updates."""

    stage: str
    rows: Sequence[Row]
    """Metrics of the stage's updates, oldest first; the last one is looked at."""
    groups: Sequence[TrajectoryGroup] = ()
    """What the last update collected; empty where it is not at hand."""
    weights: Mapping[str, float] = field(default_factory=dict)
    """The rubric's weight of each reward part."""

    @property
    def scored(self) -> list[Trajectory]:
        """The last update's episodes that have a reward and took a turn."""
        return [t for group in self.groups for t in group.trajectories if t.reward is not None and t.turns]

    def values(self, name: str) -> list[float]:
        """A metric's values, oldest first, where it was measured and is a number."""
        return [row[name] for row in self.rows if math.isfinite(row.get(name, math.nan))]

    def early(self, name: str, count: int = 3) -> float | None:
        """Mean of a metric's first ``count`` values; None with fewer than twice as many."""
        found = self.values(name)
        return sum(found[:count]) / count if len(found) >= 2 * count else None

    def late(self, name: str, count: int = 3) -> float | None:
        """Mean of a metric's last ``count`` values; None with fewer."""
        found = self.values(name)
        return sum(found[-count:]) / count if len(found) >= count else None


@dataclass(frozen=True, slots=True)
class Finding:
    """What a detector saw."""

    evidence: str
    """The numbers, in a sentence."""
    replay: tuple[str, ...] = ()
    """Ids of episodes that show it."""


@dataclass(frozen=True, slots=True)
class Detector:
    """A rule with what is likely behind it and what to do."""

    name: str
    symptom: str
    cause: str
    remedy: str
    look: Callable[[Window], Finding | None]


@dataclass(frozen=True, slots=True)
class Alarm:
    """A detector's finding in a run. Plain values, so that it can be stored as a line of JSON."""

    detector: str
    stage: str
    update: int
    symptom: str
    evidence: str
    cause: str
    remedy: str
    replay: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Change:
    """What training changed by itself. Plain values, so that it can be stored as a line of JSON."""

    setting: str
    """What was changed; ``weights of update`` where those of an earlier update were put back."""
    before: float
    after: float
    reason: str
