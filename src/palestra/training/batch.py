"""Segments to tensors: length-bucketed micro-batches under a token budget.

Rows that open alike (one system prompt) and are of similar length share a micro-batch, so that what they
have in common is read once and little is padded. Padding is on the right, behind
everything a causal model looks at, hence no attention mask is needed; which logits count follows from
the segment's own mask.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from palestra.errors import ConfigError
from palestra.types import Segment

OPENING_TOKENS = 128
"""Rows of one micro-batch agree in as many leading ids, or in all if they are shorter."""


@dataclass(frozen=True)
class MicroBatch:
    """A few rows, and the action tokens in them as flat vectors."""

    ids: Tensor
    """(rows, tokens), right-padded."""
    rows: Tensor
    """(action tokens,) row of each action token."""
    before: Tensor
    """(action tokens,) position whose logits predict it."""
    targets: Tensor
    """(action tokens,) the ids themselves."""
    sampled_logprobs: Tensor
    """(action tokens,)"""
    old_logprobs: Tensor
    """(action tokens,)"""
    advantages: Tensor
    """(action tokens,)"""
    indices: tuple[int, ...]
    """Which of the given segments the rows are."""


def make_micro_batches(segments: Sequence[Segment], max_tokens: int, pad_id: int = 0) -> list[MicroBatch]:
    """Bucket ``segments`` by length; no micro-batch exceeds ``max_tokens`` padded tokens but for a lone row.

    Raises:
        ConfigError: a segment's sequences differ in length, or its first token is an action.
    """
    for segment in segments:
        _check(segment)
    opening = _shared_openings(segments)
    order = sorted(opening, key=lambda index: (opening[index], -len(segments[index].ids), index))
    batches: list[MicroBatch] = []
    start = 0
    while start < len(order):
        first = order[start]
        most = max(1, max_tokens // len(segments[first].ids))
        alike = [index for index in order[start : start + most] if opening[index] == opening[first]]
        batches.append(_tensors(segments, alike, pad_id))
        start += len(alike)
    return batches


def _shared_openings(segments: Sequence[Segment]) -> dict[int, tuple[int, ...]]:
    """How each segment opens, where another one opens alike; else nothing."""
    opening = {index: segment.ids[:OPENING_TOKENS] for index, segment in enumerate(segments)}
    counts = Counter(opening.values())
    return {index: ids if counts[ids] > 1 else () for index, ids in opening.items()}


def _check(segment: Segment) -> None:
    lengths = {
        "ids": len(segment.ids),
        "action_mask": len(segment.action_mask),
        "sampled_logprobs": len(segment.sampled_logprobs),
        "advantages": len(segment.advantages),
        "old_logprobs": len(segment.old_logprobs or segment.ids),
    }
    if len(set(lengths.values())) != 1:
        raise ConfigError(f"segment of {segment.trajectory_id}: lengths differ: {lengths}")
    if segment.action_mask[:1] == (True,):
        raise ConfigError(f"segment of {segment.trajectory_id}: nothing comes before its first action")


def _tensors(segments: Sequence[Segment], indices: Sequence[int], pad_id: int) -> MicroBatch:
    width = len(segments[indices[0]].ids)
    ids = torch.full((len(indices), width), pad_id)
    rows, positions, sampled, old, advantages = [], [], [], [], []
    for row, index in enumerate(indices):
        segment = segments[index]
        ids[row, : len(segment.ids)] = torch.tensor(segment.ids)
        before = segment.old_logprobs or segment.sampled_logprobs
        for position, trained in enumerate(segment.action_mask):
            if trained:
                rows.append(row)
                positions.append(position)
                sampled.append(segment.sampled_logprobs[position])
                old.append(before[position])
                advantages.append(segment.advantages[position])
    at_row, at = torch.tensor(rows, dtype=torch.long), torch.tensor(positions, dtype=torch.long)
    return MicroBatch(
        ids=ids,
        rows=at_row,
        before=at - 1,
        targets=ids[at_row, at],
        sampled_logprobs=torch.tensor(sampled),
        old_logprobs=torch.tensor(old),
        advantages=torch.tensor(advantages),
        indices=tuple(indices),
    )
