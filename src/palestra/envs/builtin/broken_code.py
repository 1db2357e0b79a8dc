"""Small functions with tests, and bugs in them that the tests catch: what ``code_repair`` draws from.

The functions stand in ``code_repair.txt``, each under its contract and above its tests. The surprising
choice: bugs are found out when a task is drawn, by running every test of the function in the sandbox, so no
list of them can go out of date.
"""

import ast
import json
from collections.abc import Sequence
from functools import cache, lru_cache
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

from palestra.envs import Called, call_sandboxed
from palestra.envs.builtin.mutations import mutants
from palestra.errors import WorldError

_FILE = Path(__file__).with_name("code_repair.txt")


class Example(NamedTuple):
    """A test: a call as it is written, its parts, and what it should return."""

    text: str
    function: str
    given: list[Any]
    wanted: Any


class Function(NamedTuple):
    """A right function with its contract, and its tests."""

    name: str
    source: str
    examples: tuple[Example, ...]


class Failure(NamedTuple):
    """A test that fails, and what came instead."""

    example: Example
    called: Called

    def text(self) -> str:
        """Both in a few words."""
        example, called = self
        if not called.failed:
            return f"{example.text} gives {_short(called.value)}, wants {_short(example.wanted)}"
        where = f" in line {called.line}" if called.line else ""
        return f"{example.text} stops: {called.failed}{where}, wants {_short(example.wanted)}"


@cache
def functions() -> dict[str, Function]:
    """All of them by name."""
    blocks = _FILE.read_text(encoding="utf-8").strip().split("\n\n")
    return {each.name: each for each in map(_function, blocks)}


def _function(block: str) -> Function:
    lines = block.splitlines()
    source = "".join(f"{line}\n" for line in lines if not line.startswith("> "))
    name = lines[1].removeprefix("def ").partition("(")[0]
    written = [each for line in lines if line.startswith("> ") for each in line[2:].split(" | ")]
    pairs = [each.split(" -> ") for each in written]
    return Function(
        name,
        source,
        tuple(
            Example(f"{name}({given})", name, list(ast.literal_eval(f"({given},)")), ast.literal_eval(wanted))
            for given, wanted in pairs
        ),
    )


def failures(source: str, examples: Sequence[Example]) -> list[Failure]:
    """The tests that ``source`` fails. It runs in the sandbox and is never told what is wanted."""
    called = _called(source, json.dumps([[each.function, each.given] for each in examples]))
    pairs = zip(examples, called, strict=True)
    return [Failure(each, got) for each, got in pairs if got.failed or _unlike(got.value, each.wanted)]


def draw_bug(rng: Random, kind: str, function: Function) -> tuple[str, list[Example], list[Example]] | None:
    """A bug of a kind in a function, if it has one that can be caught.

    Returns:
        The source with the bug, three visible tests and the hidden ones; some of both fail.
    """
    bugs = [each.source for each in mutants(function.source) if each.kind == kind]
    for source in rng.sample(bugs, len(bugs)):
        failing = [each.example for each in failures(source, function.examples)]
        if len(failing) > 1:
            shown, kept = rng.sample(failing, 2)
            rest = [each for each in function.examples if each not in (shown, kept)]
            rng.shuffle(rest)
            return source, rng.sample([shown, *rest[:2]], 3), [kept, *rest[2:]]
    return None


def draw_bugs(rng: Random, kind: str, count: int) -> list[tuple[str, list[Example], list[Example]]]:
    """As ``draw_bug``, in ``count`` different functions.

    Raises:
        WorldError: there are not so many that can have it.
    """
    names = rng.sample(sorted(functions()), len(functions()))
    drawn = (draw_bug(rng, kind, functions()[name]) for name in names)
    found = [bug for bug, _ in zip((each for each in drawn if each), range(count), strict=False)]
    if len(found) < count:
        raise WorldError(f"only {len(found)} functions of {_FILE.name} can have a bug of kind {kind!r}")
    return found


@lru_cache(maxsize=4096)
def _called(source: str, calls: str) -> tuple[Called, ...]:
    return call_sandboxed(source, json.loads(calls))


def _unlike(one: Any, other: Any) -> bool:
    """Whether two values differ as JSON, where True is not 1 and 1 is not 1.0."""
    return json.dumps(one, sort_keys=True) != json.dumps(other, sort_keys=True)


def _short(value: Any) -> str:
    text = ascii(value)
    return text if len(text) <= 40 else f"{text[:37]}..."
