"""The space of texts that a world reads and writes.

It exists because ``gymnasium.spaces.Text`` works over a fixed alphabet, ASCII letters by default, while
observations and actions here are any Unicode text. The one surprising choice: membership is only
"a ``str`` of bounded length"; what the text *says* is judged by the action parser, never by the space.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium.spaces import Space

# Letters with and without accents, punctuation, Greek, Cyrillic, kana, CJK and emoji; no surrogates.
_RANGES = (
    *((0x20, 0x7F), (0xA1, 0x180), (0x391, 0x3CA), (0x410, 0x450)),
    *((0x3042, 0x3097), (0x4E00, 0x4E80), (0x1F600, 0x1F640)),
)
_SAMPLE_LENGTH = 40


class UnicodeText(Space[str]):
    """All texts of at most ``max_length`` characters, the empty text included."""

    def __init__(self, max_length: int, seed: int | np.random.Generator | None = None) -> None:
        """``max_length`` in characters; ``seed`` makes ``sample`` repeatable."""
        super().__init__(shape=None, dtype=None, seed=seed)
        self.max_length = max_length

    def contains(self, x: Any) -> bool:
        """Whether ``x`` is a text short enough."""
        return isinstance(x, str) and len(x) <= self.max_length

    def sample(self, mask: Any | None = None, probability: Any | None = None) -> str:
        """A random text of up to 40 characters; ``mask`` and ``probability`` are ignored."""
        length = int(self.np_random.integers(0, min(_SAMPLE_LENGTH, self.max_length) + 1))
        spans = [_RANGES[int(i)] for i in self.np_random.integers(0, len(_RANGES), size=length)]
        return "".join(chr(int(self.np_random.integers(low, high))) for low, high in spans)

    @property
    def is_np_flattenable(self) -> bool:
        """Texts have no array form."""
        return False

    def __eq__(self, other: object) -> bool:
        return isinstance(other, UnicodeText) and other.max_length == self.max_length

    def __hash__(self) -> int:
        return hash((UnicodeText, self.max_length))

    def __repr__(self) -> str:
        return f"UnicodeText({self.max_length})"
