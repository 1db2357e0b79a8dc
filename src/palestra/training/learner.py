"""The learner: segments and a loss function in, one optimiser step and metrics out.

It knows no algorithm by name. What each action token counts is settled over all rows of a step, so the
gradient does not depend on how they fall into micro-batches, or onto processes if torch.distributed runs
several. Logits are computed at action positions only.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn

from palestra.errors import ConfigError
from palestra.policy.adapters import frozen
from palestra.policy.forward import logits_of
from palestra.training.aggregation import Aggregation, row_weights
from palestra.training.batch import MicroBatch, make_micro_batches
from palestra.training.losses import LossFunction, TokenTerms
from palestra.training.muon import Muon
from palestra.training.prefix import hidden_states
from palestra.training.ranks import add_gradients, add_numbers, own_share
from palestra.types import Segment

OptimizerName = Literal["adamw", "muon"]


def make_optimizers(model: Any, name: OptimizerName) -> list[torch.optim.Optimizer]:
    """One optimiser, or Muon for matrices inside the layers and AdamW for embeddings and norms."""
    named = [(key, p) for key, p in model.named_parameters() if p.requires_grad]
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
        aggregation: Aggregation = "token_mean",
        token_budget: int = 1,
    ) -> None:
        """Train ``model``.

        Args:
            model: a transformers causal language model.
            optimizer: ``adamw``, or ``muon`` for the layers' matrices with AdamW for everything else.
            max_gradient_norm: gradients are scaled down to this norm.
            micro_batch_tokens: padded tokens per forward pass; bounds memory.
            temperature: of the sampler, so that log-probabilities are those of the same distribution.
            aggregation: how tokens are averaged, see ``row_weights``.
            token_budget: action tokens an episode may have, which ``constant`` divides by.
        """
        self.model = model
        self.optimizers = make_optimizers(model, optimizer)
        self._max_norm, self._micro_batch_tokens = max_gradient_norm, micro_batch_tokens
        self._temperature = temperature
        self._aggregation, self._token_budget = aggregation, token_budget

    def update(
        self, segments: Sequence[Segment], loss: LossFunction, learning_rate: float, reference: Any = None
    ) -> dict[str, float]:
        """One optimiser step on all of ``segments``.

        Args:
            segments: rows with at least one action token among them.
            loss: a value per action token.
            learning_rate: of this step.
            reference: frozen model for ``reference_logprobs``, or ``WithoutAdapter``; None to leave them out.

        Returns:
            Token means of the loss's metrics, ``loss/total`` as aggregated, ``gradient/norm`` and counts.

        Raises:
            ConfigError: nothing to train on.
            FloatingPointError: the gradient is not finite; the weights are left as they were.
        """
        segments = [segment for segment in segments if any(segment.action_mask)]
        if not segments:
            raise ConfigError(
                "no action token in the batch: every label is masked, so nothing can be learned"
            )
        weights = row_weights(segments, self._aggregation, self._token_budget)
        self.model.train()
        self.model.zero_grad(set_to_none=True)
        sums: dict[str, float] = {}
        for batch in own_share(make_micro_batches(segments, self._micro_batch_tokens)):
            values, metrics = loss(self._terms(batch, reference))
            total = (values * torch.tensor([weights[index] for index in batch.indices])[batch.rows]).sum()
            torch.autograd.backward(total)
            for name, value in {"loss/total": total.detach(), **metrics}.items():
                sums[name] = sums.get(name, 0.0) + float(value.sum())
        add_gradients(self.model)
        sums = add_numbers(sums)
        norm = self._step(learning_rate)
        count = sum(sum(segment.action_mask) for segment in segments)
        means = {name: value / count for name, value in sums.items() if name != "loss/total"}
        return means | {
            "loss/total": sums["loss/total"],
            "gradient/norm": norm,
            "tokens/trained": float(count),
            "learning_rate": learning_rate,
        }

    def logprobs(self, model: Any, segments: Sequence[Segment]) -> list[tuple[float, ...]]:
        """Of each row, the log-probabilities under ``model``: one an id, 0.0 where it is not an action's."""
        found = [[0.0] * len(segment.ids) for segment in segments]
        for batch in make_micro_batches(segments, self._micro_batch_tokens):
            if not len(batch.rows):
                continue
            with torch.no_grad():
                picked = pick(self._distribution(model, batch), batch.targets)
            for row, before, value in zip(
                batch.rows.tolist(), batch.before.tolist(), picked.tolist(), strict=True
            ):
                found[batch.indices[row]][before + 1] = value
        return [tuple(row) for row in found]

    def _step(self, learning_rate: float) -> float:
        """Clip the gradient and take the step; the gradient's norm before it was clipped."""
        norm = float(nn.utils.clip_grad_norm_(self.model.parameters(), self._max_norm))
        if not math.isfinite(norm):
            self.model.zero_grad(set_to_none=True)
            self.model.eval()
            raise FloatingPointError(f"gradient norm is {norm}; the update was not applied")
        for optimizer in self.optimizers:
            optimizer.param_groups[0]["lr"] = learning_rate
            optimizer.step()
        self.model.eval()
        return norm

    def _terms(self, batch: MicroBatch, reference: Any) -> TokenTerms:
        reference_logprobs = None
        if reference is not None:
            with torch.no_grad():
                reference_logprobs = pick(self._distribution(reference, batch), batch.targets)
        distribution = self._distribution(self.model, batch)
        return TokenTerms(
            policy_logprobs=pick(distribution, batch.targets),
            old_logprobs=batch.old_logprobs,
            sampled_logprobs=batch.sampled_logprobs,
            reference_logprobs=reference_logprobs,
            advantages=batch.advantages,
            distribution=distribution,
            rows=batch.rows,
        )

    def _distribution(self, model: Any, batch: MicroBatch) -> Tensor:
        with frozen(model) as used:
            return torch.log_softmax(action_logits(used, batch) / self._temperature, -1)


def action_logits(model: Any, batch: MicroBatch) -> Tensor:
    """(action tokens, vocabulary) float32 logits that predict each action token."""
    hidden, start = hidden_states(model, batch.ids, int(batch.before.min()))
    return logits_of(model, hidden[batch.rows, batch.before - start])


def pick(logprobs: Tensor, targets: Tensor) -> Tensor:
    """(tokens,) entries of (tokens, vocabulary) log-probabilities at ``targets``."""
    return logprobs.gather(1, targets[:, None])[:, 0]
