"""Plays given actions in a process of its own: ``python -m palestra.audit.elsewhere``, JSON on its input."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import gymnasium

from palestra.envs import ToolEnv, make_env


def record(make: Callable[[], gymnasium.Env[str, str]], played: Sequence[Sequence[Any]]) -> list[list[Any]]:
    """Of each seed and its actions: the prompt, and observation and reward of each action."""
    found = []
    for seed, actions in played:
        world = make()
        options = {"task": world.make_task(seed)} if isinstance(world, ToolEnv) else None
        prompt, _ = world.reset(seed=seed, options=options)
        steps: list[Any] = [prompt]
        for action in actions:
            observation, reward, terminated, truncated, _ = world.step(action)
            steps.append([observation, float(reward)])
            if terminated or truncated:
                break
        found.append(steps)
    return found


if __name__ == "__main__":
    asked = json.load(sys.stdin)
    print(json.dumps(record(partial(make_env, asked["world"], **asked["options"]), asked["played"])))
