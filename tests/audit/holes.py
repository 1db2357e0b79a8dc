"""Worlds with one hole each, of other kinds than those that are shipped, and sound ones of other forms."""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from random import Random
from typing import ClassVar, Literal

import gymnasium

from palestra.envs import ToolEnv, ToolError, tool
from palestra.envs.spaces import UnicodeText
from palestra.types import ToolCall

CITIES = ("Basel", "Turin", "Lyon", "Ghent", "Split", "Kyiv", "Oslo", "Porto")


@dataclass
class Parcel:
    number: int
    city: str
    looked: bool = False
    sent: str = ""
    notes: list[str] = field(default_factory=list)


class Post(ToolEnv[Parcel]):
    """Sound: look where a parcel goes, then send it there."""

    difficulties = (1,)
    default_difficulty = 1
    milestones: ClassVar = {"looked": lambda state: state.looked}

    def generate(self, rng: Random, difficulty: int) -> Parcel:
        return Parcel(rng.randint(10_000, 99_999), rng.choice(CITIES))

    def observe(self, state: Parcel) -> str:
        return f"parcel {state.number}"

    @tool
    def look(self, number: int) -> str:
        """Look a parcel up."""
        if number != self.state.number:
            raise ToolError(f"{number} is unknown")
        self.state.looked = True
        return f"{number} goes to {self.state.city}"

    @tool
    def send(self, city: str) -> str:
        """Send it."""
        self.state.sent = city
        return "sent"

    def done(self, state: Parcel) -> bool:
        return bool(state.sent)

    def verify(self, state: Parcel) -> bool:
        return state.looked and state.sent == state.city

    def oracle(self, state: Parcel) -> Iterator[ToolCall]:
        if not state.looked:
            yield ToolCall("look", {"number": state.number})
        yield ToolCall("send", {"city": state.city})


class AlwaysRight(Post):
    """The verifier asks whether anything was sent."""

    def verify(self, state: Parcel) -> bool:
        return bool(state.sent)


class PartOfAnswer(Post):
    """The verifier looks for the city somewhere in what was said."""

    def verify(self, state: Parcel) -> bool:
        return state.looked and state.city in state.sent


class TalkedInto(Post):
    """The verifier believes what the model writes of itself."""

    def verify(self, state: Parcel) -> bool:
        return super().verify(state) or "success" in state.sent


class SharedState(Post):
    """Parcels that were looked at are kept in the class."""

    seen: ClassVar[set[int]] = set()

    @tool
    def look(self, number: int) -> str:
        """Look a parcel up."""
        told = super().look(number)
        self.seen.add(len(self.seen))
        return f"{told}, {len(self.seen)} seen"


class HashOrder(Post):
    """What is said follows the order of a set."""

    @tool
    def look(self, number: int) -> str:
        """Look a parcel up."""
        told = super().look(number)
        return f"{told}, not to {', '.join(set(CITIES) - {self.state.city})}"


class LeftOver(Post):
    """Something of the last episode is left in the object."""

    count = 0

    @tool
    def look(self, number: int) -> str:
        """Look a parcel up."""
        self.count += 1
        return f"{super().look(number)} ({self.count})"


class FewTasks(Post):
    """Five parcels there are."""

    def generate(self, rng: Random, difficulty: int) -> Parcel:
        return Parcel(*rng.choice([(12_345 + n, city) for n, city in enumerate(CITIES[:5])]))


class OneTask(Post):
    """The seed is not looked at."""

    def generate(self, rng: Random, difficulty: int) -> Parcel:
        return Parcel(12_345, "Basel")


class TellingNumber(Post):
    """The number's last digit says where the parcel goes."""

    def generate(self, rng: Random, difficulty: int) -> Parcel:
        city = rng.randrange(4)
        return Parcel(rng.randint(1_000, 9_999) * 10 + city, CITIES[city])


