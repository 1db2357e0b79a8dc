"""Reads one JSON value out of a model's text, repairing only what has a single reading.

Why own code: a repairer that guesses may run an action nobody wrote, and one that retries may take
quadratic time. This reader goes once over the text, from left to right, keeps an explicit stack
instead of recursing, and evaluates nothing. Every format uses it for its values.

The surprising choice: there is no separate strict parser. On valid JSON the reader makes no notes and
gives what ``json.loads`` gives; every departure from JSON leaves a note, so *no notes* means *strict*.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, NoReturn

from palestra.actions import quotes
from palestra.errors import ActionError

MAX_DEPTH = 256
"""Deeper values are refused: nothing downstream could print or compare them safely."""
MAX_TOKENS = 100_000
"""Work limit per text, so that hostile text costs a fraction of a second."""
MAX_DIGITS = 400
"""Longer numbers are refused before they are converted."""

BODY_END = re.compile(r"[<`]")
"""What may follow an unclosed value: a tag, a control token or a fence. Never valid JSON."""

PYTHON_LITERALS = "read Python literals"
NO_BRACKETS = "closed missing final brackets"

_TOKEN = re.compile(
    r"[ \t\n\r]*+(?:"
    r"(?P<mark>[{}\[\],:])"
    r'|(?P<plain>"[^"\\\x00-\x1f]*+")'
    r"|(?P<number>-?(?:0|[1-9][0-9]*+)(?:\.[0-9]++)?(?:[eE][+-]?[0-9]++)?)"
    r"|(?P<word>(?:[^\W\d]|\$)[\w$]*+)"
    r")"
)
_SPACE = re.compile(r"[\s\ufeff\u200b\u2060]++")
_LINE_COMMENT = re.compile(r"(?://|\#)[^\n]*+")
_AFTER_STRING = re.compile(r"[,}\])，｝］/#]|\Z")
_CONTINUED = re.compile(r"\s*+(?:,\s*+[\"']|:)")
_INNER_QUOTE = re.compile(r'(?:[^"\\]++|\\.)*+"', re.DOTALL)
_WIDE = {"：": ":", "，": ",", "｛": "{", "｝": "}", "［": "[", "］": "]"}
_WORDS = {"true": True, "false": False, "null": None}
_PYTHON_WORDS = {"True": True, "False": False, "None": None}
_CLOSER = {"{": "}", "[": "]", "(": ")"}

Kind = Literal["malformed", "truncated", "invalid_value"]


@dataclass(frozen=True, slots=True)
class Read:
    """A value and where it ended. ``notes`` is empty exactly when the text was strict JSON."""

    value: Any
    end: int
    notes: tuple[str, ...] = ()
    duplicate: str | None = None
    """The first key that came twice with different values, at any level."""


class Unreadable(Exception):
    """The text before ``at`` cannot be read. ``partial`` is the outermost container as far as it was read."""

    def __init__(self, kind: Kind, at: int, message: str, partial: Any = None) -> None:
        super().__init__(message)
        self.kind = kind
        self.at = at
        self.message = message
        self.partial = partial

    def as_error(self) -> ActionError:
        """The error that the model sees."""
        return ActionError(self.kind, self.message)


class Reader:
    """Reads values from one text. Share it among all reads of that text: it holds the work limit.

    Example: ``Reader("{'a': 1,} rest").read(0).value == {"a": 1}``
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self._tokens_left = MAX_TOKENS
        self._never_closed: set[str] = set()

    def read(self, start: int, body_end: re.Pattern[str] = BODY_END) -> Read:
        """Read the value at ``start``; raises ``Unreadable``. ``body_end`` may follow an unclosed value."""
        return _Reading(self, start, body_end).run()

    def spend(self, tokens: int = 1) -> None:
        """Count work; raises ``ActionError`` when the text needs more of it than any action does."""
        self._tokens_left -= tokens
        if self._tokens_left < 0:
            raise ActionError("malformed", "The text is too long and tangled to read as an action.")

    def skip_space(self, start: int) -> int:
        """The position after white space of any kind."""
        match = _SPACE.match(self.text, start)
        return match.end() if match else start

    def goes_on(self, end: int) -> bool:
        """Whether more of a value seems to follow its end, as after one closing bracket too many."""
        return _CONTINUED.match(self.text, end) is not None

    def match_string(self, start: int) -> tuple[str, re.Match[str]] | None:
        """The opener and match of the string at ``start``, or None when it never closes."""
        opener = quotes.opener_at(self.text, start)
        if opener in self._never_closed:
            return None
        match = quotes.match_string(self.text, start, opener)
        if match is None:
            self._never_closed.add(opener)  # so that a flood of openers searches to the end only once
            return None
        return opener, match

    def comment_end(self, start: int) -> int | None:
        """The end of the comment at ``start``, or None when there is none or it never closes."""
        match = _LINE_COMMENT.match(self.text, start)
        if match:
            return match.end()
        if not self.text.startswith("/*", start) or "/*" in self._never_closed:
            return None
        end = self.text.find("*/", start + 2)
        if end < 0:
            self._never_closed.add("/*")
            return None
        return end + 2


