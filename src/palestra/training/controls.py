"""Controls: numbers of learning that follow what was measured, from one update to the next.

Their values go into the checkpoint, so a resumed run continues them. The weights of KL and entropy are
moved a little at every update and stand in its metrics; lambda and the rate are moved rarely and each time
for a reason, which is a ``Change``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from palestra.monitor import Change

_KL_GAIN = 0.1
_KL_ERROR = 0.2
_ENTROPY_STEP = 2e-3
_MAX_ENTROPY_WEIGHT = 0.05
_GUARD_STEP = 0.01
"""What a guard adds to the entropy's weight at once."""
LAMBDA_WINDOW = 6
"""Updates whose mean rewards decide over lambda; it moves at most once in as many."""
_LOWEST_LAMBDA, _HIGHEST_LAMBDA = 0.8, 0.99
_LOWERED, _RAISED = 0.02, 0.01
_SWING = 0.1
"""Of the first mean reward: smaller steps from update to update are no oscillation but sampling."""
_CRAWL = 0.05
"""Of the first mean reward: a gain in the window under this share is a crawl."""


@dataclass
class Controls:
    """What is moved, and what moves it."""

    kl_weight: float
    kl_target: float | None = None
    """Nats a token; None leaves the weight as it is."""
    entropy_floor: float | None = None
    """Nats a token; None leaves the entropy alone."""
    gae_lambda: float | None = None
    """Of a critic's credit; None without one."""
    schedule_lambda: bool = False
    """Whether lambda follows the curve of the reward."""
    rate_scale: float = 1.0
    """Of the learning rate; guards lower it."""
    _floor_weight: float = 0.0
    _guard_weight: float = 0.0
    _rewards: list[float] = field(default_factory=list)
    _skipped: bool = False

    @property
    def entropy_weight(self) -> float:
        """Weight of the entropy's bonus in the loss."""
        return min(self._floor_weight + self._guard_weight, _MAX_ENTROPY_WEIGHT)

    def observe(self, metrics: Mapping[str, float]) -> list[Change]:
        """Move the weights and lambda after an update with these metrics; the changes worth a reason."""
        distance, entropy = metrics.get("policy/kl_reference"), metrics.get("policy/entropy")
        if self.kl_target is not None and distance is not None:
            self.kl_weight = adapted_kl_weight(self.kl_weight, distance, self.kl_target)
        if self.entropy_floor is not None and entropy is not None:
            self._floor_weight = floored_entropy_weight(self._floor_weight, entropy, self.entropy_floor)
        if math.isfinite(metrics.get("gradient/norm", math.nan)):
            self._skipped = False
        if not self.schedule_lambda or self.gae_lambda is None or "reward/mean" not in metrics:
            return []
        self._rewards.append(metrics["reward/mean"])
        moved, reason = scheduled_lambda(self.gae_lambda, self._rewards)
        if moved == self.gae_lambda:
            self._rewards = self._rewards[-LAMBDA_WINDOW:]
            return []
        change = Change("lambda", self.gae_lambda, moved, reason)
        self.gae_lambda, self._rewards = moved, []
        return [change]

    def may_skip(self) -> bool:
        """Whether an update may be skipped: not two in a row, which no lower rate would mend."""
        self._skipped = not self._skipped
        return self._skipped

    def raise_entropy(self, reason: str) -> Change | None:
        """Give the entropy more weight for good; None where it has all it may have."""
        before = self.entropy_weight
        self._guard_weight = min(self._guard_weight + _GUARD_STEP, _MAX_ENTROPY_WEIGHT)
        now = self.entropy_weight
        return Change("weight of the entropy", before, now, reason) if now > before else None

    def lower_rate(self, rate: float, reason: str) -> Change:
        """Halve the learning rate, ``rate`` now, for good."""
        self.rate_scale /= 2
        return Change("learning rate", rate, rate / 2, reason)

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps."""
        return {
            "kl_weight": self.kl_weight,
            "floor_weight": self._floor_weight,
            "guard_weight": self._guard_weight,
            "rate_scale": self.rate_scale,
            "gae_lambda": self.gae_lambda,
            "rewards": self._rewards,
            "skipped": self._skipped,
        }

    def forget_rewards(self) -> None:
        """Judge lambda by what comes from here on, as where other tasks begin."""
        self._rewards = []

    def load(self, state: Mapping[str, Any]) -> None:
        """Continue from a checkpoint."""
        self.kl_weight, self.rate_scale = state["kl_weight"], state["rate_scale"]
        self._floor_weight, self._guard_weight = state["floor_weight"], state["guard_weight"]
        self.gae_lambda, self._rewards = state["gae_lambda"], list(state["rewards"])
        self._skipped = state["skipped"]


def adapted_kl_weight(weight: float, distance: float, target: float) -> float:
    """The KL weight moved toward a target: up if the policy is farther away, down if it is nearer.

    Ziegler et al. 2019, "Fine-Tuning Language Models from Human Preferences", section 2.2, by 2 % at most.
    """
    error = min(max(distance / target - 1.0, -_KL_ERROR), _KL_ERROR)
    return weight * (1.0 + _KL_GAIN * error)


def floored_entropy_weight(weight: float, entropy: float, floor: float) -> float:
    """The entropy bonus's weight: grows while the entropy is under its floor, and falls back to 0 above it.

    Each update moves it by the relative distance from the floor, so a policy that is safely above has no
    bonus at all and is left to learn.
    """
    moved = weight + _ENTROPY_STEP * min((floor - entropy) / floor, 1.0)
    return min(max(moved, 0.0), _MAX_ENTROPY_WEIGHT)


def scheduled_lambda(gae_lambda: float, rewards: Sequence[float]) -> tuple[float, str]:
    """Lambda after a look at the curve: lower when the reward oscillates, higher when it crawls.

    Returns that oscillate have too much variance, and a lower lambda trusts the critic's averages; a crawl
    may be the critic's bias, which a higher lambda trusts less (Schulman et al. 2016, section 3). A curve
    oscillates if it turns at every update and in large steps, and crawls if it rises almost steadily and
    gains little; both are rare in a curve that only scatters.

    Args:
        gae_lambda: now.
        rewards: mean rewards of the updates since it was last moved, oldest first.

    Returns:
        Lambda, between 0.8 and 0.99 where it is moved, and the reason; unchanged with fewer rewards than
        the window.
    """
    seen = rewards[-LAMBDA_WINDOW:]
    if len(seen) < LAMBDA_WINDOW:
        return gae_lambda, ""
    steps = [after - before for before, after in pairwise(seen)]
    turned = sum(first * second < 0 for first, second in pairwise(steps))
    half = LAMBDA_WINDOW // 2
    gain = (sum(seen[half:]) - sum(seen[:half])) / half
    step, size = sum(map(abs, steps)) / len(steps), abs(seen[0])
    told = f"mean reward {gain:+.3f} over {LAMBDA_WINDOW} updates, {step:.3f} from one to the next"
    if turned == len(steps) - 1 and step >= _SWING * size:
        return max(gae_lambda - _LOWERED, min(gae_lambda, _LOWEST_LAMBDA)), f"oscillates: {told}"
    if turned <= 1 and 0 < gain < _CRAWL * size:
        return min(gae_lambda + _RAISED, max(gae_lambda, _HIGHEST_LAMBDA)), f"crawls: {told}"
    return gae_lambda, ""
