"""The checker finds what it is for, and names the rule."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import gymnasium
import pytest

from palestra.envs import ToolEnv, UnicodeText, call, check_env, make_env, tool
from palestra.errors import WorldError
from palestra.types import ToolCall

COUNTER = itertools.count()


@dataclass
class Door:
    key: int
    tried: int = -1


class Corridor(ToolEnv[Door]):
    """Open the door with the key that is asked for."""

    milestones: ClassVar = {"opened": lambda state: state.tried == state.key}

    def generate(self, rng: random.Random, difficulty: int) -> Door:
        return Door(rng.randint(0, 999))

    def observe(self, state: Door) -> str:
        return f"Try key {state.key}."

    def verify(self, state: Door) -> bool:
        return state.tried == state.key

    def oracle(self, state: Door) -> Iterator[ToolCall]:
        yield call("use", key=state.key)

    @tool
    def use(self, key: int) -> str:
        """Use a key."""
        self.state.tried = key
        return "done"


class Wandering(Corridor):
    def generate(self, rng: random.Random, difficulty: int) -> Door:
        return Door(next(COUNTER))


class Constant(Corridor):
    def generate(self, rng: random.Random, difficulty: int) -> Door:
        return Door(1)


class Unsolvable(Corridor):
    def verify(self, state: Door) -> bool:
        return False

    def done(self, state: Door) -> bool:
        return state.tried >= 0


class Gifted(Corridor):
    milestones: ClassVar = {"opened": lambda state: True}


class Moody(Corridor):
    @tool
    def use(self, key: int) -> str:
        """Use a key."""
        self.state.tried = key
        return f"done {next(COUNTER)}"


class Endless(Corridor):
    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        if self._finished:
            return "", 0.0, True, False, {}
        return super().step(action)


class Leaky(Corridor):
    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        observation, reward, terminated, truncated, info = super().step(action)
        return observation, reward, terminated, truncated, {k: v for k, v in info.items() if k != "repeated"}


def test_a_sound_world_passes() -> None:
    check_env(Corridor())


@pytest.mark.parametrize(
    ("world", "rule"),
    [
        (Wandering, "pure functions|gymnasium"),
        (Constant, "seeds differ"),
        (Unsolvable, "oracle solves"),
        (Gifted, "milestones"),
        (Moody, "fixes the episode"),
        (Endless, "after the end"),
        (Leaky, "facts are complete"),
    ],
)
def test_a_broken_world_is_refused_by_the_rule_it_breaks(world: type[Corridor], rule: str) -> None:
    with pytest.raises(WorldError, match=f"rule '.*({rule}).*' fails for {world.__name__}"):
        check_env(world())


class Bare(gymnasium.Env[str, str]):
    """A world written without the toolkit, and without facts."""

    def __init__(self) -> None:
        self.observation_space = UnicodeText(100)
        self.action_space = UnicodeText(100)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        return f"say {self.np_random.integers(1000)}", {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        return "no", 0.0, False, False, {}


def test_a_world_without_the_toolkit_is_checked_too() -> None:
    with pytest.raises(WorldError, match="facts are complete"):
        check_env(Bare())


def test_a_space_of_texts_takes_any_unicode_and_samples_by_seed() -> None:
    space = UnicodeText(50)
    space.seed(4)
    first = [space.sample() for _ in range(20)]
    space.seed(4)
    assert first == [space.sample() for _ in range(20)]
    assert all(text in space and text.encode() is not None for text in first)
    assert "größe 💡 東京" in space
    assert "x" * 51 not in space
    assert 3 not in space
    assert space == UnicodeText(50) != UnicodeText(51)


def test_the_checker_leaves_a_builtin_world_usable() -> None:
    env = make_env("orders")
    check_env(env, seeds=range(3))
    assert env.reset(seed=1)[0]
