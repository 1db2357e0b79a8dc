"""Losses over action tokens. Pure functions: each returns one value a token, which the learner weighs.

A policy loss is a surrogate, which turns a ratio and an advantage into a value, with a KL term, an entropy
term and a weight for the mismatch of sampler and learner around it. All tensors are flat, one entry per
action token of a micro-batch; how tokens are averaged is the business of ``aggregation``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

MAX_LOG_RATIO = 20.0
"""Nats: a ratio beyond it says no more than that the policies differ."""
_MAX_K3_LOG_RATIO = 5.0


@dataclass(frozen=True)
class TokenTerms:
    """What a loss may use: (action tokens,) vectors of one micro-batch."""

    policy_logprobs: Tensor
    """Under the weights being trained, at the sampling temperature; carries the gradient."""
    old_logprobs: Tensor
    """Under the learner's weights before the batch's first step, which ratios are taken to."""
    sampled_logprobs: Tensor
    """As the sampler recorded them; the same numbers unless sampler and learner compute differently."""
    reference_logprobs: Tensor | None
    """Under the frozen reference policy; None where none is used."""
    advantages: Tensor
    """Per token."""
    distribution: Tensor
    """(action tokens, vocabulary) log-probabilities that ``policy_logprobs`` were picked from."""
    rows: Tensor
    """Row of each token; a row's action tokens are all here."""


TokenValues = tuple[Tensor, dict[str, Tensor]]
"""A value per token, and metrics per token."""
LossFunction = Callable[[TokenTerms], TokenValues]


def imitation_loss(terms: TokenTerms) -> TokenValues:
    """Cross-entropy of the actions, weighted by their advantage (1 for a demonstration)."""
    loss = -(terms.policy_logprobs * terms.advantages)
    return loss, {"policy/entropy": entropy(terms.distribution.detach())}


def policy_loss(
    surrogate: LossFunction,
    *,
    kl_weight: float = 0.02,
    entropy_weight: float = 0.0,
    mismatch_cap: float | None = None,
) -> LossFunction:
    """A surrogate with a KL penalty to the reference and an entropy bonus.

    The KL is a k3 loss as in DeepSeekMath (Shao et al. 2024, equation 4). The weight for the mismatch is
    truncated importance sampling (Yao et al. 2025, "Your Efficient RL Framework Secretly Brings You
    Off-Policy RL Training").

    Args:
        surrogate: from ``surrogates``.
        kl_weight: weight of the k3 distance from the reference.
        entropy_weight: weight of the entropy bonus.
        mismatch_cap: each token is weighed by the learner's old probability over the sampler's, at most this;
            None takes the sampler at its word.
    """

    def loss(terms: TokenTerms) -> TokenValues:
        values, metrics = surrogate(terms)
        if mismatch_cap is not None:
            ratio = bounded_ratio(terms.old_logprobs, terms.sampled_logprobs)
            weights = ratio.clamp(max=mismatch_cap)
            values = values * weights
            metrics["policy/mismatch_weight"] = weights
            metrics["policy/mismatch_capped"] = (ratio > mismatch_cap).to(values.dtype)
        spread = entropy(terms.distribution if entropy_weight else terms.distribution.detach())
        metrics |= {
            "policy/entropy": spread.detach(),
            "policy/kl_sampled": k3(terms.policy_logprobs.detach(), terms.sampled_logprobs),
            "loss/policy": values.detach(),
        }
        if entropy_weight:
            values = values - entropy_weight * spread
        if terms.reference_logprobs is not None:
            distance = k3(terms.policy_logprobs, terms.reference_logprobs)
            metrics["policy/kl_reference"] = distance.detach()
            values = values + kl_weight * distance
        return values, metrics

    return loss


def bounded_ratio(logprobs: Tensor, base_logprobs: Tensor) -> Tensor:
    """Per token, the probability over that of a base; the log-ratio is bounded."""
    return (logprobs - base_logprobs).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()


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
