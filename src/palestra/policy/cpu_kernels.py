"""Faster forms of a few operations on a CPU, put in place when a model is loaded.

Of the nano architecture, depthwise ``conv1d`` is slow there (its backward pass took a quarter of an update)
and the reference norm makes five passes over memory. In a larger model almost all time is matrix products,
which torch hands to MKL in float32; on processors that are not Intel's that takes twice as long as oneDNN,
which torch also brings. Only the *instance* is changed, and the numbers are the same to float32 rounding
(tested). The surprising choice: linear layers become another class in place, so that a model still pickles.
"""

from __future__ import annotations

from types import MethodType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from transformers.models.lfm2.modeling_lfm2 import Lfm2RMSNorm, Lfm2ShortConv

from palestra.policy.forward import ModelCache

_LARGE_MODEL = 20_000_000
"""Weights. The products of a smaller model are too small to gain from another library."""


def use_cpu_kernels(model: nn.Module) -> None:
    """Replace every short convolution and norm of ``model``, and the linear layers of a large one."""
    weights = sum(parameter.numel() for parameter in model.parameters())
    replace_linear = weights > _LARGE_MODEL and hasattr(torch.ops.mkldnn, "_linear_pointwise")
    for module in model.modules():
        if isinstance(module, Lfm2RMSNorm):
            module.forward = MethodType(_norm_forward, module)
        elif isinstance(module, Lfm2ShortConv):
            module.forward = MethodType(_conv_forward, module)
        elif type(module) is nn.Linear and replace_linear:
            module.__class__ = OneDnnLinear


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


class OneDnnLinear(nn.Linear):
    """A linear layer whose float32 products on a CPU are oneDNN's; all others go the usual way."""

    def forward(self, input: Tensor) -> Tensor:
        """(..., in) to (..., out)."""
        if not _is_plain_float32(input, self.weight):
            return F.linear(input, self.weight, self.bias)
        rows = input.reshape(-1, input.shape[-1]).contiguous()
        out: Tensor = _Product.apply(rows, self.weight, self.bias)  # type: ignore[no-untyped-call]
        return out.view(*input.shape[:-1], -1)


def _is_plain_float32(*tensors: Tensor) -> bool:
    if torch.compiler.is_compiling() or torch.is_autocast_enabled("cpu"):
        return False
    return all(t.device.type == "cpu" and t.dtype == torch.float32 and t.numel() for t in tensors)


class _Product(torch.autograd.Function):
    """(rows, in) to (rows, out) by oneDNN, its gradients too."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(rows, weight)
        return _product(rows, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        rows, weight = ctx.saved_tensors
        gradient = gradient.contiguous()  # a transposed matrix is fast, one with gaps very slow
        of_rows, of_weight, of_bias = ctx.needs_input_grad
        return (
            _product(gradient, weight.t()) if of_rows else None,
            _product(gradient.t(), rows.t()) if of_weight else None,
            gradient.sum(0) if of_bias else None,
        )


def _product(rows: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """(rows, in) times the transpose of (out, in)."""
    product: Tensor = torch.ops.mkldnn._linear_pointwise(rows, weight, bias, "none", [], "")
    return product
