"""A model's text as an action, or the error the model sees: the entry of this package.

Flow: reasoning off, candidates from the format's reader, the first one through the schema. Everything here
is linear in the text, evaluates nothing and raises nothing but ``ActionError`` for whatever text comes.

The surprising choice: a text cut at the length limit is never run, however complete the call in it looks,
because nobody can tell a whole value from the first half of one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from palestra.actions.candidate import Candidate, RawCall
from palestra.actions.extract import find_hermes, find_json, find_xml
from palestra.actions.formats import ActionFormat
from palestra.actions.pythonic import find_pythonic
from palestra.actions.quotes import without_surrogates
from palestra.actions.react import find_react
from palestra.actions.reasoning import leading_block, orphan_closer
from palestra.actions.schema import build_call
from palestra.errors import ActionError
from palestra.types import FinishReason, ToolCall, ToolSpec

_FINDERS: dict[ActionFormat, Callable[[str, Sequence[ToolSpec]], list[Candidate]]] = {
    "json": find_json,
    "hermes": find_hermes,
    "xml": find_xml,
    "react": find_react,
    "pythonic": find_pythonic,
    "qwen": find_hermes,
    "llama": find_json,
}
_WANTED: dict[ActionFormat, str] = {
    "json": '{"tool_name": "...", "parameters": {...}}',
    "hermes": '<tool_call>{"tool_name": "...", "parameters": {...}}</tool_call>',
    "xml": "<tool_call><function=NAME><parameter=KEY>VALUE</parameter></function></tool_call>",
    "react": 'a line "Action: NAME" and a line "Action Input: {...}"',
    "pythonic": "[NAME(KEY=VALUE)]",
    "qwen": '<tool_call>{"name": "...", "arguments": {...}}</tool_call>',
    "llama": '{"name": "...", "parameters": {...}}',
}


@dataclass(frozen=True, slots=True)
class ParsedAction:
    """A valid call and how it was understood.

    Example: ``ParsedAction(ToolCall("search", {"query": "x"}), "strict", 0, ())``
    """

    call: ToolCall
    """Validated against its tool's schema."""
    tier: Literal["strict", "repaired"]
    """``strict`` when nothing had to be repaired, converted or renamed."""
    left_over: int
    """Further calls in the text, which were not run."""
    notes: tuple[str, ...]
    """What was repaired, converted or renamed; empty when strict."""


def parse_action(
    text: str,
    tools: Sequence[ToolSpec],
    *,
    format: ActionFormat = "json",
    finish_reason: FinishReason = "stop",
) -> ParsedAction:
    """The first call in ``text``. Raises ``ActionError``, whose message is written for the model."""
    reasoning, found = _found(text, tools, format, finish_reason)
    return _built(found[0], reasoning, tools, left_over=len(found) - 1)


def parse_all(
    text: str,
    tools: Sequence[ToolSpec],
    *,
    format: ActionFormat = "json",
    finish_reason: FinishReason = "stop",
) -> list[ParsedAction | ActionError]:
    """Every call in ``text``, in order; an invalid one is its own error and voids no other. Never empty."""
    try:
        reasoning, found = _found(text, tools, format, finish_reason)
    except ActionError as error:
        return [error]
    results: list[ParsedAction | ActionError] = []
    for index, candidate in enumerate(found):
        try:
            results.append(_built(candidate, reasoning, tools, left_over=len(found) - index - 1))
        except ActionError as error:
            results.append(error)
    return results


def _found(
    text: str, tools: Sequence[ToolSpec], format: ActionFormat, finish_reason: FinishReason
) -> tuple[str | None, list[Candidate]]:
    """The reasoning before the action, and at least one candidate. Raises ``ActionError``."""
    if finish_reason == "length":
        raise ActionError("truncated", "The answer was cut at the length limit and was not run. Write less.")
    find = _FINDERS[format]
    text = without_surrogates(text)
    reasoning, start = leading_block(text)
    body = text[start:]
    found = find(body, tools)
    closer = orphan_closer(body, found) if reasoning is None else None
    if closer is not None:
        reasoning, body = body[: closer.start()].strip(), body[closer.end() :]
        found = find(body, tools)
    if not found:
        raise ActionError("no_call", f"No action was found. Write it as {_WANTED[format]}.")
    return reasoning or None, found


def _built(
    candidate: Candidate, reasoning: str | None, tools: Sequence[ToolSpec], left_over: int
) -> ParsedAction:
    if not isinstance(candidate.call, RawCall):
        raise candidate.call
    call, notes = build_call(candidate.call, tools)
    if call.reasoning is None and reasoning is not None:
        call = replace(call, reasoning=reasoning)
    return ParsedAction(call, "repaired" if notes else "strict", left_over, notes)
