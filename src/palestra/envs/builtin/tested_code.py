"""Small functions and their tests, and which tests somebody's code for a function fails.

The functions stand in ``code_repair.txt``, each under its contract and above its tests. The surprising
choice: code that we wrote runs once with all tests, anybody else's only with those that are asked for, or it
could tell in one test what it saw in another.
"""

import ast
import json
from collections.abc import Sequence
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from palestra.envs import Called, SandboxLimits, call_sandboxed
from palestra.envs.builtin.mutations import mutants

_FILE = Path(__file__).with_name("code_repair.txt")
_LIMITS = SandboxLimits(seconds=30.0)
"""CPU time ends code that runs on; wall time is ample, or a busy machine would judge, and be remembered."""


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
    read = ast.literal_eval
    return Function(
        name,
        source,
        tuple(
            Example(f"{name}({got})", name, list(read(f"({got},)")), read(wanted)) for got, wanted in pairs
        ),
    )


@cache
def examples() -> dict[str, Example]:
    """All tests by their text."""
    return {each.text: each for function in functions().values() for each in function.examples}


def failures(name: str, source: str, asked: Sequence[str]) -> list[Failure]:
    """The tests that a function fails as ``source`` has it.

    It runs in the sandbox and is never told what is wanted. Code of somebody else's runs with the tests
    that are asked for and no others.
    """
    function = functions()[name]
    batch = function.examples if source in _own(name) else tuple(examples()[text] for text in asked)
    called = _called(source, json.dumps([[each.function, each.given] for each in batch]))
    failed = [
        Failure(each, got)
        for each, got in zip(batch, called, strict=True)
        if got.failed or _unlike(got.value, each.wanted)
    ]
    return [failure for failure in failed if failure.example.text in asked]


@cache
def _own(name: str) -> frozenset[str]:
    """What is known of a function: right, and with each bug."""
    source = functions()[name].source
    return frozenset({source, *(each.source for each in mutants(source))})


@lru_cache(maxsize=4096)
def _called(source: str, calls: str) -> tuple[Called, ...]:
    return call_sandboxed(source, json.loads(calls), _LIMITS)


def _unlike(one: Any, other: Any) -> bool:
    """Whether two values differ as JSON, where True is not 1 and 1 is not 1.0."""
    return json.dumps(one, sort_keys=True) != json.dumps(other, sort_keys=True)


def _short(value: Any) -> str:
    text = ascii(value)
    return text if len(text) <= 40 else f"{text[:37]}..."
