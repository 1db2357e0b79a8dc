"""The smallest world that needs copying: say the word that was asked for."""

from dataclasses import dataclass
from random import Random

from palestra.envs import ToolEnv, tool
from palestra.types import ToolCall

WORDS = ("red", "blue", "green", "lamp", "bread", "river", "stone", "glass")


@dataclass
class Echo:
    word: str
    number: int
    said: str = ""


class EchoWorld(ToolEnv[Echo]):
    """Say the word that was asked for."""

    difficulties = (1,)
    default_difficulty = 1
    milestones = {"spoke": lambda state: bool(state.said)}  # noqa: RUF012

    def generate(self, rng: Random, difficulty: int) -> Echo:
        return Echo(rng.choice(WORDS), rng.randint(0, 10_000))

    def observe(self, state: Echo) -> str:
        return f"number {state.number}, word {state.word}"

    @tool
    def say(self, word: str) -> str:
        """Say a word."""
        self.state.said = word
        return "heard"

    def done(self, state: Echo) -> bool:
        return bool(state.said)

    def verify(self, state: Echo) -> bool:
        return state.said == state.word

    def oracle(self, state: Echo):
        if not state.said:
            yield ToolCall("say", {"word": state.word})
