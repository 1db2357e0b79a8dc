"""The reward model: a number for a whole attempt, learned from preferences.

A copy of the policy with a scalar head, read at the last action token. Training is that of Bradley and
Terry (1952), as in Ouyang et al. 2022, "Training language models to follow instructions", equation 1. What
comes out is squashed to 0 to 1, so that it can be a part of a rubric. The surprising choice: its folder
holds the tokenizer too, because ids are read as they were sampled and mean nothing in another vocabulary.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import nn

from palestra.errors import StoreError
from palestra.policy.models import load_policy, save_policy
from palestra.training.batch import make_micro_batches
from palestra.training.critic import head_parameters, scalar_head, state_values
from palestra.training.metrics import mean
from palestra.training.preferences import pair_batches, preference_loss, preference_pull
from palestra.training.segments import judged_segment
from palestra.training.sft import warmed_rate
from palestra.types import Segment, Trajectory

HEAD_FILE, ABOUT_FILE = "head.safetensors", "reward_model.json"
_MIN_DEVIATION = 1e-6

JudgedPair = tuple[Segment, Segment]
"""Rows of ``judged_segment``, of the chosen and of the rejected attempt."""


@dataclass(frozen=True)
class RewardModelSettings:
    """How to learn rewards from preferences."""

    epochs: int
    pairs_per_update: int
    learning_rate: float
    """Peak, of AdamW; warms up over a tenth of the updates and falls linearly to a tenth."""
    seed: int


class RewardModel:
    """A model that scores attempts, and the scale of its scores."""

    def __init__(self, model: Any, *, micro_batch_tokens: int = 4096) -> None:
        """Score with ``model``, a transformers causal language model that nothing else trains."""
        self.model, self.head = model, scalar_head(model)
        self.mean, self.deviation = 0.0, 1.0
        """Of the scores it was trained on."""
        self._micro_batch_tokens = micro_batch_tokens

    def scores(self, rows: Sequence[Segment]) -> list[float]:
        """One score for each row from ``judged_segment``, without bounds; only differences mean anything."""
        found = [0.0] * len(rows)
        for batch in make_micro_batches(rows, self._micro_batch_tokens):
            with torch.no_grad():
                values = state_values(self.model, self.head, batch)
            for row, value in zip(batch.rows.tolist(), values.tolist(), strict=True):
                found[batch.indices[row]] = value
        return found

    def value(self, trajectory: Trajectory) -> float | None:
        """The score as a number from 0 to 1, 0.5 for a usual attempt; None without token ids."""
        if not trajectory.turns or not all(turn.action_ids for turn in trajectory.turns):
            return None
        (score,) = self.scores([judged_segment(trajectory)])
        return 1.0 / (1.0 + math.exp(min((self.mean - score) / self.deviation, 700.0)))

    def accumulate(self, rows: Sequence[Segment], weights: Sequence[float]) -> None:
        """Add to the gradients those of the weighted sum of the rows' scores."""
        for batch in make_micro_batches(rows, self._micro_batch_tokens):
            values = state_values(self.model, self.head, batch)
            chosen = torch.tensor([weights[batch.indices[row]] for row in batch.rows.tolist()])
            torch.autograd.backward((values * chosen).sum())

    def set_scale(self, rows: Sequence[Segment]) -> None:
        """Take mean and (population) deviation of the scores from ``rows``."""
        scores = self.scores(rows)
        self.mean = mean(scores)
        self.deviation = max(math.sqrt(mean((s - self.mean) ** 2 for s in scores)), _MIN_DEVIATION)


