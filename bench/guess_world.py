"""A dialogue of guesses, in functions that need nothing but Python: both sides of the benchmark against TRL play it."""

import re

FILLER = (
    "The town by the river kept a careful record of every trade. Wheat, salt, cloth and iron were counted at dawn, "
    "and the clerk wrote each number in a long blue book before the market opened. "
)
SYSTEM = "You guess numbers. Say one number a turn."


def prompt(game: int) -> str:
    """The task: about 250 tokens to read first, as a world's rules and records are."""
    return f"{FILLER * 5}\nGame {game}: guess my number from 1 to 100."


def secret(game: int) -> int:
    """The number of a game."""
    return game * 37 % 100 + 1


def answer(number: int, said: str) -> tuple[float, str]:
    """Reward of a guess, nearer is better, and the reply."""
    found = re.search(r"\d{1,6}", said)
    if found is None:
        return -0.5, "Answer with a number between 1 and 100."
    guess = int(found.group())
    if guess == number:
        return 1.0, "Correct."
    return 1 - min(100, abs(guess - number)) / 100, "Higher." if guess < number else "Lower."
