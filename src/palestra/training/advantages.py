"""Advantages: from the rewards of a group to a number per attempt. Pure functions, no torch.

GRPO (Shao et al. 2024, "DeepSeekMath", section 4.1) compares attempts at one task with one seed. The
surprising choice: spread is judged by largest minus smallest *before* any other arithmetic, so equal
rewards give exactly 0 and never a rounding error divided by another.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from palestra.errors import ConfigError

MIN_SPREAD = 1e-9
"""Rewards nearer to each other than this are the same reward, summed in another order."""


def group_zscore(rewards: Sequence[float | None]) -> list[float | None]:
    """Each reward's distance from the group's mean in units of its standard deviation.

    Args:
        rewards: one per attempt; None is unscored, takes no part in mean or deviation and stays None.

    Returns:
        One advantage per attempt. Zero spread, or a single scored attempt, gives exactly 0.0.

    Raises:
        ConfigError: a group of one, which has nothing to compare with.
    """
    if len(rewards) < 2:
        raise ConfigError(f"a group of {len(rewards)} attempts has no baseline: set group_size to 2 or more")
    scored = [reward for reward in rewards if reward is not None]
    if not has_reward_spread(scored):
        return [None if reward is None else 0.0 for reward in rewards]
    mean = math.fsum(scored) / len(scored)
    deviation = math.sqrt(math.fsum((reward - mean) ** 2 for reward in scored) / len(scored))
    return [None if reward is None else (reward - mean) / deviation for reward in rewards]


def has_reward_spread(rewards: Sequence[float]) -> bool:
    """Whether scored rewards differ by more than the order of their additions can make them."""
    return bool(rewards) and max(rewards) - min(rewards) > MIN_SPREAD


def has_spread(advantages: Sequence[float | None]) -> bool:
    """Whether a group teaches anything."""
    return any(advantage for advantage in advantages)