def fit_reward_model(
    reward: RewardModel,
    pairs: Sequence[JudgedPair],
    settings: RewardModelSettings,
    report: Callable[[int, int, dict[str, float]], None],
) -> None:
    """Train on ``pairs`` and settle the scale on them.

    ``report`` gets update number, number of updates and metrics after each.

    Raises:
        FloatingPointError: a gradient is not finite; the weights are as they were before that update.
    """
    parameters = head_parameters(reward.model, reward.head)
    optimizer = torch.optim.AdamW(parameters, lr=0.0, betas=(0.9, 0.95), weight_decay=0.0)
    total, update = settings.epochs * -(-len(pairs) // settings.pairs_per_update), 0
    for epoch in range(1, settings.epochs + 1):
        for chosen in pair_batches(len(pairs), settings.pairs_per_update, f"reward:{settings.seed}:{epoch}"):
            update += 1
            some = [pairs[index] for index in chosen]
            optimizer.zero_grad(set_to_none=True)
            metrics = accumulate_preferences(reward, some)
            norm = float(nn.utils.clip_grad_norm_(parameters, 1.0))
            if not math.isfinite(norm):
                raise FloatingPointError(f"gradient norm is {norm}; the update was not applied")
            rate = warmed_rate(update / total, settings.learning_rate)
            optimizer.param_groups[0]["lr"] = rate
            optimizer.step()
            report(update, total, metrics | {"gradient/norm": norm, "learning_rate": rate})
    reward.set_scale([row for pair in pairs for row in pair])


def accumulate_preferences(reward: RewardModel, pairs: Sequence[JudgedPair]) -> dict[str, float]:
    """Add the gradient of the mean loss of ``pairs``; metrics of it.

    Scores come from a pass of their own, so a pair's rows need not share a micro-batch.
    """
    margins = score_margins(reward, pairs)
    weights = [-preference_pull(margin) / len(pairs) for margin in margins]
    rows = [row for pair in pairs for row in pair]
    reward.accumulate(rows, [signed for weight in weights for signed in (weight, -weight)])
    return preference_metrics(margins)


def score_margins(reward: RewardModel, pairs: Sequence[JudgedPair]) -> list[float]:
    """By how much each chosen attempt's score exceeds the rejected one's."""
    scores = reward.scores([row for pair in pairs for row in pair])
    return [chosen - rejected for chosen, rejected in zip(scores[::2], scores[1::2], strict=True)]


def preference_metrics(margins: Sequence[float]) -> dict[str, float]:
    """Loss, share of pairs in the right order, and mean margin."""
    return {
        "reward_model/loss": mean(map(preference_loss, margins)),
        "reward_model/accuracy": mean(float(margin > 0) for margin in margins),
        "reward_model/margin": mean(margins),
    }


def save_reward_model(folder: Path, reward: RewardModel, template: Any, about: dict[str, Any]) -> None:
    """Write weights, head, tokenizer, scale and ``about`` (plain JSON values) into an existing folder."""
    save_policy(folder, reward.model, template)
    save_file(
        {name: value.contiguous() for name, value in reward.head.state_dict().items()}, folder / HEAD_FILE
    )
    scale = {"mean": reward.mean, "deviation": reward.deviation}
    (folder / ABOUT_FILE).write_text(json.dumps({**about, **scale}, indent=2) + "\n", encoding="utf-8")


def load_reward_model(folder: Path) -> tuple[RewardModel, Any]:
    """The reward model in a folder, and the template whose ids it reads.

    Raises:
        StoreError: a file is missing or unreadable.
    """
    model, template = load_policy(folder)
    reward = RewardModel(model)
    try:
        about = json.loads((folder / ABOUT_FILE).read_text(encoding="utf-8"))
        reward.mean, reward.deviation = float(about["mean"]), float(about["deviation"])
        reward.head.load_state_dict(load_file(folder / HEAD_FILE))
    except (OSError, ValueError, KeyError, TypeError, SafetensorError, RuntimeError) as error:
        raise StoreError(f"The reward model in {folder} cannot be loaded: {error}") from error
    return reward, template


@dataclass(frozen=True)
class StoredReward:
    """The reward model in a folder as a function of an attempt; another process gets it by its path."""

    folder: Path

    def __call__(self, trajectory: Trajectory) -> float | None:
        """From 0 to 1; None without token ids."""
        return _loaded(self.folder).value(trajectory)


@cache
def _loaded(folder: Path) -> RewardModel:
    return load_reward_model(folder)[0]
