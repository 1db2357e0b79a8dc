"""One forward pass of a causal language model with a cache of ours.

Transformers' own caches hold rows of one length; ours do not, so masks and positions are always passed
explicitly. Hybrid models with short convolutions want one mask per layer kind, all others a plain one.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from torch import Tensor


class ModelCache(ABC):
    """What attention and short-convolution layers ask of a cache."""

    @abstractmethod
    def update(self, keys: Tensor, values: Tensor, layer_idx: int, **_: object) -> tuple[Tensor, Tensor]:
        """Take in (rows, heads, width, head size) keys and values; return all that the new tokens may see."""

    @abstractmethod
    def extend_conv(self, inputs: Tensor, layer_idx: int, reach: int) -> Tensor:
        """(rows, width, hidden) convolution inputs with the ``reach`` ones before them in front."""

    @abstractmethod
    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Tokens read so far."""


def last_hidden(model: Any, ids: Tensor, mask: Tensor | None, positions: Tensor, cache: ModelCache) -> Tensor:
    """(rows, width, hidden) states of the last layer.

    Args:
        model: a transformers causal language model.
        ids: (rows, width) new tokens.
        mask: booleans that broadcast to (rows, 1, width, keys); None for plain causal attention.
        positions: (rows, width) or (1, width) positions of the new tokens.
        cache: what came before; takes the new tokens in.
    """
    hybrid = "conv" in (getattr(model.config, "layer_types", None) or ())
    if mask is None and not hybrid:  # transformers would ask the cache for sizes it does not know
        mask = (positions[:, None, :] <= positions[:, :, None])[:, None]
    states: Tensor = model.base_model(
        input_ids=ids,
        attention_mask={"full_attention": mask, "conv": None} if hybrid else mask,
        position_ids=positions,
        cache=cache,
        use_cache=True,
    )[0]
    return states
