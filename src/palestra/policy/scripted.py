"""Scripted policies: the oracle, a noisy teacher, random valid calls and replays.

They are the shipped fakes for tests and the teacher that collection learns from. A script is a function
of the world and a random generator; it speaks in text like a model, so it passes the same parser. The
noisy teacher is wrong on purpose: what it teaches must leave room for reinforcement learning.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol

from palestra.errors import WorldError
from palestra.policy.base import Sampled
from palestra.types import Facts, Message, ToolCall, ToolSpec


class ScriptableWorld(Protocol):
    """What a script may look at: the live state, the oracle, the declared tools."""

    state: Any
    reply_lost: bool
    """Whether a fault took something from the last reply."""

    @property
    def tool_specs(self) -> Sequence[ToolSpec]:
        """Declared tools."""

    def oracle(self, state: Any) -> Iterator[ToolCall]:
        """Right actions from ``state`` on."""

    def action_text(self, call: ToolCall) -> str:
        """A call as the text of an action."""


Script = Callable[[ScriptableWorld, random.Random, Sequence[str]], str]
"""World, generator and the episode's earlier actions to the next action's text."""


def oracle_script(world: ScriptableWorld, rng: random.Random, earlier: Sequence[str]) -> str:
    """The shortest correct action.

    Raises:
        WorldError: the world has no oracle, or it yields nothing before the episode's end.
    """
    return world.action_text(_first(_plan(world)))


def random_script(world: ScriptableWorld, rng: random.Random, earlier: Sequence[str]) -> str:
    """A random tool with random parameters of the right types."""
    spec = rng.choice(world.tool_specs)
    return world.action_text(ToolCall(spec.name, _random_parameters(spec, rng)))


def replay_script(actions: Sequence[str]) -> Script:
    """Say ``actions`` one by one; the last one over again if the episode goes on."""
    return lambda world, rng, earlier: actions[min(len(earlier), len(actions) - 1)]


@dataclass(frozen=True)
class NoisyTeacher:
    """The oracle with human failings, each at its own rate per turn; it asks again for what a reply lost."""

    skip: float = 0.06
    """Leaves out the step that is due and takes the one after it."""
    repeat: float = 0.06
    """Says its last action again."""
    wrong: float = 0.06
    """Picks another value for a choice (a wrong verdict) or another tool."""

    def __call__(self, world: ScriptableWorld, rng: random.Random, earlier: Sequence[str]) -> str:
        """The next action, right or not."""
        draw = rng.random()
        if earlier and (draw < self.repeat or world.reply_lost):
            return earlier[-1]
        plan = _plan(world)
        call = _first(plan)
        if self.repeat <= draw < self.repeat + self.skip:
            with suppress(Exception):  # the step after may need what this one would find out
                call = next(plan, call)
        elif draw >= 1 - self.wrong:
            call = _mistaken(call, world.tool_specs, rng)
        return world.action_text(call)


@dataclass(frozen=True)
class ScriptedPolicy:
    """A policy that follows a script."""

    name: str
    script: Script
    version: int = 0

    def open(self, prompt: Sequence[Message], world: Any, seed: int, session: str) -> ScriptedConversation:
        """Start an episode; the script sees the world."""
        return ScriptedConversation(self.script, world, random.Random(f"script:{seed}"))


class ScriptedConversation:
    """One scripted episode."""

    prompt_ids: tuple[int, ...] = ()

    def __init__(self, script: Script, world: ScriptableWorld, rng: random.Random) -> None:
        """Remember the world; nothing is rendered."""
        self._script, self._world, self._rng = script, world, rng
        self._earlier: list[str] = []

    def room(self) -> None:
        """Scripts have no context."""

    async def act(self) -> Sampled:
        """Ask the script."""
        text = self._script(self._world, self._rng, tuple(self._earlier))
        self._earlier.append(text)
        return Sampled(text)

    def observe(self, text: str, facts: Facts) -> tuple[int, ...]:
        """Scripts read the world instead."""
        return ()

    def close(self) -> tuple[int, ...]:
        """Nothing to let go."""
        return ()


def _plan(world: ScriptableWorld) -> Iterator[ToolCall]:
    return iter(world.oracle(world.state))


def _first(plan: Iterator[ToolCall]) -> ToolCall:
    """The due action of a plan.

    Raises:
        WorldError: the oracle raised, or has no action although the episode goes on.
    """
    try:
        call = next(plan, None)
    except Exception as error:
        raise WorldError(f"the world's oracle raised {error!r}") from error
    if call is None:
        raise WorldError("the world's oracle yields no action before the episode's end")
    return call


def _mistaken(call: ToolCall, tools: Sequence[ToolSpec], rng: random.Random) -> ToolCall:
    """The call with one choice changed, or another tool where it has no choice to change."""
    spec = next(spec for spec in tools if spec.name == call.tool_name)
    choices = {
        key: [value for value in schema["enum"] if value != call.parameters.get(key)]
        for key, schema in spec.parameters.get("properties", {}).items()
        if len(schema.get("enum", ())) > 1 and key in call.parameters
    }
    if choices:
        key = rng.choice(sorted(choices))
        return ToolCall(call.tool_name, {**call.parameters, key: rng.choice(choices[key])})
    other = rng.choice([spec for spec in tools if spec.name != call.tool_name] or [spec])
    return ToolCall(other.name, _random_parameters(other, rng))


def _random_parameters(spec: ToolSpec, rng: random.Random) -> dict[str, Any]:
    properties: Mapping[str, Mapping[str, Any]] = spec.parameters.get("properties", {})
    return {key: _random_value(properties[key], rng) for key in spec.parameters.get("required", properties)}


def _random_value(schema: Mapping[str, Any], rng: random.Random) -> Any:
    if "enum" in schema:
        return rng.choice(list(schema["enum"]))
    kind = schema.get("type")
    if kind == "integer":
        return rng.randint(int(schema.get("minimum", 0)), int(schema.get("maximum", 100)))
    if kind == "number":
        return round(rng.uniform(0, 100), 2)
    if kind == "boolean":
        return rng.random() < 0.5
    if kind == "array":
        return [_random_value(schema.get("items", {}), rng) for _ in range(rng.randint(0, 2))]
    return str(rng.randint(1000, 99999))
