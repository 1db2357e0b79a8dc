"""Aggregation: how much each action token of a batch counts. Weights are taken over the *whole* batch, so the
gradient does not depend on how its rows fall into micro-batches or onto processes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Literal

from palestra.types import Segment

Aggregation = Literal["token_mean", "sequence_mean", "constant"]


def row_weights(segments: Sequence[Segment], aggregation: Aggregation, budget: int) -> list[float]:
    """The weight of each action token, by row.

    An episode whose context was written anew has several rows and counts as one sequence all the same.

    Args:
        segments: all rows of an optimiser step, each with an action token.
        aggregation: ``token_mean`` counts all tokens of the batch alike (DAPO, Yu et al. 2025);
            ``sequence_mean`` averages within each sequence first (Shao et al. 2024); ``constant`` divides by
            sequences times ``budget``, so that no token counts less in a long attempt (Dr. GRPO, Liu et al.
            2025).
        budget: action tokens an episode may have.
    """
    lengths = Counter[str]()
    for segment in segments:
        lengths[segment.trajectory_id] += sum(segment.action_mask)
    if aggregation == "token_mean":
        return [1.0 / lengths.total()] * len(segments)
    if aggregation == "sequence_mean":
        return [1.0 / (len(lengths) * lengths[segment.trajectory_id]) for segment in segments]
    return [1.0 / (len(lengths) * budget)] * len(segments)
