"""Errands: note a code at the first record, follow fifteen to eighteen signs, and give the code at the end.

What is needed last is read first, so a context that forgets older turns cannot solve it. The code is marked as a key record.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from random import Random

from palestra.envs import ToolEnv, ToolError, call, tool
from palestra.envs.builtin import words
from palestra.types import ToolCall

WAYS = ("left", "right")
ASTRAY = 6
"""Records that lead nowhere."""


@dataclass
class Errand:
    """The records on the way in order, the way out of each, what was opened, and the code."""

    trail: list[str]
    ways: dict[str, list[str]]
    signs: dict[str, int]
    code: int
    opened: list[str] = field(default_factory=list)
    given: int | None = None


class Errands(ToolEnv[Errand]):
    """Note the code, follow the signs, give the code at the end."""

    instructions = "Open the record that the sign shows. At the end, give the code of the first record."
    difficulties = (1,)
    default_difficulty = 1
    milestones = {  # noqa: RUF012
        "noted": lambda state: bool(state.opened),
        "halfway": lambda state: 2 * len(state.opened) >= len(state.trail),
        "arrived": lambda state: state.opened == state.trail,
    }

    def generate(self, rng: Random, difficulty: int) -> Errand:
        """Fifteen to eighteen records."""
        records = words.numbers(rng, (depth := rng.randint(15, 18)) + ASTRAY, 4)
        trail, astray = records[:depth], records[depth:]
        signs = {record: rng.randrange(2) for record in trail}
        ways = {record: [rng.choice(astray)] for record in trail}
        for record, following in pairwise(trail):
            ways[record].insert(signs[record], following)
        return Errand(trail, ways, signs, rng.randint(100, 999))

    def observe(self, state: Errand) -> str:
        """Where it starts."""
        return f"Start at record {state.trail[0]}."

    @tool
    def open(self, record: str) -> str:
        """Where its ways lead."""
        state = self.state
        reached = len(state.opened)
        if record in state.opened:
            reached = state.opened.index(record)
        if reached == len(state.trail) or record != state.trail[reached]:
            raise ToolError(f"record {record} is closed")
        if record not in state.opened:
            state.opened.append(record)
        code = f"code {state.code}, " if record == state.trail[0] else ""
        if code:
            self.key_record(f"code {state.code}")
        if record == state.trail[-1]:
            return f"record {record}: the end"
        ways = zip(WAYS, state.ways[record], strict=True)
        return f"record {record}: {code}{', '.join(map(' '.join, ways))}, sign {WAYS[state.signs[record]]}"

    @tool
    def give(self, code: int) -> str:
        """End with the code."""
        self.state.given = code
        return f"gave {code}"

    def done(self, state: Errand) -> bool:
        """Any code ends the episode."""
        return state.given is not None

    def verify(self, state: Errand) -> bool:
        """The right code, at the end of the trail."""
        return state.given == state.code and state.opened == state.trail

    def oracle(self, state: Errand) -> Iterator[ToolCall]:
        """The records that are still to be opened, then the code."""
        yield from (call("open", record=record) for record in state.trail[len(state.opened) :])
        yield call("give", code=state.code)
