"""What an audit finds: a symptom with numbers, an attempt that shows it, and what to do about it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Severity = Literal["error", "warning"]
"""An error lets a policy be paid for what is no success, or makes numbers wrong; a warning wants a look."""


@dataclass(frozen=True, slots=True)
class Step:
    """One action of an attempt."""

    action: str
    observation: str
    reward: float
    """What ``step`` returned."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """A scripted episode, which the same actions bring about again."""

    seed: int
    """Of ``reset``, and of the task."""
    task: str
    """Its id, or the seed's number where the world has no tasks."""
    steps: tuple[Step, ...]
    total: float
    """What is trained on: the rubric's reward, or the sum of the world's own."""
    success: bool | None
    """None where the world does not say."""
    ended: bool
    """Whether the world ended it."""
    milestones: tuple[tuple[str, ...], ...] = ()
    """New ones of each step."""
    parts: tuple[tuple[str, float | None], ...] = ()
    """The rubric's parts, unweighted."""
    hashes: tuple[str, ...] = ()
    """The state's after each step, where the world says."""
    failed: str = ""
    """What the world raised, which ended it; it earned nothing then."""

    @property
    def actions(self) -> tuple[str, ...]:
        """What was done."""
        return tuple(step.action for step in self.steps)


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong."""

    check: str
    """Which check found it."""
    severity: Severity
    symptom: str
    remedy: str
    evidence: Attempt | None = None
    """An attempt that shows it; None where a sentence is all."""
