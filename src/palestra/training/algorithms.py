"""Algorithms by name: credit, a loss and nothing else. Adding one touches this file, and its name in the
configuration.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from palestra.training.advantages import (
    batch_zscore,
    group_mean,
    group_mean_batch_scale,
    group_zscore,
    leave_one_out,
)
from palestra.training.credit import Credit, anchored, best_of_group, by_batch, by_group, by_turn
from palestra.training.losses import LossFunction, clipped_policy_loss


@dataclass(frozen=True)
class Algorithm:
    """What turns rewards into a gradient."""

    credit: Credit
    """Scored groups to an advantage per turn."""
    make_loss: Callable[..., LossFunction]
    """The loss, given clip, KL and entropy weights by name."""


ALGORITHMS: Mapping[str, Algorithm] = {
    "grpo": Algorithm(by_group(group_zscore), clipped_policy_loss),
    "dr_grpo": Algorithm(by_group(group_mean), clipped_policy_loss),
    "rloo": Algorithm(by_group(leave_one_out), clipped_policy_loss),
    "reinforce_pp": Algorithm(by_batch(batch_zscore), clipped_policy_loss),
    "reinforce_pp_baseline": Algorithm(by_batch(group_mean_batch_scale), clipped_policy_loss),
    "raft": Algorithm(best_of_group(), clipped_policy_loss),
    "gigpo": Algorithm(anchored(), clipped_policy_loss),
    "turn_rloo": Algorithm(by_turn(), clipped_policy_loss),
}
