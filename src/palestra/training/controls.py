"""Controls: weights of the loss that follow what was measured, from one update to the next.

Their values go into the checkpoint, so a resumed run continues them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

_KL_GAIN = 0.1
_KL_ERROR = 0.2
_ENTROPY_STEP = 2e-3
_MAX_ENTROPY_WEIGHT = 0.05


@dataclass
class Controls:
    """The weights of KL and entropy, and what moves them."""

    kl_weight: float
    kl_target: float | None = None
    """Nats a token; None leaves the weight as it is."""
    entropy_floor: float | None = None
    """Nats a token; None leaves the entropy alone."""
    entropy_weight: float = 0.0

    def observe(self, metrics: Mapping[str, float]) -> None:
        """Move the weights after an update with these metrics."""
        distance, entropy = metrics.get("policy/kl_reference"), metrics.get("policy/entropy")
        if self.kl_target is not None and distance is not None:
            self.kl_weight = adapted_kl_weight(self.kl_weight, distance, self.kl_target)
        if self.entropy_floor is not None and entropy is not None:
            self.entropy_weight = floored_entropy_weight(self.entropy_weight, entropy, self.entropy_floor)

    def state(self) -> dict[str, float]:
        """What a checkpoint keeps."""
        return {"kl_weight": self.kl_weight, "entropy_weight": self.entropy_weight}

    def load(self, state: Mapping[str, float]) -> None:
        """Continue from a checkpoint."""
        self.kl_weight, self.entropy_weight = state["kl_weight"], state["entropy_weight"]


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
