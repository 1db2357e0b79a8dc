"""How a policy fares under faults: on the same tasks with nothing wrong, and with one kind of fault each.

Recovery counts only episodes in which the agent saw the fault and had an action left: where a fault never
came, there was nothing to recover from.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from palestra.evaluation.metrics import is_scored
from palestra.evaluation.statistics import PairedDifference, paired_difference, wilson_interval
from palestra.types import Trajectory


@dataclass(frozen=True)
class FaultResult:
    """What one kind of fault did."""

    kind: str
    episodes: int
    """Scored ones."""
    landed: int
    """Of these, where the agent saw the fault before the end."""
    success: float | None
    """Over all scored episodes."""
    recovery: float | None
    """Success where it landed; None if it never did."""
    recovery_ci95: tuple[float, float] | None
    """Wilson."""
    turns_to_recover: float | None
    """Actions beyond those of the same task without a fault, where both succeeded; None if nowhere."""
    against_clean: PairedDifference | None
    """Of success, where it landed, from the same tasks without faults."""

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return asdict(self)


def fault_results(
    clean: Sequence[Trajectory], faulty: Mapping[str, Sequence[Trajectory]]
) -> list[FaultResult]:
    """Each kind's result, one attempt a task.

    Args:
        clean: attempts without faults.
        faulty: attempts at the same tasks by kind of fault.
    """
    plain = {each.task.id: each for each in clean if is_scored(each)}
    return [_result(kind, [t for t in played if is_scored(t)], plain) for kind, played in faulty.items()]


def fault_landed(trajectory: Trajectory) -> bool:
    """Whether the agent saw a fault and acted after it."""
    return any(turn.facts.fault is not None for turn in trajectory.turns[:-1])


def _result(kind: str, scored: Sequence[Trajectory], plain: Mapping[str, Trajectory]) -> FaultResult:
    landed = [each for each in scored if fault_landed(each)]
    won = sum(bool(each.success) for each in landed)
    pairs = [(each, plain[each.task.id]) for each in landed if each.task.id in plain]
    longer = [len(a.turns) - len(b.turns) for a, b in pairs if a.success and b.success]
    return FaultResult(
        kind=kind,
        episodes=len(scored),
        landed=len(landed),
        success=_mean([float(bool(each.success)) for each in scored]),
        recovery=won / len(landed) if landed else None,
        recovery_ci95=wilson_interval(won, len(landed)),
        turns_to_recover=_mean([float(value) for value in longer]),
        against_clean=paired_difference(
            {b.task.id: float(bool(b.success)) for _, b in pairs},
            {a.task.id: float(bool(a.success)) for a, _ in pairs},
            seed=0,
        )
        if len(pairs) > 1
        else None,
    )


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None
