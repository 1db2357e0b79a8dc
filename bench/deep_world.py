"""Trails: follow signs from record to record and report what the last one holds, in 2 to 12 turns.

How deep a trail is differs from task to task and is not told. Surprising: a wrong way looks like the right one and never ends,
so a policy that errs once wanders on until a limit cuts it, and what a limit costs depends on where it is.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from random import Random

from palestra.envs import ToolEnv, ToolError, call, tool
from palestra.envs.builtin import words
from palestra.types import ToolCall

WAYS = ("left", "ahead", "right")
DEEPEST = 11
"""Records of the longest trail; reporting is one turn more."""
ASTRAY = 8
"""Records that lead to each other only."""


@dataclass
class Trail:
    """The right records in order, where each record's ways lead and its sign, and what was opened."""

    trail: list[str]
    ways: dict[str, list[str]]
    signs: dict[str, int]
    value: int
    opened: list[str] = field(default_factory=list)
    reported: int | None = None

    def reached(self) -> float:
        """Share of the right records that were opened."""
        return sum(record in self.opened for record in self.trail) / len(self.trail)

    def named(self) -> set[str]:
        """The records that the agent has read of."""
        return {self.trail[0], *(way for record in self.opened for way in self.ways[record])}


class Trails(ToolEnv[Trail]):
    """Follow signs from record to record and report what the last one holds."""

    instructions = "Open the record that the sign shows. At the end, report the value."
    difficulties = (1,)
    default_difficulty = 1
    milestones = {  # noqa: RUF012
        "started": lambda state: state.reached() > 0,
        "halfway": lambda state: state.reached() >= 0.5,
        "arrived": lambda state: state.reached() == 1,
    }

    def generate(self, rng: Random, difficulty: int) -> Trail:
        """Trails of all depths are equally likely."""
        records = words.numbers(rng, (depth := rng.randint(1, DEEPEST)) + ASTRAY, 4)
        trail, astray = records[:depth], records[depth:]
        signs = {record: rng.randrange(len(WAYS)) for record in records}
        ways = {record: rng.sample([a for a in astray if a != record], len(WAYS)) for record in records}
        for record, following in pairwise(trail):
            ways[record][signs[record]] = following
        ways[trail[-1]] = []
        return Trail(trail, ways, signs, rng.randint(100, 999))

    def observe(self, state: Trail) -> str:
        """Where it starts."""
        return f"Start at record {state.trail[0]}."

    @tool
    def open(self, record: str) -> str:
        """Where its ways lead."""
        if record not in self.state.named():
            raise ToolError(f"record {record} is unknown")
        if record not in self.state.opened:
            self.state.opened.append(record)
        if record == self.state.trail[-1]:
            return f"record {record}: the end, value {self.state.value}"
        ways = zip(WAYS, self.state.ways[record], strict=True)
        return f"record {record}: {', '.join(map(' '.join, ways))}, sign {WAYS[self.state.signs[record]]}"

    @tool
    def report(self, value: int) -> str:
        """End with the value."""
        self.state.reported = value
        return f"reported {value}"

    def done(self, state: Trail) -> bool:
        """Any report ends the episode."""
        return state.reported is not None

    def verify(self, state: Trail) -> bool:
        """The right value, and the end was seen."""
        return state.reported == state.value and state.trail[-1] in state.opened

    def oracle(self, state: Trail) -> Iterator[ToolCall]:
        """The records that were not opened yet, then the report."""
        yield from (call("open", record=record) for record in state.trail if record not in state.opened)
        yield call("report", value=state.value)
