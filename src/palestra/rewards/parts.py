"""Reward parts: what a finished trajectory earned, each part a number on its own stated scale.

A builtin part looks only at the facts the world reported, never at text, and says *where* it was earned: one
contribution per turn, which add up to the part. ``None`` means the part could not be measured.
The surprising choice: efficiency is paid only on success, so that giving up early never pays.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

from palestra.types import Trajectory

Contributions = list[float]
"""One number per turn; their sum is the part."""


PREFERENCE = "preference"
"""Name of the part that a reward model fills."""


@dataclass(frozen=True, slots=True)
class RewardPart:
    """A named part with the range its value always lies in."""

    name: str
    """As in ``Trajectory.reward_parts`` and the rubric's weights."""
    low: float
    """Smallest value."""
    high: float
    """Largest value."""
    measure: Callable[[Trajectory], Contributions | None]
    """Per-turn contributions, or None where it cannot be measured."""


def outcome(trajectory: Trajectory) -> Contributions | None:
    """1 on the last turn of a success, else 0. Range 0 to 1."""
    if trajectory.success is None:
        return None
    return _on_last(trajectory, float(trajectory.success))


def process(trajectory: Trajectory) -> Contributions | None:
    """Share of the task's milestones, each on the turn whose change of state reached it. Range 0 to 1."""
    if not trajectory.milestones:
        return None
    share = 1.0 / len(trajectory.milestones)
    return [share * len(turn.facts.new_milestones) for turn in trajectory.turns]


def format_compliance(trajectory: Trajectory) -> Contributions | None:
    """Mean over turns of 1 for a strict valid action, 0.5 for a repaired one, 0 for an invalid one."""
    count = len(trajectory.turns)
    points = {"strict": 1.0, "repaired": 0.5, "error": 0.0}
    return [(points[turn.facts.parse_tier] if turn.facts.valid else 0.0) / count for turn in trajectory.turns]


def efficiency(trajectory: Trajectory) -> Contributions | None:
    """Optimal over actual turns, on success only and at most 1. Range 0 to 1; None without an optimum."""
    optimal = trajectory.task.optimal_turns
    if optimal is None or trajectory.success is None:
        return None
    return _on_last(trajectory, trajectory.success * min(1.0, optimal / max(len(trajectory.turns), 1)))


def repetition(trajectory: Trajectory) -> Contributions | None:
    """Share of turns that repeat an action from an unchanged state. Range 0 to 1; weigh it negatively."""
    count = len(trajectory.turns)
    return [float(turn.facts.repeated) / count for turn in trajectory.turns]


def preference(score: Callable[[Trajectory], float | None]) -> RewardPart:
    """What a model of preferences thinks of the whole attempt, on its last turn. Range 0 to 1.

    Args:
        score: from an attempt to a number from 0 to 1, or None where it cannot be read. It comes from above,
            so that rewards need no model.
    """
    return RewardPart(PREFERENCE, 0.0, 1.0, partial(_judged, score))


def _judged(score: Callable[[Trajectory], float | None], trajectory: Trajectory) -> Contributions | None:
    value = score(trajectory)
    return None if value is None else _on_last(trajectory, value)


def _on_last(trajectory: Trajectory, value: float) -> Contributions:
    return [0.0] * (len(trajectory.turns) - 1) + [value] if trajectory.turns else []


BUILTIN_PARTS: Mapping[str, RewardPart] = {
    part.name: part
    for part in (
        RewardPart("outcome", 0.0, 1.0, outcome),
        RewardPart("process", 0.0, 1.0, process),
        RewardPart("format", 0.0, 1.0, format_compliance),
        RewardPart("efficiency", 0.0, 1.0, efficiency),
        RewardPart("repetition", 0.0, 1.0, repetition),
    )
}
