"""Before and after side by side: one row a metric, and whether the change in success is real.

Built on finished episodes of two runs over the same tasks. The one surprising choice: only success gets a
test; the other rows explain the change and are not to be fished for significance.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from palestra.evaluation.metrics import EvalReport, evaluate_trajectories, task_success
from palestra.evaluation.statistics import PairedDifference, paired_difference
from palestra.types import Trajectory

COMPARED = (
    "success",
    "turns",
    "invalid_actions",
    "repeated_actions",
    "truncated_actions",
    "action_tokens",
    "format_compliance",
    "tool_call_accuracy",
    "step_efficiency",
    "recovery",
    "reward",
)
"""Metrics that get a row, each a field of ``EvalReport``."""


@dataclass(frozen=True, slots=True)
class ComparisonRow:
    """One metric before and after; None where it could not be measured."""

    metric: str
    before: float | None
    after: float | None

    @property
    def change(self) -> float | None:
        """After minus before, in the metric's own unit."""
        return None if self.before is None or self.after is None else self.after - self.before


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two evaluations over the same tasks."""

    before: EvalReport
    after: EvalReport
    success: PairedDifference
    """Task by task."""

    @property
    def rows(self) -> tuple[ComparisonRow, ...]:
        """A row for each of ``COMPARED``."""
        return tuple(
            ComparisonRow(name, getattr(self.before, name), getattr(self.after, name)) for name in COMPARED
        )


def compare(before: Sequence[Trajectory], after: Sequence[Trajectory], seed: int) -> Comparison:
    """Compare two evaluations; ``seed`` is that of the resampling.

    Raises:
        ConfigError: if they were not made on the same tasks.
    """
    return Comparison(
        before=evaluate_trajectories(before),
        after=evaluate_trajectories(after),
        success=paired_difference(task_success(before), task_success(after), seed),
    )
