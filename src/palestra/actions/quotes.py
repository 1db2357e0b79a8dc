r"""Quoted strings as models write them: JSON, Python and typographic quotes, and their escapes.

Used by ``json_text`` for every string that is not plain JSON. Nothing is evaluated: escapes are
replaced one by one, a run of backslashes at once, so a flood of them stays cheap.

The surprising choice: an escape that JSON does not know keeps its backslash (``\d`` stays ``\d``), since
models write regular expressions and paths far more often than they mean "drop the backslash".
"""

from __future__ import annotations

import json
import re

RAW_CONTROLS = "kept raw control characters in strings"
BAD_ESCAPES = "kept unknown escapes as written"
OTHER_QUOTES = "read single or typographic quotes"

_CLOSER = {'"': '"', "'": "'", "“": "”", "”": "”", "„": "”", "‘": "’", "’": "’", "＂": "＂"}
OPENERS = frozenset(_CLOSER)
"""Characters that open a string."""

_TRIPLE = ('"""', "'''")
_PYTHON = ("'", *_TRIPLE)


def _pattern(opener: str) -> re.Pattern[str]:
    if opener in _TRIPLE:
        quote = opener[0]
        return re.compile(
            f"{opener}((?:[^{quote}\\\\]++|\\\\.|{quote}(?!{quote}{quote}))*+){opener}", re.DOTALL
        )
    closer = _CLOSER[opener]
    return re.compile(f"{opener}((?:[^{closer}\\\\]++|\\\\.)*+){closer}", re.DOTALL)


_PATTERNS = {opener: _pattern(opener) for opener in (*_CLOSER, *_TRIPLE)}

_ESCAPE = re.compile(r"(?:\\\\)++|\\u[0-9a-fA-F]{4}|\\x[0-9a-fA-F]{2}|\\U[0-9a-fA-F]{8}|\\.", re.DOTALL)
_SIMPLE = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "/": "/", '"': '"', "'": "'"}
_SURROGATE = re.compile("[\ud800-\udfff]++")
_PAIRS = re.compile("(?:[\ud800-\udbff][\udc00-\udfff])++")


def opener_at(text: str, start: int) -> str:
    """The opening quote at ``start``: one character, or three for a Python long string."""
    triple = text[start : start + 3]
    return triple if triple in _TRIPLE else text[start]


def match_string(text: str, start: int, opener: str) -> re.Match[str] | None:
    """The string that ``opener`` opens at ``start``, or None when it never closes. Group 1 is its inside."""
    return _PATTERNS[opener].match(text, start)


def decode(opener: str, inside: str) -> tuple[str, str | None]:
    """The string's value, and a note when it was not strict JSON."""
    if opener != '"':
        return unescape(inside, python=opener in _PYTHON), OTHER_QUOTES
    for strict, note in ((True, None), (False, RAW_CONTROLS)):
        try:
            return without_surrogates(json.loads(f'"{inside}"', strict=strict)), note
        except ValueError:
            continue
    return unescape(inside, python=False), BAD_ESCAPES


def unescape(inside: str, *, python: bool) -> str:
    """Replace the escapes of JSON, and those of Python if asked; keep all others as written."""

    def replace(match: re.Match[str]) -> str:
        escape = match[0]
        letter = escape[1]
        if letter == "\\":
            return "\\" * (len(escape) // 2)
        if letter in _SIMPLE:
            return _SIMPLE[letter]
        if len(escape) > 2 and (letter == "u" or python):
            code = int(escape[2:], 16)
            return chr(code) if code <= 0x10FFFF else escape
        return "" if python and letter == "\n" else escape

    if "\\" not in inside:
        return without_surrogates(inside)
    return without_surrogates(_ESCAPE.sub(replace, inside))


def without_surrogates(text: str) -> str:
    """Join surrogate pairs and replace lone surrogates by U+FFFD, so that the text can be encoded."""
    if _SURROGATE.search(text) is None:
        return text
    joined = _PAIRS.sub(lambda run: run[0].encode("utf-16-le", "surrogatepass").decode("utf-16-le"), text)
    return _SURROGATE.sub(lambda run: "\ufffd" * len(run[0]), joined)
