"""The engine protocol: token ids in, sampled token ids and their log-probabilities out.

An engine serves many episodes at once; each awaits its own ``generate`` and none waits for the slowest.
A *session* names an episode, so that an engine may keep what it has already read of it; a caller that
forgets to ``release`` one only wastes memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from palestra.errors import ConfigError
from palestra.types import FinishReason

_COLDEST = 0.01
"""Logits are divided by it; much colder ones overflow."""


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How one action is sampled."""

    max_tokens: int
    """Most tokens of the action, its end token included."""
    temperature: float = 1.0
    """0 is greedy. Log-probabilities are those at this temperature (at 1 when greedy)."""
    seed: int = 0
    """Makes the sample a function of the request alone, whatever else is in the batch."""

    def __post_init__(self) -> None:
        """Refuse what cannot be sampled."""
        if self.max_tokens < 1:
            raise ConfigError(f"max_tokens must be at least 1, not {self.max_tokens}")
        if self.temperature != 0 and not self.temperature >= _COLDEST:
            raise ConfigError(
                f"temperature must be 0 (greedy), or {_COLDEST:g} or more, not {self.temperature:g}"
            )


def as_end_ids(end_ids: int | Sequence[int]) -> tuple[int, ...]:
    """The ids that end an action, given as one or as several."""
    return (end_ids,) if isinstance(end_ids, int) else tuple(end_ids)


@dataclass(frozen=True, slots=True)
class Generation:
    """What one request came to."""

    ids: tuple[int, ...]
    """Sampled ids, the end token included when there was one."""
    logprobs: tuple[float, ...]
    """One per id, under the policy that sampled it."""
    finish_reason: FinishReason
    """``length`` when ``max_tokens`` cut it."""
    policy_version: int
    """Version of the weights that sampled it."""


class Engine(Protocol):
    """A token server."""

    async def generate(self, prompt_ids: Sequence[int], params: SamplingParams, session: str) -> Generation:
        """Sample a continuation of ``prompt_ids``."""

    def release(self, session: str) -> None:
        """Forget what was kept for an episode."""
