"""Read what all rows of a micro-batch have in common once, with gradients.

The rows of a world share their system prompt, often more than half of all tokens. The shared prefix is
run once, its keys, values and convolution inputs are expanded over the rows, and the gradient flows back
through the expansion: the result is that of the plain forward pass (tested), at a fraction of its cost.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from palestra.policy.forward import ModelCache, last_hidden

MIN_SHARED_TOKENS = 64
"""A shorter prefix is not worth a forward pass of its own."""


def shared_prefix_length(ids: Tensor, limit: int) -> int:
    """Leading columns in which all (rows, tokens) ids agree, at most ``limit``."""
    agree = (ids[:, :limit] == ids[:1, :limit]).all(dim=0)
    return int(agree.long().cumprod(0).sum())


def hidden_states(model: Any, ids: Tensor, first_needed: int) -> tuple[Tensor, int]:
    """Last-layer states of right-padded rows, from some column on.

    Args:
        model: a transformers causal language model.
        ids: (rows, tokens).
        first_needed: first column whose state is wanted.

    Returns:
        (rows, tokens - start, hidden) states and ``start``, at most ``first_needed``.
    """
    start = shared_prefix_length(ids, first_needed) if len(ids) > 1 else 0
    if start < MIN_SHARED_TOKENS:
        states: Tensor = model.base_model(input_ids=ids, use_cache=False)[0]
        return states, 0
    cache = _PrefixCache(len(ids))
    positions = torch.arange(ids.shape[1], device=ids.device)
    last_hidden(model, ids[:1, :start], None, positions[None, :start], cache)
    cache.prefix_read = True
    mask = positions[None, :] <= positions[start:, None]
    return last_hidden(model, ids[:, start:], mask[None, None], positions[None, start:], cache), start


class _PrefixCache(ModelCache):
    """First records one row's layers, then prepends them to every row's."""

    def __init__(self, rows: int) -> None:
        self._rows = rows
        self.prefix_read = False
        self._attention: dict[int, tuple[Tensor, Tensor]] = {}
        self._conv: dict[int, Tensor] = {}

    def update(self, keys: Tensor, values: Tensor, layer_idx: int, **_: object) -> tuple[Tensor, Tensor]:
        """Record, or prepend the recorded prefix."""
        if not self.prefix_read:
            self._attention[layer_idx] = (keys, values)
            return keys, values
        before_keys, before_values = self._attention[layer_idx]
        expand = (self._rows, -1, -1, -1)
        return (
            torch.cat([before_keys.expand(expand), keys], dim=2),
            torch.cat([before_values.expand(expand), values], dim=2),
        )

    def extend_conv(self, inputs: Tensor, layer_idx: int, reach: int) -> Tensor:
        """Zeros before the prefix, the prefix's last inputs before the rest."""
        if not self.prefix_read:
            padded = torch.nn.functional.pad(inputs, (0, 0, reach, 0))
            self._conv[layer_idx] = padded[:, -reach:]
            return padded
        return torch.cat([self._conv[layer_idx].expand(self._rows, -1, -1), inputs], dim=1)

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Length of the recorded prefix."""
        return self._attention[layer_idx][0].shape[2] if layer_idx in self._attention else 0
