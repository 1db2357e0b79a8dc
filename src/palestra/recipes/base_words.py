"""Random words, values and parameters for the nano base; nothing here knows any world.

The one surprising choice: ids, numbers and words are drawn far more evenly than in any real text, because
the base is to learn where to look and not what is likely.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from importlib.resources import files

WORDS: tuple[str, ...] = tuple(files("palestra.recipes").joinpath("words.txt").read_text("utf-8").split())

_SYLLABLES = ("ba", "ke", "lo", "mi", "nu", "ra", "si", "to", "ve", "zu", "an", "er", "ol", "ist", "und")
_SUFFIXES = ("", "", "", "_id", "_name", "_number")

Value = str | int


@dataclass(frozen=True)
class Key:
    """A parameter: its name, how text speaks of it, and what it may hold."""

    name: str
    label: str
    integer: bool = False
    choices: tuple[str, ...] = ()

    def declared(self) -> str:
        """As a tool's line declares it."""
        return (
            self.name + (":int" if self.integer else "") + ("=" + "|".join(self.choices)) * bool(self.choices)
        )


def pseudo_word(rng: random.Random) -> str:
    """A word nobody has seen, of two to four syllables."""
    return "".join(rng.choice(_SYLLABLES) for _ in range(rng.randint(2, 4)))


def word(rng: random.Random) -> str:
    """A common word, or one time in six an invented one; one in five with a capital."""
    text = pseudo_word(rng) if rng.random() < 0.17 else rng.choice(WORDS)
    return text.capitalize() if rng.random() < 0.2 else text


def filler(rng: random.Random) -> str:
    """A few words that mean nothing."""
    return " ".join(word(rng) for _ in range(rng.randint(2, 6)))


def identifier(rng: random.Random) -> str:
    """A tool's name: one or two words."""
    return word(rng).lower() if rng.random() < 0.5 else f"{word(rng)}_{word(rng)}".lower()


def digits(rng: random.Random, *lengths: int) -> str:
    """Digits, as many as one of ``lengths``; the first is not 0."""
    return rng.choice("123456789") + "".join(rng.choice("0123456789") for _ in range(rng.choice(lengths) - 1))


def value(rng: random.Random, key: Key) -> Value:
    """A value worth copying: for most keys digits, an id, a word, two words or a time."""
    if key.integer:
        return int(digits(rng, 1, 2, 2, 3, 3, 4))
    if key.choices:
        return rng.choice(key.choices)
    kind = rng.random()
    if kind < 0.3:
        return digits(rng, 1, 2, 3, 4, 4, 5, 5, 6)
    if kind < 0.5:
        return rng.choice("ABCDEFGHKLMPRSTWvx") + rng.choice(("", "", "-")) + digits(rng, 1, 2, 3, 4, 5)
    if kind < 0.7:
        return word(rng)
    if kind < 0.95:
        return f"{word(rng)} {word(rng)}"
    return f"{rng.randint(0, 23)}:{rng.choice(('00', '15', '30', '45'))}"


def make_key(rng: random.Random) -> Key:
    """A parameter; a label such as ``order`` may stand for the name ``order_id``."""
    label, kind = word(rng).lower(), rng.random()
    if kind < 0.2:
        return Key(label, label, integer=True)
    if kind < 0.4:
        return Key(label, label, choices=tuple(identifier(rng) for _ in range(rng.randint(2, 5))))
    return Key(label + rng.choice(_SUFFIXES), label)
