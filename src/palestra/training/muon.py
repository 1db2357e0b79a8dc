"""Muon in float32: momentum whose matrix updates are orthogonalised (Jordan et al. 2024).

``torch.optim.Muon`` does the orthogonalisation in bfloat16, which a CPU without bfloat16 instructions
runs some fifty times slower; the nano base learns to copy several times sooner with Muon than with
AdamW, so these few lines are worth owning. For weight matrices only; give the rest to AdamW.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

_COEFFICIENTS = (3.4445, -4.7750, 2.0315)


class Muon(torch.optim.Optimizer):
    """Orthogonalised momentum for two-dimensional parameters."""

    def __init__(
        self, params: Iterable[Tensor], lr: float, momentum: float = 0.95, weight_decay: float = 0.0
    ) -> None:
        """``lr`` is the size of an update relative to an orthogonal matrix; around 0.01."""
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """One update of every parameter that has a gradient."""
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._update(parameter, group)

    def _update(self, parameter: Tensor, group: dict[str, Any]) -> None:
        state = self.state[parameter]
        if not state:
            state["momentum"] = torch.zeros_like(parameter)
        momentum, gradient = state["momentum"], parameter.grad
        assert gradient is not None
        momentum.lerp_(gradient, 1 - group["momentum"])
        direction = orthogonalize(gradient.lerp(momentum, group["momentum"]))
        scale = max(1.0, parameter.shape[0] / parameter.shape[1]) ** 0.5
        parameter.mul_(1 - group["lr"] * group["weight_decay"])
        parameter.add_(direction, alpha=-group["lr"] * scale)


def orthogonalize(matrix: Tensor, steps: int = 5) -> Tensor:
    """The nearest orthogonal matrix, roughly: singular values end between about 0.7 and 1.2."""
    a, b, c = _COEFFICIENTS
    tall = matrix.shape[0] > matrix.shape[1]
    x = matrix.T if tall else matrix
    x = x / (x.norm() + 1e-7)
    for _ in range(steps):
        gram = x @ x.T
        x = a * x + (b * gram + c * gram @ gram) @ x
    result: Tensor = x.T if tall else x
    return result
