"""Segments to tensors: length-bucketed micro-batches under a token budget.

Rows that open alike (one system prompt), best those of one task, and are of similar length share a
micro-batch, so that what they have in common is read once and little is padded; the budget counts it once.
Padding is on the right, behind everything a causal model looks at, hence no attention mask is needed; which
logits count follows from the segment's own mask.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from palestra.errors import ConfigError
from palestra.training.prefix import MIN_SHARED_TOKENS
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
    """Bucket ``segments`` by opening and length; of more than ``max_tokens`` is a lone row at most.

    What counts are tokens of a forward pass: padding too, and what all rows begin with once.

    Raises:
        ConfigError: a segment's sequences differ in length, or its first token is an action.
    """
    for segment in segments:
        _check(segment)
    opening = _shared_openings(segments)

    def place(index: int) -> tuple[tuple[int, ...], tuple[int, ...], int, int]:
        segment = segments[index]
        prompt = segment.ids[: _first_action(segment)] if opening[index] else ()
        return opening[index], prompt, -len(segment.ids), index

    batches: list[MicroBatch] = []
    some: list[int] = []
    width = shared = 0
    for index in sorted(opening, key=place):
        row = segments[index]
        if some and opening[index] == opening[some[0]]:
            wider, common = max(width, len(row.ids)), _common(segments[some[0]], row, shared)
            if _tokens_read(len(some) + 1, wider, common) <= max_tokens:
                some.append(index)
                width, shared = wider, common
                continue
        if some:
            batches.append(_tensors(segments, some, pad_id))
        some, width, shared = [index], len(row.ids), _first_action(row) - 1
    return [*batches, _tensors(segments, some, pad_id)] if some else batches


def _common(first: Segment, row: Segment, most: int) -> int:
    """Tokens up to ``most`` and the row's first action that both begin with."""
    most = min(most, _first_action(row) - 1)
    return next((at for at in range(most) if row.ids[at] != first.ids[at]), most)


def _tokens_read(rows: int, width: int, shared: int) -> int:
    """Tokens that a forward pass of so many rows computes."""
    return rows * width - (rows - 1) * (shared if shared >= MIN_SHARED_TOKENS else 0)


def _first_action(segment: Segment) -> int:
    """Where the row's first action begins; its end if it has none."""
    return next((at for at, trained in enumerate(segment.action_mask) if trained), len(segment.ids))


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
    width = max(len(segments[index].ids) for index in indices)
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
