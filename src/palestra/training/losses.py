"""Losses over action tokens. Pure functions: each returns a *sum*, which the learner divides once.

All tensors are flat, one entry per action token of a micro-batch. The division by the global count of
trainable tokens happens in the learner, so that micro-batches of any size give the same gradient.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

_MAX_LOG_RATIO = 20.0
_MAX_K3_LOG_RATIO = 5.0


@dataclass(frozen=True)
class TokenTerms:
    """What a loss may use: (action tokens,) vectors of one micro-batch."""

    policy_logprobs: Tensor
    """Under the weights being trained, at the sampling temperature; carries the gradient."""
    sampled_logprobs: Tensor
    """Under the weights that sampled."""
    reference_logprobs: Tensor | None
    """Under the frozen reference policy; None where none is used."""
    advantages: Tensor
    """Per token."""
    distribution: Tensor
    """(action tokens, vocabulary) log-probabilities that ``policy_logprobs`` were picked from."""


LossSums = tuple[Tensor, dict[str, Tensor]]
"""The loss summed over tokens, and metrics summed over tokens."""
LossFunction = Callable[[TokenTerms], LossSums]


def imitation_loss(terms: TokenTerms) -> LossSums:
    """Cross-entropy of the actions, weighted by their advantage (1 for a demonstration)."""
    loss = -(terms.policy_logprobs * terms.advantages).sum()
    return loss, {"policy/entropy": entropy(terms.distribution.detach()).sum()}


def clipped_policy_loss(
    *, clip_low: float = 0.2, clip_high: float = 0.28, kl_weight: float = 0.02, entropy_weight: float = 0.0
) -> LossFunction:
    """PPO's clipped surrogate with a KL penalty to the reference, as GRPO uses it.

    Schulman et al. 2017, equation 7; asymmetric clip as in DAPO (Yu et al. 2025); the KL as a k3 loss as in
    DeepSeekMath (Shao et al. 2024, equation 4).

    Args:
        clip_low: ratios below ``1 - clip_low`` stop mattering for negative advantages.
        clip_high: ratios above ``1 + clip_high`` stop mattering for positive ones.
        kl_weight: weight of the k3 distance from the reference.
        entropy_weight: weight of the entropy bonus.
    """

    def loss(terms: TokenTerms) -> LossSums:
        log_ratio = (terms.policy_logprobs - terms.sampled_logprobs).clamp(-_MAX_LOG_RATIO, _MAX_LOG_RATIO)
        ratio = log_ratio.exp()
        plain = ratio * terms.advantages
        clipped = ratio.clamp(1 - clip_low, 1 + clip_high) * terms.advantages
        spread = entropy(terms.distribution if entropy_weight else terms.distribution.detach()).sum()
        total = -torch.minimum(plain, clipped).sum() - entropy_weight * spread
        sums = {
            "policy/entropy": spread.detach(),
            "policy/clip_fraction": (clipped < plain).detach().sum(),
            "policy/kl_sampled": k3(terms.policy_logprobs.detach(), terms.sampled_logprobs).sum(),
            "loss/policy": total.detach(),
        }
        if terms.reference_logprobs is not None:
            distance = k3(terms.policy_logprobs, terms.reference_logprobs).sum()
            sums["policy/kl_reference"] = distance.detach()
            total = total + kl_weight * distance
        return total, sums

    return loss


def k3(policy_logprobs: Tensor, reference_logprobs: Tensor) -> Tensor:
    """Per-token estimate of KL(policy || reference), never negative (Schulman 2020, "Approximating KL").

    With ``r = log reference - log policy`` it is ``exp(r) - 1 - r``; ``r`` is bounded at 5 nats so that one
    token cannot explode the loss.
    """
    log_ratio = (reference_logprobs - policy_logprobs).clamp(-_MAX_K3_LOG_RATIO, _MAX_K3_LOG_RATIO)
    return log_ratio.exp() - 1 - log_ratio


def entropy(logprobs: Tensor) -> Tensor:
    """(tokens,) entropy in nats of (tokens, vocabulary) log-probabilities."""
    return -(logprobs.exp() * logprobs).sum(-1)