@dataclass(slots=True)
class _Frame:
    """An open container."""

    opener: str
    items: Any
    key: str = ""
    """Waits for its value."""
    has_comma: bool = False
    """Tells ``(1)`` from ``(1,)``."""
    after_comma: bool = False
    """A closer now would leave a trailing comma."""


class _Reading:
    """One pass over one value. ``_expect`` is the method that takes the next token."""

    def __init__(self, reader: Reader, start: int, body_end: re.Pattern[str]) -> None:
        self._reader = reader
        self._text = reader.text
        self._pos = start
        self._token_start = start
        self._body_end = body_end
        self._notes: dict[str, None] = {}
        self._stack: list[_Frame] = []
        self._root: Any = None
        self._depth = 0
        self._duplicate: str | None = None
        self._done = False
        self._expect: Callable[[str, Any], None] = self._value

    def run(self) -> Read:
        while not self._done:
            self._reader.spend()
            self._expect(*self._token())
        if self._depth > MAX_DEPTH:
            self._fail("The value is nested too deeply.")
        return Read(self._root, self._pos, tuple(self._notes), self._duplicate)

    def _fail(self, message: str, kind: Kind = "malformed") -> NoReturn:
        raise Unreadable(kind, max(self._pos, self._token_start + 1), message, self._root)

    def _note(self, note: str) -> None:
        self._notes[note] = None

    # Tokens are (kind, value). Kinds: a bracket, comma or colon; string; scalar; word; end; other.

    def _token(self) -> tuple[str, Any]:
        match = _TOKEN.match(self._text, self._pos)
        if match is None and self._skip_odd():
            match = _TOKEN.match(self._text, self._pos)
        if match is None:
            return self._odd_token()
        group = match.lastgroup or ""
        token = match[group]
        self._token_start, self._pos = match.start(group), match.end()
        if group == "mark":
            return token, None
        if group == "number":
            return "scalar", self._number(token)
        if group == "word":
            return "word", token
        if token == '""' and self._text.startswith('"', self._pos):
            self._pos = self._token_start
            return self._quoted_string()
        return "string", token[1:-1]

    def _skip_odd(self) -> bool:
        """Skip comments and spaces that JSON does not know; True if anything was skipped."""
        start = self._pos
        while True:
            self._reader.spend()
            before, self._pos = self._pos, self._reader.skip_space(self._pos)
            if self._text[before : self._pos].strip(" \t\r\n"):
                self._note("skipped odd spaces")
            end = self._reader.comment_end(self._pos)
            if end is None:
                return self._pos > start
            self._note("removed comments")
            self._pos = end

    def _odd_token(self) -> tuple[str, Any]:
        self._token_start = self._pos
        if self._pos >= len(self._text) or self._body_end.match(self._text, self._pos):
            return "end", None
        char = self._text[self._pos]
        if char in quotes.OPENERS:
            return self._quoted_string()
        self._pos += 1
        if char in _WIDE:
            self._note("read full-width punctuation")
            return _WIDE[char], None
        return (char, None) if char in "()" else ("other", char)

    def _quoted_string(self) -> tuple[str, Any]:
        found = self._reader.match_string(self._pos)
        if found is None:
            self._fail("A string is never closed.", "truncated")
        opener, match = found
        value, note = quotes.decode(opener, match[1])
        if note:
            self._note(note)
        self._pos = match.end()
        return "string", value

    def _number(self, token: str) -> int | float:
        if len(token) > MAX_DIGITS:
            self._fail("A number is too long.", "invalid_value")
        if token.lstrip("-").isdigit():
            return int(token)
        number = float(token)
        if not math.isfinite(number):
            self._fail("A number is too large.", "invalid_value")
        return number

    # Expectations: one method per kind of place in the grammar.

    def _value(self, kind: str, token: Any) -> None:
        if kind in _CLOSER:
            self._open(kind)
        elif kind == "string":
            self._complete(self._with_inner_quotes(token))
        elif kind == "scalar":
            self._complete(token)
        elif kind == "word" and token in _WORDS:
            self._complete(_WORDS[token])
        elif kind == "word" and token in _PYTHON_WORDS:
            self._note(PYTHON_LITERALS)
            self._complete(_PYTHON_WORDS[token])
        elif kind == "end":
            self._fail("The text ends before the value does.", "truncated")
        elif token in ("NaN", "Infinity", "nan", "inf"):
            self._fail("NaN and Infinity are not allowed.")
        else:
            self._fail("A value is expected here: a quoted string, a number, true, false, null, {} or [].")

    def _item(self, kind: str, token: Any) -> None:
        """A value of an array, or its closer."""
        if kind in ("]", ")"):
            self._close(kind)
        else:
            self._value(kind, token)

    def _key(self, kind: str, token: Any) -> None:
        if kind == "}":
            self._close(kind)
            return
        if kind == "end":
            self._fail("The text ends before the object does.", "truncated")
        if kind == "word":
            self._note("quoted bare keys")
        elif kind != "string":
            self._fail("A key in double quotes is expected here.")
        self._stack[-1].key = token
        self._expect = self._colon

    def _colon(self, kind: str, _token: Any) -> None:
        if kind == "end":
            self._fail("The text ends before the object does.", "truncated")
        if kind != ":":
            self._fail("A colon is expected after a key.")
        self._expect = self._value

    def _comma(self, kind: str, _token: Any) -> None:
        frame = self._stack[-1]
        if kind == ",":
            frame.has_comma = frame.after_comma = True
            self._expect = self._key if frame.opener == "{" else self._item
        elif kind == "end" or self._body_end.match(self._text, self._token_start):
            self._pos = self._token_start
            self._close_all()
        else:
            self._close(kind)

    # Containers: attached to their parent when they close.

    def _open(self, opener: str) -> None:
        items: Any = {} if opener == "{" else []
        if opener == "(":
            self._note(PYTHON_LITERALS)
        if not self._stack:
            self._root = items
        self._stack.append(_Frame(opener, items))
        self._depth = max(self._depth, len(self._stack))
        self._expect = self._key if opener == "{" else self._item

    def _close(self, closer: str) -> None:
        frame = self._stack[-1]
        if closer != _CLOSER[frame.opener]:
            self._fail("A comma or a closing bracket is missing here.")
        if frame.opener == "(" and frame.items and not frame.has_comma:
            self._fail("Expressions are not evaluated.")
        if frame.after_comma:
            self._note("removed trailing commas")
        self._stack.pop()
        self._complete(frame.items)

    def _close_all(self) -> None:
        """The text ended after a whole value, so only closers are missing; but a last number may be cut."""
        if self._pos >= len(self._text) and self._text[self._pos - 1].isdigit():
            self._fail("The text ends in a number that may be cut.", "truncated")
        self._note(NO_BRACKETS)
        while not self._done:
            self._close(_CLOSER[self._stack[-1].opener])

    def _complete(self, value: Any) -> None:
        if not self._stack:
            self._root, self._done = value, True
            return
        frame = self._stack[-1]
        frame.after_comma = False
        if frame.opener != "{":
            frame.items.append(value)
        elif frame.key not in frame.items:
            frame.items[frame.key] = value
        elif self._duplicate is None and not same(frame.items[frame.key], value):
            self._duplicate = frame.key
        self._expect = self._comma

    # Unescaped quotes inside a string.

    def _with_inner_quotes(self, value: str) -> str:
        """Take a string up to the quote that can close it, if the quotes inside are pairs around words."""
        if self._closes_at(self._pos) or self._text[self._token_start] != '"':
            return value
        start = self._token_start + 1
        inner = 0
        while not self._closes_at(self._pos):
            self._reader.spend()
            before, after = self._text[self._pos - 2], self._text[self._pos]
            touching = before if inner % 2 else after
            if touching.isspace() or after in '":' or self._next_char(self._pos) in '":':
                self._fail('A quote inside a string must be escaped as \\".')
            inner += 1
            match = _INNER_QUOTE.match(self._text, self._pos)
            if match is None:
                self._fail("A string is never closed.")
            self._pos = match.end()
        if inner % 2:
            self._fail('A quote inside a string must be escaped as \\".')
        self._note("kept unescaped quotes inside a string")
        return quotes.unescape(self._text[start : self._pos - 1], python=False)

    def _closes_at(self, pos: int) -> bool:
        """Whether a quote that ends before ``pos`` can be a closing one."""
        pos = self._reader.skip_space(pos)
        return bool(_AFTER_STRING.match(self._text, pos) or self._body_end.match(self._text, pos))

    def _next_char(self, pos: int) -> str:
        pos = self._reader.skip_space(pos)
        return self._text[pos : pos + 1] or '"'


def same(left: Any, right: Any) -> bool:
    """Whether two JSON values are the same, types included (``1`` is not ``true``)."""
    try:
        return json.dumps(left, sort_keys=True) == json.dumps(right, sort_keys=True)
    except RecursionError:
        return False
