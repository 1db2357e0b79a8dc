"""What the online loop is given: its numbers and the things it drives."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from palestra.monitor import Alarm, Change, Guards
from palestra.store import RunFolder
from palestra.training.controls import Controls
from palestra.training.critic import Critic
from palestra.training.learner import Learner
from palestra.training.losses import LossFunction
from palestra.types import Segment, Task, TrajectoryGroup

RowMaker = Callable[[Sequence[TrajectoryGroup]], tuple[list[Segment], dict[str, float]]]
"""Scored groups to rows with advantages, and metrics."""


@dataclass(frozen=True)
class Sampled:
    """A collection that was played."""

    groups: list[TrajectoryGroup]
    seconds: float
    """Of playing."""
    idle: float | None
    """Seconds that what plays had nothing to do before; None where it is what learns, too."""


Begin = Callable[[int, Sequence[Task], int, str, int], Callable[[], Sampled]]
"""Policy version, tasks, attempts at each, name and seed of a collection to what waits for its end."""


class WeightedEngine(Protocol):
    """What the loop needs of an engine; what ``begin`` begins samples from it."""

    def weights_changed(self, policy_version: int) -> None:
        """Told before each collection which version of the weights it is to sample from."""


class Curriculum(Protocol):
    """What the loop needs of a curriculum; ``pick_tasks`` and ``begin`` read it."""

    def metrics(self) -> dict[str, float]:
        """Where it stands, for an update's row."""

    def observe(self, groups: Sequence[TrajectoryGroup]) -> None:
        """Told after each update how its groups went."""

    def state(self) -> dict[str, Any]:
        """Plain values for a checkpoint."""

    def load(self, state: Mapping[str, Any]) -> None:
        """Continue from ``state()``."""


@dataclass(frozen=True)
class LoopSettings:
    """The numbers of a training stage."""

    stage: str
    """Name in ids, metrics and folders, such as ``rl``."""
    first_version: int
    """Online updates behind the policy when the stage starts."""
    updates: int
    group_size: int
    first_rate: float
    last_rate: float
    """Learning rate, linear from first to last."""
    minibatches: int
    """Optimiser steps per pass over a batch of episodes, each on its own part of them."""
    epochs: int
    """Passes over a batch."""
    kl_in_reward: bool
    """Whether the distance to the reference is a cost of turns; else it is a term of the loss."""
    recompute: bool
    """Whether the learner works out its own log-probabilities before the first step, to weigh a mismatch."""
    max_policy_lag: int
    """Policy versions by which an episode may be older than the policy that learns from it."""
    ahead: int
    """Batches that are begun before the update that comes first, so that sampling goes on beside learning."""
    checkpoint_every: int
    seed: int


@dataclass(frozen=True)
class LoopParts:
    """What the loop drives; built once by the pipeline."""

    run: RunFolder
    learner: Learner
    engine: WeightedEngine
    template: Any
    reference: Any
    """Frozen model that the KL is measured to."""
    make_rows: RowMaker
    """An update's groups to rows with advantages, and metrics of credit."""
    critic: Critic | None
    """Kept in checkpoints; None without one."""
    make_loss: Callable[[float, float], LossFunction]
    """Weights of KL and entropy to the loss."""
    controls: Controls
    begin: Begin
    pick_tasks: Callable[[int], list[Task]]
    """Update number to its tasks."""
    curriculum: Curriculum
    validate: Callable[[int], dict[str, float]]
    """Update number to validation metrics."""
    watch: Callable[[Mapping[str, Any], Sequence[TrajectoryGroup]], list[Alarm]]
    """Each update's row of metrics and its groups to what is wrong there."""
    guards: Guards
    """What is done about it."""
    note: Callable[[Change], None]
    """Is told of each setting that was changed."""
    report: Callable[[int, int, dict[str, float]], None]
    """Update number, number of updates, metrics."""