class Raising(Post):
    """An unknown number raises."""

    @tool
    def look(self, number: int) -> str:
        """Look a parcel up."""
        return {self.state.number: super().look(self.state.number)}[number]


class RepeatedOnly(Post):
    """A note counts once for each number of notes."""

    milestones: ClassVar = {f"note{n}": lambda state, n=n: len(state.notes) >= n for n in (1, 2, 3)}

    @tool
    def note(self, text: str) -> str:
        """Write a note."""
        self.state.notes.append(text)
        return "noted"

    def oracle(self, state: Parcel) -> Iterator[ToolCall]:
        yield from (ToolCall("note", {"text": str(n)}) for n in range(len(state.notes), 3))
        yield from super().oracle(state)


class NeverEnds(Post):
    """The episode goes on when all is done."""

    def done(self, state: Parcel) -> bool:
        return False


class UnusedTool(Post):
    """The oracle takes a step that nothing asks for."""

    @tool
    def greet(self) -> str:
        """Say hello."""
        self.state.notes.append("hello")
        return "hello"

    def oracle(self, state: Parcel) -> Iterator[ToolCall]:
        if not state.notes:
            yield ToolCall("greet", {})
        yield from super().oracle(state)


class Verdict(ToolEnv[Parcel]):
    """A verdict of three that no look-up is asked for."""

    difficulties = (1,)
    default_difficulty = 1

    def generate(self, rng: Random, difficulty: int) -> Parcel:
        return Parcel(rng.randint(10_000, 99_999), rng.choice(("keep", "keep", "send", "burn")))

    def observe(self, state: Parcel) -> str:
        return f"parcel {state.number}"

    @tool
    def look(self) -> str:
        """Look inside."""
        self.state.looked = True
        return f"inside: {self.state.city}"

    @tool
    def judge(self, verdict: Literal["keep", "send", "burn"]) -> str:
        """Decide."""
        self.state.sent = verdict
        return "decided"

    def done(self, state: Parcel) -> bool:
        return bool(state.sent)

    def verify(self, state: Parcel) -> bool:
        return state.sent == state.city

    def oracle(self, state: Parcel) -> Iterator[ToolCall]:
        if not state.looked:
            yield ToolCall("look", {})
        yield ToolCall("judge", {"verdict": state.city})


class PartOfNothing(Post):
    """The verifier looks for what was said in the city, and everything holds nothing."""

    def verify(self, state: Parcel) -> bool:
        return state.looked and bool(state.notes) and state.city.startswith(state.notes[-1])

    def done(self, state: Parcel) -> bool:
        return bool(state.notes)

    @tool
    def send(self, city: str) -> str:
        """Send it."""
        self.state.notes.append(city)
        return "sent"


class TellsWhoAsksNothing(Post):
    """An empty number shows the parcel."""

    @tool
    def look(self, number: str) -> str:
        """Look a parcel up."""
        if number not in ("", str(self.state.number)):
            raise ToolError(f"{number} is unknown")
        self.state.looked = True
        return f"{number} goes to {self.state.city}"

    def oracle(self, state: Parcel) -> Iterator[ToolCall]:
        if not state.looked:
            yield ToolCall("look", {"number": str(state.number)})
        yield ToolCall("send", {"city": state.city})


class AnyChoice(Verdict):
    """Every stamp may be put on; it only has to be there."""

    @tool
    def stamp(self, kind: Literal["keep", "send", "burn"]) -> str:
        """Put a stamp on."""
        self.state.notes.append(kind)
        return "stamped"

    @tool
    def judge(self) -> str:
        """Decide by the stamps."""
        self.state.sent = "decided"
        return "decided"

    def verify(self, state: Parcel) -> bool:
        return state.looked and state.city in state.notes and bool(state.sent)

    def oracle(self, state: Parcel) -> Iterator[ToolCall]:
        if not state.looked:
            yield ToolCall("look", {})
        if not state.notes:
            yield ToolCall("stamp", {"kind": state.city})
        yield ToolCall("judge", {})


