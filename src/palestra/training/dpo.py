"""DPO: direct preference optimisation, as policy-gradient steps of the learner.

Rafailov et al. 2023, "Direct Preference Optimization", equation 7. The gradient of a pair's loss is a
policy gradient with the advantages plus and minus ``beta * sigmoid(-margin)``, so the learner, its masks
and its batches are used as they are. The surprising choice: a pair's rows need not share a micro-batch,
because its margin is worked out by a forward pass of its own before the step; and there is no second model,
because the reference is the policy before its first step.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from palestra.training.learner import Learner, OptimizerName
from palestra.training.metrics import mean
from palestra.training.preferences import PairRows, pair_batches, preference_loss, preference_pull
from palestra.training.sft import warmed_rate
from palestra.training.surrogates import policy_gradient
from palestra.types import Segment


@dataclass(frozen=True)
class DpoSettings:
    """How to learn from preferences."""

    beta: float
    """How dearly a step away from the reference is paid: larger stays nearer."""
    epochs: int
    pairs_per_update: int
    learning_rate: float
    """Peak; warms up over a tenth of the updates and falls linearly to a tenth."""
    seed: int


def dpo_learner(
    model: Any, *, optimizer: OptimizerName, temperature: float, micro_batch_tokens: int = 4096
) -> Learner:
    """The learner that ``prefer`` needs: no token counts less in a long attempt, as log-ratios are sums."""
    return Learner(
        model,
        optimizer=optimizer,
        temperature=temperature,
        aggregation="constant",
        token_budget=1,
        micro_batch_tokens=micro_batch_tokens,
    )


def prefer(
    learner: Learner,
    pairs: Sequence[PairRows],
    settings: DpoSettings,
    report: Callable[[int, int, dict[str, float]], None],
    after_epoch: Callable[[int], None] = lambda _: None,
) -> None:
    """Train on ``pairs``; the learner's model as it is now becomes the reference.

    Args:
        learner: from ``dpo_learner``.
        pairs: from ``pair_rows``.
        settings: numbers.
        report: gets update number, number of updates and metrics after each.
        after_epoch: gets the number of each finished pass.
    """
    reference = log_likelihoods(learner, pairs)
    total, update = settings.epochs * -(-len(pairs) // settings.pairs_per_update), 0
    for epoch in range(1, settings.epochs + 1):
        for chosen in pair_batches(len(pairs), settings.pairs_per_update, f"dpo:{settings.seed}:{epoch}"):
            update += 1
            rate = warmed_rate(update / total, settings.learning_rate)
            some, before = [pairs[index] for index in chosen], [reference[index] for index in chosen]
            report(update, total, dpo_update(learner, some, before, settings.beta, rate))
        after_epoch(epoch)


def dpo_update(
    learner: Learner,
    pairs: Sequence[PairRows],
    reference: Sequence[tuple[float, float]],
    beta: float,
    rate: float,
) -> dict[str, float]:
    """One optimiser step on the mean loss of ``pairs``, and metrics of before it.

    Args:
        learner: from ``dpo_learner``.
        pairs: rows of chosen and rejected attempts.
        reference: ``log_likelihoods`` of the pairs under the reference.
        beta: of the loss.
        rate: learning rate.
    """
    ratios = [
        (chosen - chosen_before, rejected - rejected_before)
        for (chosen, rejected), (chosen_before, rejected_before) in zip(
            log_likelihoods(learner, pairs), reference, strict=True
        )
    ]
    margins = [beta * (chosen - rejected) for chosen, rejected in ratios]
    rows: list[Segment] = []
    for (chosen, rejected), margin in zip(pairs, margins, strict=True):
        advantage = 2.0 * beta * preference_pull(margin)  # the learner averages over attempts, two to a pair
        for side, signed in ((chosen, advantage), (rejected, -advantage)):
            number = len(rows)  # an attempt may be in several pairs, and is a sequence of its own in each
            rows += [_weighed(row, f"{number}/{row.trajectory_id}", signed) for row in side]
    metrics = learner.update(rows, policy_gradient(), rate)
    del metrics["loss/total"]  # of the surrogate, which means nothing here
    return {
        "dpo/loss": mean(map(preference_loss, margins)),
        "dpo/accuracy": mean(float(margin > 0) for margin in margins),
        "dpo/margin": mean(margins),
        "dpo/chosen_log_ratio": mean(chosen for chosen, _ in ratios),
        "dpo/rejected_log_ratio": mean(rejected for _, rejected in ratios),
        **metrics,
    }


def log_likelihoods(learner: Learner, pairs: Sequence[PairRows]) -> list[tuple[float, float]]:
    """Log-probability of all marked tokens together, chosen and rejected, under the learner's model."""
    sides = [side for pair in pairs for side in pair]
    found = iter(learner.logprobs(learner.model, [row for side in sides for row in side]))
    sums = [math.fsum(value for _ in side for value in next(found)) for side in sides]
    return list(zip(sums[::2], sums[1::2], strict=True))


def _weighed(row: Segment, name: str, advantage: float) -> Segment:
    each = tuple(advantage if counts else 0.0 for counts in row.action_mask)
    return replace(row, trajectory_id=name, advantages=each)
