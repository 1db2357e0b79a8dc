"""Whether palestra's way of running a model comes to what the model itself computes; asked when it is loaded.

Architectures differ in what happens between tokens and logits, and one that is run in another way would learn
a policy that nobody else can load.
"""

from __future__ import annotations

from typing import Any

import torch

from palestra.errors import ConfigError
from palestra.policy.forward import last_hidden, logits_of
from palestra.policy.slot_cache import SlotCache

_READ, _MORE = 12, 6
_TOLERANCE = 1e-3
"""Of the largest logit."""


def check_forward(model: Any) -> None:
    """Compare logits of a few tokens, read in two steps with our cache, with the model's own.

    Raises:
        ConfigError: they differ, or our cache does not fit the architecture.
    """
    count = _READ + _MORE
    ids = (torch.arange(1, count + 1, device=model.device) * 7919 % model.config.vocab_size)[None]
    name = type(model).__name__
    with torch.no_grad():
        own = model(input_ids=ids, use_cache=False).logits[0].float()
        try:
            ours = torch.cat([*_by_steps(model, ids)])
        except (AttributeError, RuntimeError, TypeError, KeyError, ValueError, IndexError) as error:
            raise ConfigError(
                f"{name} is of an architecture that palestra cannot run ({type(error).__name__}: {error}). "
                "It runs attention with keys and values of one size, as Llama, Qwen, Mistral, Gemma and Phi "
                "have it."
            ) from error
    gap = float((ours - own).abs().max() / own.abs().max().clamp_min(1.0))
    if not gap <= _TOLERANCE:
        raise ConfigError(
            f"{name} computes other logits by itself than palestra's way of running it gives: they differ by "
            f"{gap:.1%} of the largest. Its architecture has something between tokens and logits that is not "
            "supported; take another model."
        )


def _by_steps(model: Any, ids: torch.Tensor) -> list[torch.Tensor]:
    """(tokens, vocabulary) logits of two steps; another slot is empty meanwhile."""
    cache = SlotCache(model.config, 2, _READ + _MORE + 1, model.device)
    found = []
    for step, length in ((ids[:, :_READ], _READ), (ids[:, _READ:], _READ + _MORE)):
        width = step.shape[1]
        cache.focus(torch.tensor([1], device=ids.device), torch.tensor([width], device=ids.device), length)
        mask, positions = cache.attention_mask(width), cache.positions(width)
        hidden = last_hidden(model, step, mask, positions, cache)
        cache.advance()
        found.append(logits_of(model, hidden)[0])
    return found
