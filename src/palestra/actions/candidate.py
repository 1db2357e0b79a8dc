"""What the format readers hand over: a call as it was written, and where it stood in the text.

Flow: a format reader gives ``Candidate`` records; ``schema`` turns each ``RawCall`` into a ``ToolCall`` or
an error; ``parse`` decides which candidate counts. The surprising choice: an unreadable call is a candidate
too, so that a broken second call is reported without voiding the first.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from palestra.errors import ActionError


@dataclass(frozen=True, slots=True)
class RawCall:
    """A call before any schema was looked at.

    Example: ``RawCall("search", {"query": "x"})``
    """

    name: str
    """As written, declared or not."""
    parameters: dict[str, Any]
    """As written; strings where the format has nothing else."""
    reasoning: str | None = None
    """From the call itself, such as a ``reasoning`` key or a ReAct thought."""
    notes: tuple[str, ...] = ()
    """What had to be repaired to read it."""
    stray: tuple[str, ...] = ()
    """Keys beside the name and the parameters that no known shape has."""
    has_parameters: bool = True
    """False when the text had no place for parameters at all."""
    textual: bool = False
    """True when every parameter is raw text whose type only the schema tells (XML)."""
    duplicate: str | None = None
    """A key given twice with different values."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A call, or the error it is, with its span in the text."""

    start: int
    """Offset of its first character."""
    end: int
    """Offset after its last character, or where reading failed."""
    call: RawCall | ActionError
    """What was found there."""


def candidates(start: int, end: int, calls: Iterable[RawCall | ActionError]) -> list[Candidate]:
    """Several calls that share one span."""
    return [Candidate(start, end, call) for call in calls]


def noted(found: Iterable[Candidate], note: str) -> list[Candidate]:
    """The same candidates, with one more note on each call that was read."""
    return [
        replace(candidate, call=replace(candidate.call, notes=(*candidate.call.notes, note)))
        if isinstance(candidate.call, RawCall)
        else candidate
        for candidate in found
    ]
