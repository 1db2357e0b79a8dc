"""Finds the call in a ReAct text: Thought, Action, Action Input, each a label at the start of a line.

One action is one turn, so reading stops at the next label: what follows, such as an invented observation
and the answer drawn from it, never counts. The input is read as a JSON value, so that labels inside its
strings are data.

The surprising choice: an input that is no object is refused even for a tool with one parameter; guessing
which parameter was meant is not the parser's business.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

from palestra.actions import pythonic
from palestra.actions.action_object import calls_in, decoded_parameters
from palestra.actions.candidate import Candidate, RawCall
from palestra.actions.json_text import Reader, Unreadable
from palestra.actions.schema import find_tool
from palestra.errors import ActionError
from palestra.types import ToolSpec

_NAMES = r"(?P<label>thought|action[ \t]+input|action|observation|final[ \t]+answer|answer)"
_LABEL = re.compile(rf"^[ \t>*_#\-]*+{_NAMES}[ \t*_0-9]*+[:：]\**+[ \t]*+", re.IGNORECASE | re.MULTILINE)
_FENCE_LINE = re.compile(r"^[ \t]*+(?P<marks>`{3,}+|~{3,}+)", re.MULTILINE)
_OPEN_FENCE = re.compile(r"(?:`{3,}+|~{3,}+)[ \t]*+\w*+\s*+")
_BODY_END = re.compile(rf"[<`]|(?<=\n)[>*_#\-]*+{_NAMES}[ \t*_0-9]*+[:：]", re.IGNORECASE)
_REST_OF_LINE = re.compile(r"[ \t\r`]*+(?:\n|<|\Z)")
_NAME_MARKUP = " \t\r`*\"'"
_CALL = re.compile(r"([^\W\d][\w.\-]*+)[ \t]*+\(")
_NOTHING = frozenset({"none", "n/a", "null", "nothing", "finish", "final answer"})
_NO_INPUT = frozenset({"", "none", "n/a", "null"})


def find_react(text: str, tools: Sequence[ToolSpec]) -> list[Candidate]:
    """The first action; empty where an answer comes before it or there is none."""
    labels = _labels_outside_fences(text) or list(_LABEL.finditer(text))
    names = [_kind(label) for label in labels]
    answer = next((i for i, name in enumerate(names) if name.endswith("answer")), len(names))
    first = next((i for i, name in enumerate(names[:answer]) if name == "action"), None)
    if first is None:
        return [_input_alone(labels[i]) for i in range(answer) if names[i] == "action input"][:1]
    reader = Reader(text)
    try:
        call = _first_call(reader, labels[first : first + 3], tools)
    except Unreadable as problem:
        return [Candidate(labels[first].start(), problem.at, problem.as_error())]
    except ActionError as error:
        return [Candidate(labels[first].start(), len(text), error)]
    if call is None:
        return []
    thought = _thought(text, labels[:first], labels[first].start())
    return [Candidate(labels[first].start(), call.end, _with_thought(call.call, thought))]


def _kind(label: re.Match[str]) -> str:
    return " ".join(label["label"].lower().split())


def _input_alone(label: re.Match[str]) -> Candidate:
    message = 'There is an Action Input but no Action: write "Action: <tool name>" before it.'
    return Candidate(label.start(), label.end(), ActionError("missing_name", message))


def _labels_outside_fences(text: str) -> list[re.Match[str]]:
    labels: list[re.Match[str]] = []
    fences = _fences(text)
    fence = next(fences, None)
    for label in _LABEL.finditer(text):
        while fence is not None and fence[1] <= label.start():
            fence = next(fences, None)
        if fence is None or label.start() < fence[0]:
            labels.append(label)
    return labels


def _fences(text: str) -> Iterator[tuple[int, int]]:
    """Closed fences. An unclosed one hides nothing."""
    opened: re.Match[str] | None = None
    for line in _FENCE_LINE.finditer(text):
        if opened is None:
            opened = line
        elif line["marks"].startswith(opened["marks"]):
            yield opened.start(), line.end()
            opened = None


def _thought(text: str, before: Sequence[re.Match[str]], end: int) -> str | None:
    """What stands under the last Thought before the action, or before the first label."""
    start = next((label.end() for label in reversed(before) if _kind(label) == "thought"), None)
    if start is None:
        start, end = 0, before[0].start() if before else end
    return text[start:end].strip(" \t\r\n*_") or None


def _with_thought(call: RawCall | ActionError, thought: str | None) -> RawCall | ActionError:
    if isinstance(call, ActionError) or call.reasoning is not None:
        return call
    return replace(call, reasoning=thought)


def _first_call(
    reader: Reader, labels: Sequence[re.Match[str]], tools: Sequence[ToolSpec]
) -> Candidate | None:
    """The call of the action at ``labels[0]``, given two more labels; None where it declines to act."""
    start, *ends = [labels[0].end(), *(label.start() for label in labels[1:]), len(reader.text)]
    written = reader.text[start : ends[0]].strip()
    if written.startswith(("{", "```")):
        return _object(reader, start)
    if call := _CALL.match(reader.text, reader.skip_space(start)):
        return pythonic.read_call(reader, call[1], call.start(), call.end())
    name = written.partition("\n")[0].strip(_NAME_MARKUP).strip("[]")
    if name.lower() in _NOTHING and find_tool(name, tools) is None:
        return None
    if len(labels) == 1 or _kind(labels[1]) != "action input":
        return Candidate(start, ends[0], RawCall(name, {}, has_parameters=False))
    return _with_input(reader, name, labels[1], ends[1])


def _object(reader: Reader, start: int) -> Candidate:
    """An action object instead of a name, maybe in a fence."""
    read = reader.read(_content(reader, start), _BODY_END)
    return Candidate(start, read.end, calls_in(read.value, read.notes, read.duplicate)[0])


def _content(reader: Reader, start: int) -> int:
    start = reader.skip_space(start)
    fence = _OPEN_FENCE.match(reader.text, start)
    return fence.end() if fence else start


def _with_input(reader: Reader, name: str, label: re.Match[str], after: int) -> Candidate:
    written = reader.text[label.end() : after].strip().lower()
    if written in _NO_INPUT:
        return Candidate(label.start(), after, RawCall(name, {}, has_parameters=False))
    start = _content(reader, label.end())
    if not reader.text.startswith(("{", '"{', "｛"), start):
        raise Unreadable("malformed", start, "Action Input must be one JSON object with the parameters.")
    read = reader.read(start, _BODY_END)
    try:
        parameters, notes, duplicate = decoded_parameters(read.value)
    except ActionError as error:
        return Candidate(label.start(), read.end, error)
    if reader.goes_on(read.end):
        raise Unreadable("malformed", read.end, "The input goes on after its last closing bracket.")
    if _REST_OF_LINE.match(reader.text, read.end) is None:
        notes = (*notes, "skipped text after the input")
    call = RawCall(name, parameters, notes=(*read.notes, *notes), duplicate=read.duplicate or duplicate)
    return Candidate(label.start(), read.end, call)
