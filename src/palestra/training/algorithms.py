"""Algorithms by name: credit, a surrogate, how tokens are averaged. Adding one touches this file only."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from palestra.errors import ConfigError, name_hint
from palestra.training.advantages import (
    Advantages,
    Rewards,
    batch_mean,
    batch_zscore,
    group_mean,
    group_mean_batch_scale,
    group_zscore,
    leave_one_out,
)
from palestra.training.aggregation import Aggregation
from palestra.training.credit import (
    Credit,
    anchored,
    best_of_group,
    blended,
    by_batch,
    by_group,
    by_turn,
    returns,
)
from palestra.training.losses import LossFunction
from palestra.training.segments import CreditUnit
from palestra.training.surrogates import clipped, policy_gradient, ratio_clipped, sequence_clipped

SURROGATES: Mapping[str, Callable[..., LossFunction]] = {
    "clip": clipped,
    "gspo": sequence_clipped,
    "cispo": ratio_clipped,
    "policy_gradient": policy_gradient,
}
"""By the name that ``loss.surrogate`` knows."""


@dataclass(frozen=True)
class Algorithm:
    """What turns rewards into a gradient."""

    credit: Callable[..., Credit] | None = None
    """Makes the function from scored groups to an advantage per turn; None where a critic gives credit."""
    critic: CreditUnit | None = None
    """What a critic values: turns or tokens."""
    gamma: float | None = None
    """Discount per turn, or per token if the critic values tokens; None where whole attempts are compared."""
    gae_lambda: float | None = None
    """How far what was earned is trusted over the critic; None without one."""
    batch: Callable[[Sequence[Rewards]], list[Advantages]] | None = None
    """What a share of the advantage may be taken against instead of the group; None where it cannot."""
    own_spread: bool = False
    """Whether the smallest difference within a group is blown up to a whole unit, or breaks a tie."""
    pushes_away: bool = True
    """Whether any advantage is negative."""
    surrogate: str = "clip"
    """Key of ``SURROGATES``."""
    aggregation: Aggregation = "token_mean"

    def with_credit(self, *, gamma: float | None, gae_lambda: float | None) -> Algorithm:
        """The algorithm with another discount or lambda than its own where one is given.

        Raises:
            ConfigError: the algorithm has no use for it.
        """
        for name, value in {"gamma": gamma, "gae_lambda": gae_lambda}.items():
            if value is not None and getattr(self, name) is None:
                users = ", ".join(key for key, each in ALGORITHMS.items() if getattr(each, name) is not None)
                raise ConfigError(
                    f"credit.{name} is {value}, but this rl.algorithm has no use for it. Leave it out; "
                    f"those that use it are {users}."
                )
        return replace(
            self,
            gamma=self.gamma if gamma is None else gamma,
            gae_lambda=self.gae_lambda if gae_lambda is None else gae_lambda,
        )

    def make_credit(self, batch_share: float = 0.0) -> Credit:
        """The credit of an algorithm without a critic, ``batch_share`` of it against the whole batch.

        Raises:
            ConfigError: it has a critic, or does not compare within groups.
        """
        if self.credit is None:
            raise ConfigError("this rl.algorithm gives credit by its critic")
        credit = self.credit() if self.gamma is None else self.credit(gamma=self.gamma)
        if not batch_share:
            return credit
        if self.batch is None:
            users = ", ".join(key for key, each in ALGORITHMS.items() if each.batch is not None)
            raise ConfigError(
                f"credit.batch_share is {batch_share}, but this rl.algorithm has no use for it. "
                f"Leave it out; those that use it are {users}."
            )
        return blended(credit, by_batch(self.batch), batch_share)


ALGORITHMS: Mapping[str, Algorithm] = {
    "grpo": Algorithm(lambda: by_group(group_zscore), batch=batch_zscore, own_spread=True),
    "dr_grpo": Algorithm(lambda: by_group(group_mean), batch=batch_mean, aggregation="constant"),
    "gspo": Algorithm(
        lambda: by_group(group_zscore),
        batch=batch_zscore,
        own_spread=True,
        surrogate="gspo",
        aggregation="sequence_mean",
    ),
    "cispo": Algorithm(
        lambda: by_group(group_zscore), batch=batch_zscore, own_spread=True, surrogate="cispo"
    ),
    "rloo": Algorithm(lambda: by_group(leave_one_out), batch=batch_mean),
    "reinforce": Algorithm(returns, gamma=0.99, surrogate="policy_gradient"),
    "reinforce_pp": Algorithm(lambda: by_batch(batch_zscore)),
    "reinforce_pp_baseline": Algorithm(lambda: by_batch(group_mean_batch_scale), batch=batch_zscore),
    "raft": Algorithm(best_of_group, own_spread=True, pushes_away=False),
    "ppo": Algorithm(critic="turn", gamma=0.99, gae_lambda=0.95),
    "ppo_token": Algorithm(critic="token", gamma=1.0, gae_lambda=0.95),
    "gigpo": Algorithm(anchored, gamma=0.95, batch=batch_zscore, own_spread=True),
    "turn_rloo": Algorithm(by_turn, gamma=0.99, batch=batch_mean),
}


def find_algorithm(name: str) -> Algorithm:
    """The algorithm of that name.

    Raises:
        ConfigError: there is none; the nearest name is in the message.
    """
    if name not in ALGORITHMS:
        raise ConfigError(f"There is no rl.algorithm {name!r}. {name_hint(name, ALGORITHMS)}")
    return ALGORITHMS[name]


def make_surrogate(name: str, options: Mapping[str, Any]) -> LossFunction:
    """The surrogate of that name; options that are None are its own defaults.

    Raises:
        ConfigError: it has no such option.
    """
    make = SURROGATES[name]
    given = {key: value for key, value in options.items() if value is not None}
    unused = sorted(given.keys() - inspect.signature(make).parameters.keys())
    if unused:
        raise ConfigError(f"loss.{unused[0]} has no effect with the surrogate {name!r}; leave it out.")
    return make(**given)
