"""Advantages: from rewards to a number per attempt or per turn. Pure functions over floats, no torch.

An estimator compares attempts at one task with one seed, a *group*. The surprising choice: spread is judged
by largest minus smallest *before* any other arithmetic, so equal rewards give exactly 0 and never a rounding
error divided by another. An unscored attempt is None: it takes part in nothing and stays None.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence

from palestra.errors import ConfigError

MIN_SPREAD = 1e-9
"""Rewards nearer to each other than this are the same reward, summed in another order."""

Rewards = Sequence[float | None]
"""One total per attempt; None where it could not be scored."""
Advantages = list[float | None]


def group_zscore(rewards: Rewards) -> Advantages:
    """GRPO: distance from the group's mean in units of its (population) standard deviation.

    Shao et al. 2024, "DeepSeekMath", section 4.1.

    Returns:
        One advantage per attempt. Zero spread, or a single scored attempt, gives exactly 0.0.

    Raises:
        ConfigError: a group of one, which has nothing to compare with.
    """
    return _from_mean(rewards, _deviation)


def group_mean(rewards: Rewards) -> Advantages:
    """Dr. GRPO: distance from the group's mean, not divided by its deviation.

    Liu et al. 2025, "Understanding R1-Zero-Like Training", section 3.1: the division weighs groups of little
    spread up, whatever their spread comes from.

    Raises:
        ConfigError: a group of one.
    """
    return _from_mean(rewards, lambda _: 1.0)


def leave_one_out(rewards: Rewards) -> Advantages:
    """RLOO: distance from the mean of the *other* attempts, which is n / (n - 1) of ``group_mean``.

    Ahmadian et al. 2024, "Back to Basics". The baseline does not depend on the attempt it is
    taken from, so the gradient is unbiased in size as well as in direction.

    Raises:
        ConfigError: a group of one.
    """
    return _from_mean(rewards, lambda scored: (len(scored) - 1) / len(scored))


def best_success(rewards: Rewards, successes: Sequence[bool | None]) -> Advantages:
    """RAFT: 1.0 for the best-rewarded successful attempt (all of them if several tie), 0.0 for the rest.

    Dong et al. 2023, "RAFT"; only successes as in Xiong et al. 2025, "A Minimalist Approach": the best of a
    group that failed is a failure.

    Raises:
        ConfigError: a group of one.
    """
    _refuse_alone(rewards)
    solved = [r for r, success in zip(rewards, successes, strict=True) if r is not None and success]
    least = max(solved, default=math.inf) - MIN_SPREAD
    return [
        None if reward is None else float(bool(success) and reward >= least)
        for reward, success in zip(rewards, successes, strict=True)
    ]


def batch_zscore(groups: Sequence[Rewards]) -> list[Advantages]:
    """REINFORCE++: distance from the mean of the whole batch in units of the batch's deviation.

    Hu et al. 2025, "REINFORCE++". Tasks are not compared with themselves: an attempt at a hard
    task is judged by how others did at easier ones.
    """
    scored = [reward for rewards in groups for reward in rewards if reward is not None]
    if not has_reward_spread(scored):
        return [_zeros(rewards) for rewards in groups]
    mean, deviation = _mean(scored), _deviation(scored)
    return [_centred(rewards, mean, deviation) for rewards in groups]


def batch_mean(groups: Sequence[Rewards]) -> list[Advantages]:
    """Distance from the mean of the whole batch, in the rewards' own unit."""
    scored = [reward for rewards in groups for reward in rewards if reward is not None]
    if not has_reward_spread(scored):
        return [_zeros(rewards) for rewards in groups]
    mean = _mean(scored)
    return [_centred(rewards, mean, 1.0) for rewards in groups]


def group_mean_batch_scale(groups: Sequence[Rewards]) -> list[Advantages]:
    """REINFORCE++-baseline: ``group_mean`` in units of the deviation that it has over the whole batch.

    Hu et al. 2025, "REINFORCE++".

    Raises:
        ConfigError: a group of one.
    """
    centred = [group_mean(rewards) for rewards in groups]
    scored = [advantage for advantages in centred for advantage in advantages if advantage is not None]
    if not has_reward_spread(scored):
        return centred
    deviation = _deviation(scored)
    return [_centred(advantages, 0.0, deviation) for advantages in centred]


def discounted_returns(rewards: Sequence[float], gamma: float) -> list[float]:
    """Of each turn, the sum of its own and all later rewards, each turn ahead discounted by ``gamma``."""
    returns, ahead = [0.0] * len(rewards), 0.0
    for index in reversed(range(len(rewards))):
        returns[index] = ahead = rewards[index] + gamma * ahead
    return returns


