"""Surrogates: from a policy's probability ratio and an advantage to a value per action token.

At a ratio of 1 all of them have the gradient of ``-advantage * log-probability``; they differ in what becomes
of tokens whose probability has moved since they were sampled.
"""

from __future__ import annotations

import torch
from torch import Tensor

from palestra.training.losses import MAX_LOG_RATIO, LossFunction, TokenTerms, TokenValues, bounded_ratio


def policy_gradient() -> LossFunction:
    """REINFORCE: no ratio, so right for the first step on a batch and for no other.

    Williams 1992, "Simple Statistical Gradient-Following Algorithms".
    """
    return lambda terms: (-(terms.policy_logprobs * terms.advantages), {})


def clipped(
    *, clip_low: float = 0.2, clip_high: float = 0.28, dual_clip: float | None = None
) -> LossFunction:
    """PPO: a token stops mattering once its ratio has gone far enough the way its advantage pushes.

    Schulman et al. 2017, equation 7; asymmetric as in DAPO (Yu et al. 2025); dual clip as in Ye et al. 2020,
    "Mastering Complex Control in MOBA Games", equation 4.

    Args:
        clip_low: ratios below ``1 - clip_low`` stop mattering for negative advantages.
        clip_high: ratios above ``1 + clip_high`` stop mattering for positive ones.
        dual_clip: ratios above it stop mattering for negative advantages too; None leaves them unbounded.
    """

    def surrogate(terms: TokenTerms) -> TokenValues:
        ratio = bounded_ratio(terms.policy_logprobs, terms.old_logprobs)
        return _clip(ratio, terms.advantages, clip_low, clip_high, dual_clip)

    return surrogate


def sequence_clipped(*, clip_low: float = 3e-4, clip_high: float = 4e-4) -> LossFunction:
    """GSPO: the clip is decided by one ratio a row, the geometric mean of its tokens' ratios.

    A row is an episode, unless its context was written anew on the way.

    Zheng et al. 2025, "Group Sequence Policy Optimization", equation 14 (GSPO-token), which has the
    gradient of equation 5 if all turns have one advantage and tokens are averaged within each episode first.
    """

    def surrogate(terms: TokenTerms) -> TokenValues:
        moved = (terms.policy_logprobs - terms.old_logprobs).detach()
        zeros = moved.new_zeros(int(terms.rows.max()) + 1)
        means = zeros.index_add(0, terms.rows, moved) / zeros.index_add(0, terms.rows, torch.ones_like(moved))
        own = terms.policy_logprobs - terms.policy_logprobs.detach()  # zero, with the token's own gradient
        ratio = (means[terms.rows] + own).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()
        return _clip(ratio, terms.advantages, clip_low, clip_high, None)

    return surrogate


def ratio_clipped(*, clip_low: float = 1.0, clip_high: float = 0.28) -> LossFunction:
    """CISPO: the ratio is clipped and taken as a constant, so every token keeps a gradient.

    MiniMax 2025, "MiniMax-M1", equations 4 and 5; as there, ratios are not clipped from below by default.
    """

    def surrogate(terms: TokenTerms) -> TokenValues:
        ratio = bounded_ratio(terms.policy_logprobs.detach(), terms.old_logprobs)
        bounded = ratio.clamp(1 - clip_low, 1 + clip_high)
        values = -(bounded * terms.advantages * terms.policy_logprobs)
        return values, {"policy/clip_fraction": (bounded != ratio).to(ratio.dtype)}

    return surrogate


def _clip(
    ratio: Tensor, advantages: Tensor, clip_low: float, clip_high: float, dual_clip: float | None
) -> TokenValues:
    plain = ratio * advantages
    bounded = ratio.clamp(1 - clip_low, 1 + clip_high) * advantages
    kept = torch.minimum(plain, bounded)
    silenced = bounded < plain
    if dual_clip is not None:
        floor = dual_clip * advantages
        silenced = silenced | ((advantages < 0) & (kept < floor))
        kept = torch.where(advantages < 0, torch.maximum(kept, floor), kept)
    return -kept, {"policy/clip_fraction": silenced.detach().to(ratio.dtype)}
