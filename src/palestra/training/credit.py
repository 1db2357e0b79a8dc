"""Credit: from scored groups to an advantage per turn of every attempt.

The estimators in ``advantages`` know numbers only; here they are given what they compare. An attempt
without a score gets None and is not trained on.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence

from palestra.training.advantages import (
    Advantages,
    Rewards,
    anchored_zscore,
    batch_zscore,
    best_success,
    discounted_returns,
    group_zscore,
    turn_leave_one_out,
)
from palestra.types import Trajectory, TrajectoryGroup

TurnAdvantages = list[float] | None
"""One number per turn of an attempt; None for an unscored one."""
Credit = Callable[[Sequence[TrajectoryGroup]], list[list[TurnAdvantages]]]
"""The groups of an update to their attempts' advantages, in the order given."""


def of_each(credit: Callable[[TrajectoryGroup], list[TurnAdvantages]]) -> Credit:
    """Credit of each group by itself."""
    return lambda groups: [credit(group) for group in groups]


def by_group(estimate: Callable[[Rewards], Advantages]) -> Credit:
    """Compare the total rewards within each group; every turn of an attempt gets the attempt's advantage."""
    return of_each(lambda group: _spread(group, estimate(_totals(group))))


def by_batch(estimate: Callable[[Sequence[Rewards]], list[Advantages]]) -> Credit:
    """Like ``by_group`` for an estimator that looks at all groups of an update at once."""

    def credit(groups: Sequence[TrajectoryGroup]) -> list[list[TurnAdvantages]]:
        estimated = estimate([_totals(group) for group in groups])
        return [_spread(group, advantages) for group, advantages in zip(groups, estimated, strict=True)]

    return credit


def blended(credit: Credit, batch: Credit, share: float) -> Credit:
    """``1 - share`` of one credit and ``share`` of another, turn by turn.

    With the group's mean as one baseline and the batch's as the other this is a baseline shrunk toward the
    batch's. A group in which every attempt fails alike has no gradient of its own; the batch still tells it
    that others did better.
    """

    def mixed(groups: Sequence[TrajectoryGroup]) -> list[list[TurnAdvantages]]:
        return [
            [_mixed(mine, others, share) for mine, others in zip(group, against, strict=True)]
            for group, against in zip(credit(groups), batch(groups), strict=True)
        ]

    return mixed


def best_of_group() -> Credit:
    """RAFT: the best successful attempt of each group is imitated, the others are left out."""
    return of_each(
        lambda group: _spread(
            group, best_success(_totals(group), [each.success for each in group.trajectories])
        )
    )


def anchored(*, gamma: float = 0.95, step_weight: float = 1.0) -> Credit:
    """GiGPO: GRPO's advantage plus, per turn, that among all turns of the group taken from an equal state.

    Feng et al. 2025; the state is the world's own (``state_hash``), whatever the agent was shown.

    Args:
        gamma: discount of the returns that are compared from a state on.
        step_weight: weight of the second term.
    """

    def of_turns(scored: Sequence[Trajectory]) -> list[list[float]]:
        return anchored_zscore([_states(each) for each in scored], [_returns(each, gamma) for each in scored])

    def credit(group: TrajectoryGroup) -> list[TurnAdvantages]:
        return [
            None if total is None or turns is None else [total + step_weight * turn for turn in turns]
            for total, turns in zip(group_zscore(_totals(group)), _of_scored(group, of_turns), strict=True)
        ]

    return of_each(credit)


def by_turn(*, gamma: float = 0.99) -> Credit:
    """Turn-level RLOO: each turn's return against the other attempts' returns from the same turn on.

    Args:
        gamma: discount per turn.
    """

    def of_turns(scored: Sequence[Trajectory]) -> list[list[float]]:
        returns = [_returns(each, gamma) for each in scored]
        return turn_leave_one_out(returns) if len(returns) > 1 else [[0.0] * len(each) for each in returns]

    return of_each(lambda group: _of_scored(group, of_turns))


def returns(*, gamma: float = 0.99) -> Credit:
    """REINFORCE: each turn's discounted return, as a z-score among all turns of the batch.

    Williams 1992, "Simple Statistical Gradient-Following Algorithms", with the batch's mean as baseline.
    """

    def credit(groups: Sequence[TrajectoryGroup]) -> list[list[TurnAdvantages]]:
        found = [
            _of_scored(group, lambda scored: [_returns(each, gamma) for each in scored]) for group in groups
        ]
        flat = [value for group in found for each in group if each is not None for value in each]
        scaled = iter(batch_zscore([flat])[0])
        return [
            [None if each is None else [next(scaled) or 0.0 for _ in each] for each in group]
            for group in found
        ]

    return credit


def _mixed(first: TurnAdvantages, second: TurnAdvantages, share: float) -> TurnAdvantages:
    if first is None or second is None:
        return None
    return [(1.0 - share) * one + share * other for one, other in zip(first, second, strict=True)]


def _of_scored(
    group: TrajectoryGroup, estimate: Callable[[Sequence[Trajectory]], list[list[float]]]
) -> list[TurnAdvantages]:
    """What ``estimate`` makes of the scored attempts, and None in the place of the others."""
    estimated = iter(estimate([each for each in group.trajectories if each.reward is not None]))
    return [None if each.reward is None else next(estimated) for each in group.trajectories]


def _totals(group: TrajectoryGroup) -> list[float | None]:
    return [trajectory.reward for trajectory in group.trajectories]


def _spread(group: TrajectoryGroup, advantages: Advantages) -> list[TurnAdvantages]:
    return [
        None if advantage is None else [advantage] * len(trajectory.turns)
        for trajectory, advantage in zip(group.trajectories, advantages, strict=True)
    ]


def _returns(trajectory: Trajectory, gamma: float) -> list[float]:
    return discounted_returns([turn.reward or 0.0 for turn in trajectory.turns], gamma)


def _states(trajectory: Trajectory) -> list[Hashable]:
    """The state before each turn; that before the first is the task's own."""
    return [trajectory.task.content_hash, *(turn.facts.state_hash for turn in trajectory.turns[:-1])]