def gae(
    rewards: Sequence[float], values: Sequence[float], after: float, *, gamma: float, gae_lambda: float
) -> list[float]:
    """Generalised advantage estimates of one attempt, over its turns or over its action tokens.

    Schulman et al. 2016, "High-Dimensional Continuous Control Using Generalized Advantage Estimation",
    equation 16: the sum over l of ``(gamma * gae_lambda)^l`` times the error ``r + gamma * V(next) - V`` of
    the step l ahead.

    Args:
        rewards: of each step.
        values: the critic's value of the state before each step.
        after: its value of the state after the last step; 0.0 if the episode ended there by itself, and the
            critic's value if a limit cut it.
        gamma: discount per step.
        gae_lambda: 0 trusts the critic after one step, 1 trusts what was earned.
    """
    advantages, ahead, following = [0.0] * len(rewards), 0.0, after
    for step in reversed(range(len(rewards))):
        delta = rewards[step] + gamma * following - values[step]
        advantages[step] = ahead = delta + gamma * gae_lambda * ahead
        following = values[step]
    return advantages


def anchored_zscore(
    states: Sequence[Sequence[Hashable]], returns: Sequence[Sequence[float]]
) -> list[list[float]]:
    """GiGPO's step advantages: returns from equal states, compared across attempts and turns.

    Feng et al. 2025, "Group-in-Group Policy Optimization".

    Args:
        states: per attempt, the environment's state before each turn.
        returns: per attempt, the discounted return from each turn.

    Returns:
        Per attempt and turn, the ``group_zscore`` among all turns taken from an equal state; 0.0 for a state
        that was met once.
    """
    places: dict[Hashable, list[tuple[int, int]]] = defaultdict(list)
    for attempt, visited in enumerate(states):
        for turn, state in enumerate(visited):
            places[state].append((attempt, turn))
    advantages = [[0.0] * len(each) for each in returns]
    for met in places.values():
        if len(met) > 1:
            compared = group_zscore([returns[attempt][turn] for attempt, turn in met])
            for (attempt, turn), advantage in zip(met, compared, strict=True):
                advantages[attempt][turn] = advantage or 0.0
    return advantages


def turn_leave_one_out(returns: Sequence[Sequence[float]]) -> list[list[float]]:
    """Return from each turn minus the mean of the *other* attempts' returns from the turn of that number.

    Unbiased although the policy decides who reaches a turn: given that an attempt reached it, the baseline is
    made of other attempts alone, so it does not depend on the action taken there. A mean that counts the
    attempt itself shrinks late turns, which few reach, and gives nothing to a turn reached by one;
    ``docs/algorithms/turn_rloo.md`` has the derivation. A turn that no other attempt reached is compared with
    the others' whole return.

    Args:
        returns: per attempt of one group, the discounted return from each of its turns, at least one each.

    Raises:
        ConfigError: a group of one.
    """
    _refuse_alone(returns)
    advantages = []
    for attempt, mine in enumerate(returns):
        others = [each for other, each in enumerate(returns) if other != attempt]
        whole = _mean([each[0] for each in others])
        reached = ([each[turn] for each in others if len(each) > turn] for turn in range(len(mine)))
        baselines = [_mean(there) if there else whole for there in reached]
        advantages.append([_apart(value, baseline) for value, baseline in zip(mine, baselines, strict=True)])
    return advantages


def lean(advantage: float, negative_weight: float) -> float:
    """The advantage, a negative one scaled by ``negative_weight``."""
    return advantage if advantage > 0 else advantage * negative_weight


def has_reward_spread(rewards: Sequence[float]) -> bool:
    """Whether scored rewards differ by more than the order of their additions can make them.

    One that is no number differs from all, so that it is not taken for calm.
    """
    if any(map(math.isnan, rewards)):
        return True
    return bool(rewards) and max(rewards) - min(rewards) > MIN_SPREAD


def _refuse_alone(group: Sequence[object]) -> None:
    if len(group) < 2:
        raise ConfigError(f"a group of {len(group)} attempts has no baseline: set group_size to 2 or more")


def _from_mean(rewards: Rewards, unit: Callable[[list[float]], float]) -> Advantages:
    """Distances from the group's mean in a unit that is a function of the scored rewards."""
    _refuse_alone(rewards)
    scored = [reward for reward in rewards if reward is not None]
    if not has_reward_spread(scored):
        return _zeros(rewards)
    return _centred(rewards, _mean(scored), unit(scored))


def _apart(value: float, baseline: float) -> float:
    return value - baseline if has_reward_spread([value, baseline]) else 0.0


def _centred(rewards: Rewards, mean: float, unit: float) -> Advantages:
    return [None if reward is None else (reward - mean) / unit for reward in rewards]


def _zeros(rewards: Rewards) -> Advantages:
    return [None if reward is None else 0.0 for reward in rewards]


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def _deviation(values: Sequence[float]) -> float:
    mean = _mean(values)
    return math.sqrt(math.fsum((value - mean) ** 2 for value in values) / len(values))
