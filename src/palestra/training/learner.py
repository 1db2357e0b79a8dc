"""The learner: segments and a loss function in, one optimiser step and metrics out.

It knows no algorithm by name. The loss is the sum over action tokens divided by the *global* count of
action tokens, so the gradient does not depend on how rows fall into micro-batches. Logits are computed at
action positions only.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn

from palestra.errors import ConfigError
from palestra.training.batch import MicroBatch, make_micro_batches
from palestra.training.losses import LossFunction, TokenTerms
from palestra.training.muon import Muon
from palestra.training.prefix import hidden_states
from palestra.types import Segment

OptimizerName = Literal["adamw", "muon"]


def make_optimizers(model: Any, name: OptimizerName) -> list[torch.optim.Optimizer]:
    """One optimiser, or Muon for matrices inside the layers and AdamW for embeddings and norms."""
    named = list(model.named_parameters())
    matrices = [p for key, p in named if name == "muon" and p.ndim == 2 and ".layers." in key]
    chosen = {id(p) for p in matrices}
    rest = [p for _, p in named if id(p) not in chosen]
    made: list[torch.optim.Optimizer] = [Muon(matrices, lr=0.0)] if matrices else []
    return [*made, torch.optim.AdamW(rest, lr=0.0, betas=(0.9, 0.95), weight_decay=0.0)]


class Learner:
    """Owns the weights being trained and their optimiser."""

    def __init__(
        self,
        model: Any,
        *,
        optimizer: OptimizerName = "adamw",
        max_gradient_norm: float = 1.0,
        micro_batch_tokens: int = 4096,
        temperature: float = 1.0,
    ) -> None:
        """Train ``model``.

        Args:
            model: a transformers causal language model.
            optimizer: ``adamw``, or ``muon`` for the layers' matrices with AdamW for everything else.
            max_gradient_norm: gradients are scaled down to this norm.
            micro_batch_tokens: padded tokens per forward pass; bounds memory.
            temperature: of the sampler, so that log-probabilities are those of the same distribution.
        """
        self.model = model
        self.optimizers = make_optimizers(model, optimizer)
        self._max_norm, self._micro_batch_tokens = max_gradient_norm, micro_batch_tokens
        self._temperature = temperature

    def update(
        self, segments: Sequence[Segment], loss: LossFunction, learning_rate: float, reference: Any = None
    ) -> dict[str, float]:
        """One optimiser step on all of ``segments``.

        Args:
            segments: rows with at least one action token among them.
            loss: summed over tokens.
            learning_rate: of this step.
            reference: frozen model for ``reference_logprobs``; None to leave them out.

        Returns:
            Token means of the loss's metrics, ``loss/total``, ``gradient/norm`` and token counts.

        Raises:
            ConfigError: nothing to train on.
            FloatingPointError: the gradient is not finite; the weights are left as they were.
        """
        count = sum(sum(segment.action_mask) for segment in segments)
        if count == 0:
            raise ConfigError(
                "no action token in the batch: every label is masked, so nothing can be learned"
            )
        segments = [segment for segment in segments if any(segment.action_mask)]
        self.model.train()
        self.model.zero_grad(set_to_none=True)
        sums: dict[str, float] = {}
        for batch in make_micro_batches(segments, self._micro_batch_tokens):
            terms = self._terms(batch, reference)
            total, metrics = loss(terms)
            torch.autograd.backward(total / count)
            for name, value in {"loss/total": total.detach(), **metrics}.items():
                sums[name] = sums.get(name, 0.0) + float(value)
        norm = float(nn.utils.clip_grad_norm_(self.model.parameters(), self._max_norm))
        if not math.isfinite(norm):
            self.model.zero_grad(set_to_none=True)
            raise FloatingPointError(f"gradient norm is {norm}; the update was not applied")
        for optimizer in self.optimizers:
            optimizer.param_groups[0]["lr"] = learning_rate
            optimizer.step()
        self.model.eval()
        means = {name: value / count for name, value in sums.items()}
        return means | {"gradient/norm": norm, "tokens/trained": float(count), "learning_rate": learning_rate}

    def _terms(self, batch: MicroBatch, reference: Any) -> TokenTerms:
        distribution = self._distribution(self.model, batch)
        reference_logprobs = None
        if reference is not None:
            with torch.no_grad():
                reference_logprobs = pick(self._distribution(reference, batch), batch.targets)
        return TokenTerms(
            policy_logprobs=pick(distribution, batch.targets),
            sampled_logprobs=batch.sampled_logprobs,
            reference_logprobs=reference_logprobs,
            advantages=batch.advantages,
            distribution=distribution,
        )

    def _distribution(self, model: Any, batch: MicroBatch) -> Tensor:
        return torch.log_softmax(action_logits(model, batch) / self._temperature, -1)


def action_logits(model: Any, batch: MicroBatch) -> Tensor:
    """(action tokens, vocabulary) float32 logits that predict each action token."""
    hidden, start = hidden_states(model, batch.ids, int(batch.before.min()))
    logits: Tensor = model.get_output_embeddings()(hidden[batch.rows, batch.before - start])
    return logits.to(torch.promote_types(logits.dtype, torch.float32))


def pick(logprobs: Tensor, targets: Tensor) -> Tensor:
    """(tokens,) entries of (tokens, vocabulary) log-probabilities at ``targets``."""
    return logprobs.gather(1, targets[:, None])[:, 0]
