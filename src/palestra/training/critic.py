"""The critic: a second model of the policy's kind with a value head, for algorithms that estimate returns.

It reads the same token rows and values a state at its last token. The surprising choice: it shares nothing
with the policy, so its loss cannot unsettle what the policy can do; the price is a second model in memory.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from palestra.policy.adapters import load_trained_state, trained_state
from palestra.training.batch import MicroBatch, make_micro_batches
from palestra.training.prefix import hidden_states
from palestra.types import Segment


@dataclass(frozen=True)
class CriticSettings:
    """How the critic learns."""

    learning_rate: float
    """Of AdamW, constant."""
    epochs: int
    """Passes over each batch."""
    minibatches: int
    """Optimiser steps per pass."""
    value_clip: float
    """How far a value may move from what it was before the batch until it has no gradient onward."""
    seed: int


class Critic:
    """Owns the value model and its optimiser."""

    def __init__(self, model: Any, settings: CriticSettings, *, micro_batch_tokens: int = 4096) -> None:
        """Value states with ``model``, a transformers causal language model that nothing else trains."""
        self.model, self.settings = model, settings
        self.head = scalar_head(model)
        self.updates = 0
        """Batches learned from."""
        self._micro_batch_tokens = micro_batch_tokens
        self._parameters = head_parameters(model, self.head)
        self.optimizer = torch.optim.AdamW(
            self._parameters, lr=settings.learning_rate, betas=(0.9, 0.95), weight_decay=0.0
        )

    def values(self, rows: Sequence[Segment]) -> list[list[float]]:
        """Of each row from ``state_segments``, the values of the states it marks, in order."""
        found: list[list[float]] = [[] for _ in rows]
        for batch in make_micro_batches(rows, self._micro_batch_tokens):
            with torch.no_grad():
                values = state_values(self.model, self.head, batch)
            for row, value in zip(batch.rows.tolist(), values.tolist(), strict=True):
                found[batch.indices[row]].append(value)
        return found

    def fit(
        self, rows: Sequence[Segment], returns: Sequence[Sequence[float]], values: Sequence[Sequence[float]]
    ) -> dict[str, float]:
        """Move the values toward ``returns``; ``values`` are what they were before the batch.

        A step whose gradient is not finite is left out, and the loss is then NaN.
        """
        losses: list[float] = []
        for part in self._minibatches(len(rows)):
            count = sum(len(returns[index]) for index in part)
            self.optimizer.zero_grad(set_to_none=True)
            total = 0.0
            for batch in make_micro_batches([rows[index] for index in part], self._micro_batch_tokens):
                chosen = [part[index] for index in batch.indices]
                wanted = torch.tensor([value for index in chosen for value in returns[index]])
                before = torch.tensor([value for index in chosen for value in values[index]])
                loss = (
                    value_loss(
                        state_values(self.model, self.head, batch), wanted, before, self.settings.value_clip
                    )
                    / count
                )
                torch.autograd.backward(loss)
                total += float(loss.detach())
            norm = float(nn.utils.clip_grad_norm_(self._parameters, 1.0))
            if math.isfinite(norm):
                self.optimizer.step()
            losses.append(total if math.isfinite(norm) else math.nan)
        self.updates += 1
        return {"critic/loss": sum(losses) / len(losses)}

    def tensors(self) -> dict[str, Tensor]:
        """What a checkpoint keeps: what is trained, the optimiser's state and the count of updates."""
        kept = {f"model.{name}": value for name, value in trained_state(self.model.base_model).items()}
        kept |= {f"head.{name}": value for name, value in self.head.state_dict().items()}
        for index, state in self.optimizer.state_dict()["state"].items():
            kept |= {f"optimizer.{index}.{name}": value for name, value in state.items()}
        kept = {name: value.detach().clone().contiguous() for name, value in kept.items()}
        return kept | {"updates": torch.tensor(self.updates)}

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Continue from what a checkpoint kept."""
        parts: dict[str, dict[str, Tensor]] = {"model": {}, "head": {}, "optimizer": {}}
        for name, value in tensors.items():
            kind, _, rest = name.partition(".")
            if rest:
                parts[kind][rest] = value
        load_trained_state(self.model.base_model, parts["model"])
        self.head.load_state_dict(parts["head"])
        state: dict[int, dict[str, Tensor]] = {}
        for name, value in parts["optimizer"].items():
            index, _, rest = name.partition(".")
            state.setdefault(int(index), {})[rest] = value
        groups = self.optimizer.state_dict()["param_groups"]
        self.optimizer.load_state_dict({"state": state, "param_groups": groups})
        self.updates = int(tensors["updates"])

    def _minibatches(self, count: int) -> Iterator[list[int]]:
        order, size = list(range(count)), -(-count // self.settings.minibatches)
        shuffler = random.Random(f"critic:{self.settings.seed}:{self.updates}")
        for _ in range(self.settings.epochs):
            shuffler.shuffle(order)
            for start in range(0, count, size):
                yield order[start : start + size]


def scalar_head(model: Any) -> nn.Linear:
    """A linear layer from ``model``'s states to one number, which is 0 at first."""
    head = nn.Linear(model.config.hidden_size, 1, dtype=next(model.parameters()).dtype)
    nn.init.zeros_(head.weight)
    nn.init.zeros_(head.bias)
    return head


def head_parameters(model: Any, head: nn.Linear) -> list[nn.Parameter]:
    """The parameters that train with ``head``: those of ``model`` below its output, or of its adapter."""
    return [*(p for p in model.base_model.parameters() if p.requires_grad), *head.parameters()]


def state_values(model: Any, head: nn.Linear, batch: MicroBatch) -> Tensor:
    """(marked tokens,) float32 numbers that ``head`` reads from the state before each marked token."""
    hidden, start = hidden_states(model, batch.ids, int(batch.before.min()))
    found: Tensor = head(hidden[batch.rows, batch.before - start])[:, 0]
    return found.to(torch.promote_types(found.dtype, torch.float32))


def value_loss(values: Tensor, returns: Tensor, before: Tensor, clip: float) -> Tensor:
    """Half the larger squared error of a value and of the value clipped to ``before`` plus or minus ``clip``.

    The clipped value loss of PPO's published code (Engstrom et al. 2020, "Implementation Matters in Deep
    Policy Gradients", section 3), summed.
    """
    bounded = before + (values - before).clamp(-clip, clip)
    return 0.5 * torch.maximum((values - returns) ** 2, (bounded - returns) ** 2).sum()


def explained_variance(values: Sequence[float], returns: Sequence[float]) -> float | None:
    """Share of the returns' variance that the values foresee: 1 is all of it; None if there is none."""
    spread = _variance(returns)
    if spread < 1e-12:
        return None
    return 1.0 - _variance([wanted - value for wanted, value in zip(returns, values, strict=True)]) / spread


def _variance(values: Sequence[float]) -> float:
    mean = sum(values) / len(values)
    return sum((value - mean) ** 2 for value in values) / len(values)
