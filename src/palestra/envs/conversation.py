"""Scripted play: run a world by its oracle or by a list of actions, without any policy.

Tests, the audit and the noisy teacher all start here. The one surprising choice: the oracle's calls go
through text and the parser like a model's would, so an oracle that cannot be *said* does not count as a
solution.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from palestra.envs.toolenv import MAX_ORACLE_TURNS, ToolEnv
from palestra.errors import UnsolvableTask, WorldError
from palestra.types import Task, ToolCall


class ScriptedTurn(NamedTuple):
    """What a world answered to one scripted action."""

    action: str
    """The text that was sent."""
    observation: str
    """The reply."""
    reward: float
    """1.0 on the turn that ends in success."""
    terminated: bool
    """Whether the episode ended here."""
    info: dict[str, Any]
    """The facts of the turn."""


def play(env: ToolEnv[Any], task: Task, actions: Iterable[str]) -> list[ScriptedTurn]:
    """Reset ``env`` to ``task`` and take ``actions`` until they or the episode end."""
    env.reset(seed=task.seed, options={"task": task})
    turns: list[ScriptedTurn] = []
    for action in actions:
        observation, reward, terminated, _, info = env.step(action)
        turns.append(ScriptedTurn(action, observation, reward, terminated, info))
        if terminated:
            break
    return turns


def run_oracle(env: ToolEnv[Any], task: Task) -> list[ToolCall]:
    """Play ``task`` by the world's oracle and return the calls it made.

    Raises:
        WorldError: if the world has no oracle.
        UnsolvableTask: if the world's own solution does not satisfy its verifier.
    """
    if not env.has_oracle:
        raise WorldError(
            f"{env.name} has no oracle: define oracle(state) to show that its tasks can be solved"
        )
    env.reset(seed=task.seed, options={"task": task})
    calls: list[ToolCall] = []
    for _ in range(MAX_ORACLE_TURNS):
        call = next(iter(env.oracle(env.state)), None)
        if call is None:
            break
        calls.append(call)
        _, reward, terminated, _, _ = env.step(env.action_text(call))
        if reward > 0:
            return calls
        if terminated:
            break
    raise UnsolvableTask(
        f"task {task.id!r} is not solved by its own oracle: verify is false after {len(calls)} turns"
    )
