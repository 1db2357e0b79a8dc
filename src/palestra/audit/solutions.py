"""What the probes share: solutions to be measured by, and how to read an attempt."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from palestra.actions import parse_action
from palestra.audit.findings import Attempt
from palestra.audit.subject import Start, Subject, replay
from palestra.errors import ActionError
from palestra.types import ToolCall

FLOOR = 0.1
"""Share of tasks that a probe may succeed on; it is more if a Wilson interval of 95 % lies above it."""
ONLY_SOLVED = ("outcome", "efficiency")
"""Parts that only a success earns."""


@dataclass(frozen=True)
class Solved:
    """What the oracle does, task by task; what probes are measured by."""

    attempts: tuple[Attempt, ...]

    @property
    def reward(self) -> float | None:
        """The mean of those that succeed; None where there is no oracle."""
        totals = [each.total for each in self.attempts if each.success]
        return sum(totals) / len(totals) if totals else None


def often(winners: Sequence[Attempt], attempts: Sequence[Attempt]) -> bool:
    """Whether more succeed than the floor allows."""
    if not attempts:
        return False
    count, share, z = len(attempts), len(winners) / len(attempts), 1.96
    middle = share + z * z / (2 * count)
    spread = z * math.sqrt(share * (1 - share) / count + z * z / (4 * count * count))
    return (middle - spread) / (1 + z * z / count) > FLOOR


def on_the_way(subject: Subject, solution: Attempt) -> float:
    """What a solution earns on its way: all that needs no success."""
    weights = subject.rubric.weights
    kept = [(name, value) for name, value in solution.parts if name not in ONLY_SOLVED and value is not None]
    return sum(weights[name] * value for name, value in kept)


def tool_of(subject: Subject, action: str) -> str:
    """The tool that an action calls; empty if it is no call."""
    call = call_in(subject, action)
    return call.tool_name if call else ""


def call_in(subject: Subject, action: str) -> ToolCall | None:
    """The call that an action makes, if it is one."""
    world = subject.tool_env
    if world is None:
        return None
    try:
        return parse_action(action, tuple(subject.tools.values()), format=world.action_format).call
    except ActionError:
        return None


def trimmed(subject: Subject, start: Start, attempt: Attempt, keeps: Callable[[Attempt], bool]) -> Attempt:
    """The attempt with all actions left out that are not needed for what it ``keeps``."""
    actions, found = list(attempt.actions), attempt
    for place in reversed(range(len(actions))):
        fewer = actions[:place] + actions[place + 1 :]
        tried = subject.play(start, replay(fewer))
        if keeps(tried):
            actions, found = fewer, tried
    return found
