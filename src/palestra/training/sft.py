"""Imitation: the learner's update with demonstrations as rows and an advantage of 1.

The same masks, batches and learner as reinforcement learning; only the loss differs. Rows are shuffled
by seed and epoch, so the order does not depend on what ran before.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from palestra.errors import ConfigError
from palestra.training.learner import Learner
from palestra.training.losses import imitation_loss
from palestra.types import Segment, Trajectory


@dataclass(frozen=True)
class SftSettings:
    """How to imitate."""

    epochs: int
    rows_per_update: int
    learning_rate: float
    """Peak; warms up over a tenth of the updates and falls linearly to a tenth."""
    seed: int


def imitation_weights(trajectory: Trajectory) -> list[float]:
    """One weight a turn of a demonstration: 0 for an action that was refused or repeated, else 1.

    A mistake is read and not learned, so what is learned from it is the action that comes after.
    """
    return [float(turn.facts.valid and not turn.facts.repeated) for turn in trajectory.turns]


def supervised_share(segments: Sequence[Segment]) -> float:
    """Share of tokens that are trained on.

    Raises:
        ConfigError: none is, so the loss would be 0 and the run would look fine.
    """
    total = sum(len(segment.ids) for segment in segments)
    trained = sum(advantage != 0 for segment in segments for advantage in segment.advantages)
    if trained == 0:
        raise ConfigError(
            f"None of {total} tokens in {len(segments)} demonstrations would be learned: the chat template "
            "masks every label, or every turn was refused. Check that the demonstrations have right turns "
            "and that the template renders them."
        )
    return trained / total


def imitate(
    learner: Learner,
    segments: Sequence[Segment],
    settings: SftSettings,
    report: Callable[[int, int, dict[str, float]], None],
) -> None:
    """Train on ``segments``; ``report`` gets update number, number of updates and metrics after each."""
    supervised_share(segments)
    per_epoch = -(-len(segments) // settings.rows_per_update)
    total = per_epoch * settings.epochs
    update = 0
    for epoch in range(settings.epochs):
        order = list(range(len(segments)))
        random.Random(f"sft:{settings.seed}:{epoch}").shuffle(order)
        for start in range(0, len(order), settings.rows_per_update):
            update += 1
            rows = [segments[index] for index in order[start : start + settings.rows_per_update]]
            metrics = learner.update(
                rows, imitation_loss, warmed_rate(update / total, settings.learning_rate)
            )
            report(update, total, {"loss/sft": metrics.pop("loss/total"), **metrics})


def warmed_rate(progress: float, peak: float) -> float:
    """The learning rate after a share of the updates: up over a tenth of them, then down to a tenth."""
    return peak * min(progress / 0.1, 1.0) * (1.0 - 0.9 * progress)
