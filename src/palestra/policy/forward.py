"""One forward pass of a causal language model with a cache of ours, and logits at chosen places.

Transformers' own caches hold rows of one length; ours do not, so masks and positions are always passed
explicitly: one mask per kind of layer where a model has several, and as numbers to add where its attention is
written out. That the result is the model's own is checked when a model is loaded.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import torch
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
        mask: booleans that broadcast to (rows, 1, width, keys), where a key's place is its position; None
            for plain causal attention among the new tokens.
        positions: (rows, width) or (1, width) positions of the new tokens.
        cache: what came before; takes the new tokens in.
    """
    states: Tensor = model.base_model(
        input_ids=ids,
        attention_mask=_masks(model.config, mask, positions),
        position_ids=positions,
        cache=cache,
        use_cache=True,
    )[0]
    return states


def logits_of(model: Any, hidden: Tensor) -> Tensor:
    """(…, vocabulary) float32 logits of (…, hidden) states of the last layer, scaled as the model does."""
    logits: Tensor = model.get_output_embeddings()(hidden)
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    config = model.config
    if (scale := getattr(config, "logit_scale", None)) is not None:  # Cohere
        logits = logits * scale
    if (divisor := getattr(config, "logits_scaling", None)) is not None:  # Granite
        logits = logits / divisor
    if (cap := getattr(config, "final_logit_softcapping", None)) is not None:  # Gemma 2
        logits = cap * torch.tanh(logits / cap)
    return logits


def _masks(config: Any, mask: Tensor | None, positions: Tensor) -> Tensor | dict[str, Tensor | None] | None:
    """What the model takes as its mask: one for all layers, or one for each kind of them."""
    kinds = set(getattr(config, "layer_types", None) or ())
    if "conv" in kinds:
        return {"full_attention": mask, "conv": None}
    if mask is None:  # transformers would ask the cache for sizes it does not know
        mask = (positions[:, None, :] <= positions[:, :, None])[:, None]
    window = getattr(config, "sliding_window", None)
    near = mask
    if window is not None:
        keys = torch.arange(mask.shape[-1], device=mask.device)
        near = mask & (positions[:, None, :, None] - keys < window)
    if "sliding_attention" in kinds:
        return {
            "full_attention": _as_needed(config, mask),
            "sliding_attention": _as_needed(config, near),
        }
    return _as_needed(config, mask if kinds else near)


def _as_needed(config: Any, mask: Tensor) -> Tensor:
    """Attention that is written out adds its mask, where others choose by it."""
    if config._attn_implementation != "eager":
        return mask
    return torch.zeros(mask.shape, device=mask.device).masked_fill(~mask, torch.finfo(torch.float32).min)
