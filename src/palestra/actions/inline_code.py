"""Which parts of a text stand in inline code, where a marker or an object is quoted, not meant.

Used by the scanners before they believe an opener. The surprising choice: a span never leaves its line,
so that one stray backtick cannot hide the rest of the text.
"""

from __future__ import annotations

import re
from bisect import bisect_right

_TICKS = re.compile(r"`++|\n")
_LONGEST = 2


class InlineCode:
    """The inline code of a text: runs of one or two backticks up to the next equal run on the same line."""

    def __init__(self, text: str) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []
        open_at: dict[int, int] = {}
        for match in _TICKS.finditer(text):
            length = match.end() - match.start()
            if match[0] == "\n":
                open_at.clear()
            elif length in open_at:
                self._starts.append(open_at[length])
                self._ends.append(match.end())
                open_at.clear()
            elif length <= _LONGEST:
                open_at[length] = match.start()

    def covers(self, pos: int) -> bool:
        """Whether ``pos`` is inside inline code."""
        index = bisect_right(self._starts, pos) - 1
        return index >= 0 and pos < self._ends[index]
