"""Algorithms by name: an advantage function, a loss and nothing else. Adding one touches
this file, and its name in the configuration.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from palestra.training.advantages import group_zscore
from palestra.training.losses import LossFunction, clipped_policy_loss


@dataclass(frozen=True)
class Algorithm:
    """What turns rewards into a gradient."""

    advantages: Callable[[Sequence[float | None]], list[float | None]]
    """Rewards of a group to advantages of its attempts."""
    make_loss: Callable[..., LossFunction]
    """The loss, given clip, KL and entropy weights by name."""


ALGORITHMS: Mapping[str, Algorithm] = {"grpo": Algorithm(group_zscore, clipped_policy_loss)}