class LevelIgnored(Post):
    """Three levels that are one."""

    difficulties = (1, 2, 3)

    def make_task(self, seed, split="train", *, difficulty=None, prompt_seed=None):
        return super().make_task(seed, split, difficulty=1 if difficulty is None else difficulty)

    def _initial_state(self, seed, difficulty):
        return super()._initial_state(seed, 1)


class PlainGym(gymnasium.Env[str, str]):
    """No ToolEnv: guess a number between 0 and 99 that is warmer or colder. Sound."""

    metadata: ClassVar = {"render_modes": []}

    def __init__(self) -> None:
        self.observation_space, self.action_space = UnicodeText(200), UnicodeText(20)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self._rng = Random(f"plain:{seed}")
        self._number, self._over = self._rng.randrange(100), False
        return f"game {self._rng.randrange(10_000)}: guess a number from 0 to 99", {}

    def step(self, action):
        right = action.strip() == str(self._number)
        said = (
            "right"
            if right
            else "higher"
            if action.strip().isdigit() and int(action) < self._number
            else "lower"
        )
        return said, float(right), right, False, {"success": right}


class FarmedGym(PlainGym):
    """Looking pays, every time."""

    def step(self, action):
        if action.strip() == "look":
            return "a number is near", 0.3, False, False, {"success": False}
        return super().step(action)


class UnseededGym(PlainGym):
    """Attempts at one seed are of different numbers."""

    counter = itertools.count()

    def reset(self, *, seed=None, options=None):
        told = super().reset(seed=seed, options=options)
        self._number = 37 * next(self.counter) % 100
        return told


class OnlyTheOracleKnows(Post):
    """Sending asks for a code that nothing ever shows."""

    @tool
    def send(self, city: str, code: str) -> str:
        """Send it, with the code of the day."""
        if code == self._code(self.state):
            self.state.sent = city
        return "sent"

    def _code(self, state: Parcel) -> str:
        return "".join(Random(state.number).choices("bcdfghjk", k=6))

    def oracle(self, state: Parcel) -> Iterator[ToolCall]:
        if not state.looked:
            yield ToolCall("look", {"number": state.number})
        yield ToolCall("send", {"city": state.city, "code": self._code(state)})


class Loops(Post):
    """A number that cannot be makes a tool wait for ever, and it catches what should stop it."""

    @tool
    def look(self, number: int) -> str:
        """Look a parcel up."""
        while number < 1:
            try:
                number += 0
            except Exception:
                continue
        return super().look(number)


class RestOfNumber(Post):
    """The city follows from the parcel's number."""

    def generate(self, rng: Random, difficulty: int) -> Parcel:
        number = rng.randint(10_000, 99_999)
        return Parcel(number, CITIES[number % 3])


class NearlyAlwaysTheSame(Post):
    """Whatever is looked up, the verdict to give is nearly always the same."""

    def generate(self, rng: Random, difficulty: int) -> Parcel:
        return Parcel(rng.randint(10_000, 99_999), "Lyon" if rng.random() < 0.05 else "Oslo")

    @tool
    def send(self, north: Literal["yes", "no"]) -> str:
        """Send it north."""
        self.state.sent = north
        return "sent"

    def verify(self, state: Parcel) -> bool:
        return state.looked and (state.sent == "yes") == (state.city == "Oslo")

    def oracle(self, state: Parcel) -> Iterator[ToolCall]:
        if not state.looked:
            yield ToolCall("look", {"number": state.number})
        yield ToolCall("send", {"north": "yes" if state.city == "Oslo" else "no"})


class SplitLetters(Post):
    """Letters with accents come as two code points."""

    @tool
    def look(self, number: int) -> str:
        """Look a parcel up."""
        return f"{super().look(number)} (Universita\u0308t)"


class NoNumber(PlainGym):
    """A wrong guess pays no number."""

    def step(self, action):
        said, paid, *rest = super().step(action)
        return said, paid or float("nan"), *rest
