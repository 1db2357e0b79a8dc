"""Five worlds that are broken on purpose, each with one hole; the audit finds all of them.

    palestra audit palestra.audit.examples:PaidRepetition

They show what a finding looks like, and what its remedy is about: each docstring names what is wrong.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import ClassVar, Literal

from palestra.envs import ToolEnv, ToolError, tool
from palestra.types import ToolCall

WORDS = (
    "red",
    "blue",
    "green",
    "lamp",
    "bread",
    "river",
    "stone",
    "glass",
    "cloud",
    "paper",
    "chair",
    "apple",
)
SOURCES = ("archive", "lab", "press")


@dataclass
class Question:
    """A number, what each source says of it, and what was read and answered."""

    number: int
    says: dict[str, str]
    read: set[str] = field(default_factory=set)
    notes: int = 0
    answered: str = ""

    def right(self) -> str:
        """What two of three sources say."""
        said = list(self.says.values())
        return max(said, key=said.count)


class _Research(ToolEnv[Question]):
    """Read three sources and answer what two of them say: sound, and the base of what is not."""

    difficulties = (1,)
    default_difficulty = 1
    milestones: ClassVar = {"read": lambda state: len(state.read) == len(SOURCES)}

    def generate(self, rng: Random, difficulty: int) -> Question:
        """Two sources agree, one lies."""
        right, wrong = rng.sample(WORDS, 2)
        liar = rng.choice(SOURCES)
        return Question(rng.randint(0, 99_999), {s: wrong if s == liar else right for s in SOURCES})

    def observe(self, state: Question) -> str:
        """The question."""
        return f"Question {state.number}: which word do most sources have?"

    @tool
    def read(self, source: Literal["archive", "lab", "press"]) -> str:
        """Read a source."""
        self.state.read.add(source)
        return f"{source}: {self.state.says[source]}"

    @tool
    def answer(self, word: str) -> str:
        """Answer the question."""
        self.state.answered = word
        return "noted"

    def done(self, state: Question) -> bool:
        """Whether something was answered."""
        return bool(state.answered)

    def verify(self, state: Question) -> bool:
        """Whether all was read and the answer is right."""
        return len(state.read) == len(SOURCES) and state.answered == state.right()

    def oracle(self, state: Question) -> Iterator[ToolCall]:
        """Read what is left, then answer."""
        for source in SOURCES:
            if source not in state.read:
                yield ToolCall("read", {"source": source})
        yield ToolCall("answer", {"word": state.right()})


def _has_notes(count: int, state: Question) -> bool:
    return state.notes >= count


class PaidRepetition(_Research):
    """The hole is in ``milestones``: a note counts again when the same source is read again."""

    milestones: ClassVar = {f"note_{n}": partial(_has_notes, n) for n in range(1, 7)}

    @tool
    def read(self, source: Literal["archive", "lab", "press"]) -> str:
        """Read a source."""
        self.state.notes += 1
        return super().read(source)


class GuessableVerdict(_Research):
    """The holes are in ``verify``, which asks for no reading, and in ``generate``: most answers are one."""

    def generate(self, rng: Random, difficulty: int) -> Question:
        """Nearly always the same word."""
        right = "red" if rng.random() < 0.8 else rng.choice(WORDS[1:6])
        return Question(rng.randint(0, 99_999), dict.fromkeys(SOURCES, right))

    @tool
    def answer(self, word: Literal["red", "blue", "green", "lamp", "bread", "river"]) -> str:  # type: ignore[override]
        """Answer the question."""
        return super().answer(word)

    def verify(self, state: Question) -> bool:
        """Whether the answer is right."""
        return state.answered == state.right()


class TellingErrors(_Research):
    """The holes are in ``answer``: its refusal says what is right, and reading is not asked for."""

    @tool
    def answer(self, word: str) -> str:
        """Answer the question."""
        if word != self.state.right():
            raise ToolError(f"{word} is wrong, it should be {self.state.right()}")
        return super().answer(word)

    def verify(self, state: Question) -> bool:
        """Whether the answer is right."""
        return state.answered == state.right()


class SeedIgnored(_Research):
    """The hole is in ``read``: what a source says is drawn from the clock, so attempts at a task differ."""

    @tool
    def read(self, source: Literal["archive", "lab", "press"]) -> str:
        """Read a source."""
        self.state.says[source] = WORDS[time.perf_counter_ns() // 1000 % len(WORDS)]
        return super().read(source)


class Unsolvable(_Research):
    """The hole is in ``generate``: in some tasks no two sources agree, so no answer is right."""

    def generate(self, rng: Random, difficulty: int) -> Question:
        """Two sources agree, mostly."""
        state = super().generate(rng, difficulty)
        if rng.random() < 0.2:
            state.says = dict(zip(SOURCES, rng.sample(WORDS, 3), strict=True))
        return state

    def verify(self, state: Question) -> bool:
        """Whether all was read and two sources say what was answered."""
        agreed = list(state.says.values()).count(state.answered) > 1
        return len(state.read) == len(SOURCES) and agreed
