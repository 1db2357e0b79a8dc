"""Aggregation: how much each action token of a batch counts. Weights are taken over the *whole* batch, so the
gradient does not depend on how its rows fall into micro-batches or onto processes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from palestra.types import Segment

Aggregation = Literal["token_mean", "sequence_mean", "constant"]


def row_weights(segments: Sequence[Segment], aggregation: Aggregation, budget: int) -> list[float]:
    """The weight of each action token, by row.

    Args:
        segments: all rows of an optimiser step, each with an action token.
        aggregation: ``token_mean`` counts all tokens of the batch alike (DAPO, Yu et al. 2025);
            ``sequence_mean`` averages within each row first (Shao et al. 2024); ``constant`` divides by rows
            times ``budget``, so that no token counts less in a long attempt (Dr. GRPO, Liu et al. 2025).
        budget: action tokens an episode may have.
    """
    lengths = [sum(segment.action_mask) for segment in segments]
    if aggregation == "token_mean":
        return [1.0 / sum(lengths)] * len(lengths)
    if aggregation == "sequence_mean":
        return [1.0 / (len(lengths) * length) for length in lengths]
    return [1.0 / (len(lengths) * budget)] * len(lengths)
