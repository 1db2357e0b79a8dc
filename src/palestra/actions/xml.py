"""Reads calls written as tags: ``<function=..><parameter=..>``, ``<invoke>`` and ``<arg_key>`` pairs.

Used by ``extract``, which knows where a call begins. Values are raw text between an opening and a closing
tag, without the one line break that usually surrounds them; the schema decides their types later.

The surprising choice: a value that contains another parameter's opening tag is refused, since nobody can
tell where it ends. A call whose markup is unclear is an error, never a call with half a value.
"""

from __future__ import annotations

import re
from typing import Any

from palestra.actions.action_object import decoded_parameters
from palestra.actions.candidate import Candidate, RawCall
from palestra.actions.json_text import Reader, Unreadable
from palestra.errors import ActionError

FUNCTION = re.compile(r"<(?:function|invoke)(?:=|[ \t]+name[ \t]*=)[ \t]*([^<>\n]{1,200})>")
"""Opens a call; group 1 is the name, maybe in quotes."""
NAMED = re.compile(r"<function>[ \t]*([^<>\n]{1,200})</function>\s*+")
"""A name alone in a tag; a JSON object follows."""
PAIRS = re.compile(r"([\w.\-]{1,200})\s*+(?=<arg_key>)")
"""A bare name before ``arg_key`` pairs."""

_PARAMETER = re.compile(r"<(?:parameter|param)(?:=|[ \t]+name[ \t]*=)[ \t]*([^<>\n]{1,200})>")
_VALUE_END = re.compile(
    r"(?P<closer></(?:parameter|param)>)|<(?:parameter|param)[ \t=]|<(?:function|invoke)="
)
_FUNCTION_END = re.compile(r"</(?:function|invoke)>")
_BODY_END = re.compile(r"</?\w+:?tool_call|</?tool_call|</?function_calls|<\||</s>|```|\Z")
_PAIR = re.compile(r"<arg_key>([^<>\n]{1,200})</arg_key>\s*+<arg_value>")
_PAIR_END = re.compile(r"(?P<closer></arg_value>)|<arg_key>|<arg_value>")
_UNCLOSED = "closed a missing closing tag"


class _Parameters:
    """Collects raw values by name and remembers the first contradiction."""

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}
        self.duplicate: str | None = None

    def add(self, key: str, raw: str) -> None:
        value = _without_line_breaks(raw)
        if self.values.setdefault(key, value) != value:
            self.duplicate = self.duplicate or key

    def as_call(self, name: str, notes: tuple[str, ...] = ()) -> RawCall:
        return RawCall(name, self.values, notes=notes, textual=True, duplicate=self.duplicate)


def read_function(reader: Reader, opener: re.Match[str]) -> Candidate:
    """The call that ``opener``, a match of ``FUNCTION``, begins. Raises ``Unreadable``."""
    text, name = reader.text, _name(opener)
    pos = reader.skip_space(opener.end())
    if text.startswith("{", pos):
        return _with_json(reader, opener.start(), name, pos)
    parameters = _Parameters()
    while parameter := _PARAMETER.match(text, pos):
        reader.spend()
        value, pos = _value(text, parameter.end(), _VALUE_END)
        parameters.add(_name(parameter), value)
        pos = reader.skip_space(pos)
    closer = _FUNCTION_END.match(text, pos)
    if closer:
        return Candidate(opener.start(), closer.end(), parameters.as_call(name))
    if _BODY_END.match(text, pos) is None:
        raise Unreadable("malformed", pos, "A parameter tag or the function's closing tag is expected.")
    if not parameters.values:
        raise Unreadable("truncated", pos, "The text ends before the call does.")
    return Candidate(opener.start(), pos, parameters.as_call(name, (_UNCLOSED,)))


def read_named(reader: Reader, opener: re.Match[str]) -> Candidate:
    """The call of ``<function>name</function>{...}``. Raises ``Unreadable``."""
    if not reader.text.startswith("{", opener.end()):
        raise Unreadable("malformed", opener.end(), "A JSON object with the parameters is expected.")
    return _with_json(reader, opener.start(), _name(opener), opener.end())


def read_pairs(reader: Reader, opener: re.Match[str]) -> Candidate:
    """The call of a name and ``arg_key``/``arg_value`` pairs. Raises ``Unreadable``."""
    text, pos = reader.text, opener.end()
    parameters = _Parameters()
    while pair := _PAIR.match(text, pos):
        reader.spend()
        value, pos = _value(text, pair.end(), _PAIR_END)
        parameters.add(pair[1].strip(), value)
        pos = reader.skip_space(pos)
    if _BODY_END.match(text, pos) is None:
        raise Unreadable("malformed", pos, "An arg_key tag or the closing tag is expected.")
    notes = () if text.startswith("</tool_call>", pos) else (_UNCLOSED,)
    return Candidate(opener.start(), pos, parameters.as_call(opener[1], notes))


def _with_json(reader: Reader, start: int, name: str, pos: int) -> Candidate:
    """A call whose parameters are one JSON object after the name."""
    read = reader.read(pos)
    try:
        parameters, _, _ = decoded_parameters(read.value)
    except ActionError as error:
        return Candidate(start, read.end, error)
    closer = _FUNCTION_END.match(reader.text, reader.skip_space(read.end))
    call = RawCall(name, parameters, notes=read.notes, duplicate=read.duplicate)
    return Candidate(start, closer.end() if closer else read.end, call)


def _value(text: str, start: int, end: re.Pattern[str]) -> tuple[str, int]:
    """The raw value from ``start`` to its closer, and the position after that."""
    match = end.search(text, start)
    if match is None:
        closed = _FUNCTION_END.search(text, start)
        kind = "malformed" if closed else "truncated"
        raise Unreadable(kind, len(text), "A parameter's closing tag is missing.")  # type: ignore[arg-type]
    if match["closer"] is None:
        raise Unreadable(
            "malformed", match.start(), "A parameter's closing tag is missing, or its value holds tags."
        )
    return text[start : match.start()], match.end()


def _name(opener: re.Match[str]) -> str:
    return opener[1].strip().strip("\"'")


def _without_line_breaks(raw: str) -> str:
    """One line break less on either side, if there is one: it belongs to the layout."""
    for newline in ("\r\n", "\n"):
        if raw.startswith(newline):
            raw = raw[len(newline) :]
            break
    for newline in ("\r\n", "\n"):
        if raw.endswith(newline):
            return raw[: -len(newline)]
    return raw
