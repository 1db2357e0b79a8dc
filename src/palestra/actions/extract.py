"""Finds the calls of the formats json, hermes and xml in a model's text.

Explicit wrapper beats fence beats bare JSON, and the last two count only when they name a declared tool: a
false call is worse than a missed one. Markers quoted in inline code, echoed ``<tools>`` blocks and the
format's own placeholders are text. Where a value ends is decided by reading it, never by searching for a
closing marker, so that markers inside strings are data.

The surprising choice: after an unreadable call the scan goes on where reading failed, not one character
further. It keeps the whole scan linear, and what stood inside a broken call is never run by itself.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import cached_property

from palestra.actions import xml
from palestra.actions.action_object import calls_in, is_placeholder, names_a_declared_tool, uses_our_key
from palestra.actions.candidate import Candidate, RawCall, candidates, noted
from palestra.actions.inline_code import InlineCode
from palestra.actions.json_text import Reader, Unreadable
from palestra.actions.schema import find_tool
from palestra.errors import ActionError
from palestra.types import ToolSpec

_OPENERS = r"<tool_call>|<function_call>|<\|tool_call\|>|<\|python_tag\|>|\[TOOL_CALLS\]"
_OTHERS = (
    r"|(?P<fence>(?P<marks>`{3,}+|~{3,}+)[ \t]*+[\w+\-]*+[ \t]*+(?P<line>\r?\n)?)"
    r"|(?P<echo><tools>|<tool_response>)"
    r"|(?P<bare>\[\s*+\{|[{｛]\s*+(?:[\"'“]|[^\W\d][\w$]*+\s*+[:：]))"
)
_EVENT = re.compile(f"(?P<wrapper>{_OPENERS}){_OTHERS}")
_EVENT_WITH_FUNCTIONS = re.compile(f"(?P<wrapper>{_OPENERS}|(?={xml.FUNCTION.pattern})){_OTHERS}")
_BODY_LIMIT = re.compile(f"(?P<closer></tool_call>|</function_call>|<\\|/tool_call\\|>)|{_OPENERS}")
_ENDS = {
    "<tool_call>": re.compile(r"\s*+(?:`{3,}+\s*+)?</tool_call>"),
    "<function_call>": re.compile(r"\s*+(?:`{3,}+\s*+)?</function_call>"),
    "<|tool_call|>": re.compile(r"\s*+(?:<|\Z)"),
    "<|python_tag|>": re.compile(r"\s*+(?:<|\Z)"),
    "[TOOL_CALLS]": re.compile(r"\s*+(?:<|\Z)"),
}
"""How a clean wrapper ends."""
_FENCE = re.compile(r"(?:`{3,}+|~{3,}+)[ \t]*+[\w+\-]*+\s*+")
_JSON = re.compile(r"\s*+[\[{｛［]")
_NEXT_VALUE = re.compile(r"[\s,;]*+(?=[\[{])")
_NAME_FIRST = re.compile(r"([\w.\-]{1,200})\s*+(?=\{)")
_PLACEHOLDER = re.compile(r"<(?!tool_call>)[\w \-]{1,40}>")
_ECHOES = {"<tools>": "</tools>", "<tool_response>": "</tool_response>"}
"""Blocks that repeat what the prompt said."""
_MAX_INDENT = 40
_MAX_MARKS = 12
"""Longer fences close like this one, so that there are few patterns to compile."""
_EVENT_COST = 5
"""Tokens of the work limit that one marker or brace uses up."""
_AROUND = " \t\r\n\ufeff"
_NOT_JSON = "The action is no readable JSON object with a tool name and parameters."

Found = tuple[list[Candidate], int]
"""Candidates, and the position from which to look on."""
_TAGGED: tuple[tuple[re.Pattern[str], Callable[[Reader, re.Match[str]], Candidate]], ...] = (
    (xml.FUNCTION, xml.read_function),
    (xml.NAMED, xml.read_named),
    (xml.PAIRS, xml.read_pairs),
)


def find_json(text: str, tools: Sequence[ToolSpec]) -> list[Candidate]:
    """Calls in wrappers, else in fences, else bare."""
    scan = _Scan(text, tools, _EVENT)
    if scan.wrapped or not (scan.fenced or scan.bare):
        return scan.wrapped or scan.doubtful[:1]
    if scan.fenced:
        return noted(scan.fenced, "taken out of a code fence")
    around = text[: scan.bare[0].start] + text[scan.bare[-1].end :]
    return noted(scan.bare, "taken out of other text") if around.strip(_AROUND) else scan.bare


def find_hermes(text: str, tools: Sequence[ToolSpec]) -> list[Candidate]:
    """Calls in explicit wrappers only."""
    return _Scan(text, tools, _EVENT).wrapped


def find_xml(text: str, tools: Sequence[ToolSpec]) -> list[Candidate]:
    """Calls in wrappers or in function tags of their own."""
    return _Scan(text, tools, _EVENT_WITH_FUNCTIONS).wrapped


def _goes_on() -> ActionError:
    return ActionError("malformed", "The action goes on after its last closing bracket.")


class _Scan:
    """One pass over a text, from left to right, that files each call under how it was marked."""

    def __init__(self, text: str, tools: Sequence[ToolSpec], event: re.Pattern[str]) -> None:
        self.wrapped: list[Candidate] = []
        self.fenced: list[Candidate] = []
        self.bare: list[Candidate] = []
        self.doubtful: list[Candidate] = []
        """Unmarked and broken, or naming no declared tool: reported when nothing else is there."""
        self._text = text
        self._tools = tools
        self._reader = Reader(text)
        self._last_echoes = {opener: text.rfind(closer) for opener, closer in _ECHOES.items()}
        self._sample_until = 0
        """Up to here the text is a fence that holds something else than JSON."""
        pos = 0
        try:
            while match := event.search(text, pos):
                self._reader.spend(_EVENT_COST)
                pos = self._take(match)
        except ActionError as error:  # the work limit
            filed = next((kind for kind in (self.wrapped, self.fenced, self.bare) if kind), self.wrapped)
            filed.append(Candidate(pos, len(text), error))

    @cached_property
    def _quoted(self) -> InlineCode:
        return InlineCode(self._text)

    @cached_property
    def _closing_braces(self) -> dict[int, int]:
        """Opening to closing braces, strings ignored: good enough to skip what cannot be read."""
        stack: list[int] = []
        pairs: dict[int, int] = {}
        for match in re.finditer(r"[{}]", self._text):
            if match[0] == "{":
                stack.append(match.start())
            elif stack:
                pairs[stack.pop()] = match.end()
        return pairs

    def _take(self, match: re.Match[str]) -> int:
        """File what the event introduces; returns where to look on."""
        start, end = match.start(), match.end()
        if match["fence"] is not None:
            return self._fence(match)
        if self._quoted.covers(start) or (match["bare"] and start < self._sample_until):
            return max(end, start + 1)
        if match["echo"] is not None:
            closed = self._last_echoes[match[0]] >= end
            return self._text.index(_ECHOES[match[0]], end) if closed else end
        if match["bare"] is not None:
            return self._unmarked(start, self.bare)
        found, pos = self._wrapper(match)
        self.wrapped.extend(candidate for candidate in found if not is_placeholder(candidate.call))
        return max(pos, start + 1)

    def _begins_line(self, pos: int) -> bool:
        """Whether only a little indentation stands before ``pos`` on its line."""
        before = self._text[max(0, pos - _MAX_INDENT) : pos]
        return not before.rpartition("\n")[2].strip(" \t")

    # Explicit wrappers.

    def _wrapper(self, opener: re.Match[str]) -> Found:
        content = self._reader.skip_space(opener.end())
        fence = _FENCE.match(self._text, content)
        pos = fence.end() if fence else content
        try:
            if _JSON.match(self._text, pos):
                found, end = self._objects(pos)
                closed = _ENDS[opener[0]].match(self._text, end)
                return (found if closed else noted(found, "read up to where the closing tag is missing")), end
            for pattern, read in _TAGGED:
                if tag := pattern.match(self._text, pos):
                    candidate = read(self._reader, tag)
                    return [candidate], candidate.end
            return self._without_json(opener, pos)
        except Unreadable as problem:
            if _PLACEHOLDER.match(self._text, problem.at - 1):
                return [], problem.at
            return [Candidate(opener.start(), problem.at, problem.as_error())], problem.at

    def _objects(self, pos: int) -> Found:
        """Calls as JSON values, one after another. A broken one is the last."""
        found: list[Candidate] = []
        while True:
            try:
                read = self._reader.read(pos)
            except Unreadable as problem:
                if not found:
                    raise
                return [*found, Candidate(pos, problem.at, problem.as_error())], problem.at
            following = _NEXT_VALUE.match(self._text, read.end)
            calls: list[RawCall | ActionError] = list(calls_in(read.value, read.notes, read.duplicate))
            if following is None and self._reader.goes_on(read.end):
                calls[-1:] = [_goes_on()]
            found.extend(candidates(pos, read.end, calls))
            if following is None:
                return found, read.end
            pos = following.end()

    def _without_json(self, opener: re.Match[str], pos: int) -> Found:
        """A name before an object, or alone; an error where a call was meant; nothing in prose."""
        if name := _NAME_FIRST.match(self._text, pos):
            read = self._reader.read(name.end())
            notes = ("read the name before the object", *read.notes)
            call = RawCall(name[1], read.value, notes=notes, duplicate=read.duplicate)
            return [Candidate(pos, read.end, call)], read.end
        if pos >= len(self._text):
            raise Unreadable("truncated", pos, "The text ends before the action does.")
        limit = _BODY_LIMIT.search(self._text, pos)
        end = limit.start() if limit else len(self._text)
        body = self._text[pos:end].strip()
        closed = limit is not None and limit["closer"] is not None
        if closed and find_tool(body, self._tools):
            return [Candidate(pos, end, RawCall(body, {}, has_parameters=False))], end
        meant = self._begins_line(opener.start()) or any(mark in body for mark in "{[(<:")
        if opener[0] == "<|python_tag|>" or (closed and body and meant):
            raise Unreadable("malformed", end, _NOT_JSON)
        return [], pos

    # Fences and bare JSON.

    def _fence(self, fence: re.Match[str]) -> int:
        if fence.start() < self._sample_until:
            return fence.end()
        content = self._reader.skip_space(fence.end())
        if _JSON.match(self._text, content):
            pos = self._unmarked(content, self.fenced)
            closer = self._fence_closer(fence, pos)
            return closer.end() if closer else pos
        if fence["line"] and self._begins_line(fence.start()):
            closer = self._fence_closer(fence, fence.end())
            self._sample_until = closer.end() if closer else len(self._text)
        return fence.end()

    def _fence_closer(self, fence: re.Match[str], pos: int) -> re.Match[str] | None:
        """The marks that close a fence: at least as many, on a line of their own if it has several."""
        marks = f"{fence['marks'][0]}{{{min(len(fence['marks']), _MAX_MARKS)},}}+"
        closer = f"^[ \\t]*+{marks}[ \\t]*+$" if fence["line"] else marks
        return re.compile(closer, re.MULTILINE).search(self._text, pos)

    def _unmarked(self, start: int, filed: list[Candidate]) -> int:
        """File the calls of a JSON value that names declared tools; returns the position after the value."""
        try:
            read = self._reader.read(start)
        except Unreadable as problem:
            if names_a_declared_tool(problem.partial, self._tools):
                self.doubtful.append(Candidate(start, problem.at, problem.as_error()))
            if not problem.partial:
                return problem.at
            return max(problem.at, self._closing_braces.get(start, 0))
        calls = candidates(start, read.end, calls_in(read.value, read.notes, read.duplicate))
        if names_a_declared_tool(read.value, self._tools):
            if self._reader.goes_on(read.end):
                calls, filed = [Candidate(start, read.end, _goes_on())], self.doubtful
            filed.extend(calls)
        elif uses_our_key(read.value):
            self.doubtful.extend(candidate for candidate in calls if not is_placeholder(candidate.call))
        return read.end
