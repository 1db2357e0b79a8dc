"""Rows of random ids that ask for a value by a name said elsewhere: two steps of attention, nothing else.

Text teaches this slowly, because most of its tokens are easy; a row of these asks for it ten times. The
surprising choice: the rows are laid out with the role tokens of a dialogue, so that what they teach is at
hand when text comes.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from palestra.policy.chat import CONTROL_TOKENS, END, ROLE_TOKENS
from palestra.types import Role

Ids = list[int]
_FEW = 12
"""Different ids in a number-like value: as few as there are digits, so that only their order tells it."""


class Recall:
    """Draws rows over one vocabulary."""

    def __init__(self, rng: random.Random, vocabulary_size: int) -> None:
        """The ids that stand for digits and for a comma are drawn once a row."""
        self.rng = rng
        self.ids = range(len(CONTROL_TOKENS), vocabulary_size)
        self.few = rng.sample(self.ids, _FEW)
        self.comma = rng.choice(self.ids)

    def row(self, length: int) -> tuple[Ids, list[bool]]:
        """Ids, and which of them are answers, end tokens included."""
        ids, mask = Ids(), list[bool]()
        while len(ids) < length:
            kind = self.rng.random()
            asked, answer = (
                self.name_first() if kind < 0.45 else self.list_first() if kind < 0.9 else self.shared()
            )
            ids += [*asked, _role("assistant"), *answer, CONTROL_TOKENS.index(END)]
            mask += [False] * (len(asked) + 1) + [True] * (len(answer) + 1)
        return ids[:length], mask[:length]

    def name_first(self) -> tuple[Ids, Ids]:
        """A name, then a list of named values: the value of that name."""
        name, value, listed = self._listed()
        return [_role("user"), *self._noise(), *name, *self._noise(), _role("tool"), *listed], value

    def list_first(self) -> tuple[Ids, Ids]:
        """A list of named values, then a name."""
        name, value, listed = self._listed()
        return [_role("system"), *listed, _role("tool"), *self._noise(), *name, *self._noise()], value

    def shared(self) -> tuple[Ids, Ids]:
        """Two lists: what is in both."""
        count = self.rng.randint(2, 4)
        entries = [self._some(2) for _ in range(2 * count - 1)]
        first, second = entries[:count], [entries[0], *entries[count:]]
        self.rng.shuffle(first)
        self.rng.shuffle(second)
        return [_role("system"), *self._join(first), _role("system"), *self._join(second)], entries[0]

    def _listed(self) -> tuple[Ids, Ids, Ids]:
        pairs = [(self._some(0), self._value()) for _ in range(self.rng.randint(2, 4))]
        name, value = self.rng.choice(pairs)
        return name, value, self._join([[*name, *value] for name, value in pairs])

    def _value(self) -> Ids:
        return self._some(self.rng.choice((2, 4, 5, 5))) if self.rng.random() < 0.6 else self._some(0)

    def _some(self, digits: int) -> Ids:
        """``digits`` ids out of few, or one or two out of all."""
        if digits:
            return self.rng.choices(self.few, k=digits)
        return self.rng.choices(self.ids, k=self.rng.choice((1, 2, 2)))

    def _noise(self) -> Ids:
        return self.rng.choices(self.ids, k=self.rng.randint(0, 2))

    def _join(self, parts: Sequence[Ids]) -> Ids:
        return [one for part in parts for one in [*part, self.comma]][:-1]


def _role(role: Role) -> int:
    return CONTROL_TOKENS.index(ROLE_TOKENS[role])
