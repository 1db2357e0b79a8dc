"""Faster forms of two small operations of the nano architecture on a CPU.

Depthwise ``conv1d`` is slow there (its backward pass took a quarter of an update) and the reference
norm makes five passes over memory. Both are replaced on the *instance* by arithmetic that gives the
same numbers to float32 rounding (tested); any other architecture is left as it is.
"""

from __future__ import annotations

from types import MethodType
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn
from transformers.models.lfm2.modeling_lfm2 import Lfm2RMSNorm, Lfm2ShortConv

from palestra.policy.forward import ModelCache


def use_cpu_kernels(model: nn.Module) -> None:
    """Replace the forward of every short convolution and norm in ``model``, in place."""
    for module in model.modules():
        if isinstance(module, Lfm2RMSNorm):
            module.forward = MethodType(_norm_forward, module)
        elif isinstance(module, Lfm2ShortConv):
            module.forward = MethodType(_conv_forward, module)


def _norm_forward(self: Any, hidden_states: Tensor) -> Tensor:
    return F.rms_norm(hidden_states, self.weight.shape, self.weight, self.variance_epsilon)


def _conv_forward(
    self: Any, hidden_states: Tensor, cache: Any = None, attention_mask: Tensor | None = None, **kwargs: Any
) -> Tensor:
    """Causal depthwise convolution as shifted sums; ``hidden_states`` is (batch, tokens, hidden)."""
    if attention_mask is not None or not isinstance(cache, ModelCache | None):
        reference: Tensor = type(self).forward(
            self, hidden_states, cache=cache, attention_mask=attention_mask, **kwargs
        )
        return reference
    gate_in, gate_out, x = self.in_proj(hidden_states).chunk(3, dim=-1)
    gated = gate_in * x
    reach = self.conv_kernel_size - 1
    padded = (
        F.pad(gated, (0, 0, reach, 0)) if cache is None else cache.extend_conv(gated, self.layer_idx, reach)
    )
    weight, tokens = self.conv.weight[:, 0], hidden_states.shape[1]
    mixed = weight[:, reach] * gated
    for offset in range(reach):
        mixed = mixed + weight[:, offset] * padded[:, offset : offset + tokens]
    if self.conv.bias is not None:
        mixed = mixed + self.conv.bias
    out: Tensor = self.out_proj(gate_out * mixed)
    return out
