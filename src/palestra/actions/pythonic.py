"""Finds calls written as Python: ``[search(query="x"), get_time()]``, or one call at the start of a line.

Keyword arguments with literal values are the whole language; nothing is evaluated, looked up or joined.
Values go through the same reader as JSON. A call in the middle of a sentence is prose.

The surprising choice: positional arguments are refused, except one object that holds all parameters, since
a JSON Schema gives its properties no order.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from palestra.actions import quotes
from palestra.actions.candidate import Candidate, RawCall, noted
from palestra.actions.inline_code import InlineCode
from palestra.actions.json_text import NO_BRACKETS, PYTHON_LITERALS, Reader, Unreadable, same
from palestra.actions.schema import find_tool
from palestra.errors import ActionError
from palestra.types import ToolSpec

_CALL = re.compile(
    r"(?:^[ \t]*+|<\|python_tag\|>\s*+|(?P<list>\[)\s*+)(?P<name>[^\W\d][\w.\-]*+)[ \t]*+\(", re.MULTILINE
)
_NEXT_CALL = re.compile(r"[\s,;]*+(?P<name>[^\W\d][\w.\-]*+)[ \t]*+\(")
_LEAD = re.compile(r"\s*+(?:<\|python_tag\|>|`{3,}+[ \t]*+\w*+)?\s*+")
_ARGUMENT = re.compile(r"\s*+(?:(?P<key>[^\W\d]\w*+)\s*+=(?!=)|(?P<spread>\*\*))\s*+")
_AFTER_ARGUMENT = re.compile(r"\s*+(?:(?P<comma>,)|(?P<closer>\))|\Z|(?=[<`\]]))")
_CHAINED = re.compile(r"\.\w|[\[(]|[ \t]*+[+*/%|&@]")
"""What turns a call into part of an expression."""
_AROUND = re.compile(r"[\s\[\],;`]*+(?:<\|\w+\|>\s*+)?")
_CALL_COST = 10
_ARGUMENT_COST = 5
"""Tokens of the reader's work limit."""
_OWN_SPELLING = (PYTHON_LITERALS, quotes.OTHER_QUOTES)
"""Repairs to JSON that are plain Python."""


def find_pythonic(text: str, tools: Sequence[ToolSpec]) -> list[Candidate]:
    """Calls of declared tools; at the very start, any call counts."""
    reader, quoted = Reader(text), InlineCode(text)
    lead = _LEAD.match(text)
    first = lead.end() if lead else 0
    found: list[Candidate] = []
    pos = 0
    while match := _CALL.search(text, pos):
        begins = match.start("list") if match["list"] else match.start("name")
        declared = find_tool(match["name"], tools) is not None
        if not (declared or begins == first) or quoted.covers(begins):
            pos = match.end()
            continue
        try:
            reader.spend(_CALL_COST)
            calls = _calls(reader, match)
        except ActionError as error:  # the work limit
            return [*found, Candidate(begins, len(text), error)]
        pos = max(calls[-1].end, match.end())
        # A sentence may begin like "Note(s) on": an unknown name needs readable arguments to be a call.
        if declared or match["list"] or isinstance(calls[0].call, RawCall):
            found.extend(calls)
    if found and not (
        _AROUND.fullmatch(text[first : found[0].start]) and _AROUND.fullmatch(text[found[-1].end :])
    ):
        return noted(found, "taken out of other text")
    return found


def _calls(reader: Reader, opener: re.Match[str]) -> list[Candidate]:
    """The call that ``opener`` begins and those that follow it in the same list."""
    found: list[Candidate] = []
    match: re.Match[str] | None = opener
    while match is not None:
        try:
            candidate = read_call(reader, match["name"], match.start("name"), match.end())
        except Unreadable as problem:
            return [*found, Candidate(match.start(), problem.at, problem.as_error())]
        if _CHAINED.match(reader.text, candidate.end):
            error = ActionError("malformed", "A call stands alone; expressions are not evaluated.")
            return [*found, replace(candidate, call=error)]
        found.append(candidate)
        match = _NEXT_CALL.match(reader.text, candidate.end) if opener["list"] else None
    return found


def read_call(reader: Reader, name: str, start: int, pos: int) -> Candidate:
    """The call of ``name`` whose arguments begin at ``pos``, after the bracket. Raises ``Unreadable``."""
    parameters: dict[str, Any] = {}
    notes: dict[str, None] = {}
    duplicate: str | None = None
    pos = reader.skip_space(pos)
    closed = reader.text.startswith(")", pos)
    pos += closed
    while not closed:
        reader.spend(_ARGUMENT_COST)
        key, pos = _argument(reader, pos, first=not parameters)
        read = reader.read(pos)
        notes.update(dict.fromkeys(note for note in read.notes if note not in _OWN_SPELLING))
        duplicate = duplicate or read.duplicate
        for name_, value in _named(key, read.value, read.end).items():
            if name_ in parameters and not same(parameters[name_], value):
                duplicate = duplicate or name_
            parameters.setdefault(name_, value)
        closed, pos = _after_argument(reader, read.end, notes)
    return Candidate(start, pos, RawCall(name, parameters, notes=tuple(notes), duplicate=duplicate))


def _argument(reader: Reader, pos: int, *, first: bool) -> tuple[str | None, int]:
    """The keyword at ``pos``, or None for an object of parameters, and where its value begins."""
    match = _ARGUMENT.match(reader.text, pos)
    if match is not None:
        return match["key"], match.end()
    pos = reader.skip_space(pos)
    if first and reader.text.startswith("{", pos):
        return None, pos
    if pos >= len(reader.text):
        raise Unreadable("truncated", pos, "The text ends before the call does.")
    raise Unreadable("malformed", pos, "Arguments are written as name=value.")


def _named(key: str | None, value: Any, end: int) -> dict[str, Any]:
    if key is not None:
        return {key: value}
    if not isinstance(value, dict):
        raise Unreadable("malformed", end, "Arguments are written as name=value.")
    return value


def _after_argument(reader: Reader, pos: int, notes: dict[str, None]) -> tuple[bool, int]:
    """Whether the call is closed after a value that ended at ``pos``, and where it goes on."""
    match = _AFTER_ARGUMENT.match(reader.text, pos)
    if match is None:
        raise Unreadable("malformed", pos, "Values are literals; expressions are not evaluated.")
    if match["closer"]:
        return True, match.end()
    if match["comma"]:
        end = reader.skip_space(match.end())
        closed = reader.text.startswith(")", end)
        return closed, end + closed
    if match.end() >= len(reader.text) and reader.text[-1].isdigit():
        raise Unreadable("truncated", pos, "The text ends in a number that may be cut.")
    notes[NO_BRACKETS] = None
    return True, match.end()
