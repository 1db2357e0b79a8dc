"""Train the world-agnostic nano base from nothing: ``python -m palestra.recipes.nano_base --out FOLDER``.

Rows are half random repetition (which teaches attention to copy) and half invented tool dialogues
(which teach where to copy from and to). The loss counts every token, action tokens fully and the rest
at a tenth. Everything follows from the seed. Expect repetition accuracy above 0.95 after a few hundred
updates and most dialogue actions exact at the end; ``docs/nano.md`` holds the last curve.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedModel

from palestra.policy.chat import CONTROL_TOKENS, RoleTokenTemplate
from palestra.policy.nano import new_nano, save_policy, train_tokenizer
from palestra.recipes.base_corpus import WORDS, dialogue, repetition
from palestra.training.learner import make_optimizers


@dataclass(frozen=True)
class BaseConfig:
    """What the base is trained with."""

    updates: int = 4000
    copy_updates: int = 300
    """Updates of repetition alone before dialogues join in."""
    rows: int = 12
    """Dialogues per update."""
    row_tokens: int = 448
    repetition_rows: int = 32
    repetition_tokens: int = 64
    repetition_share: float = 0.15
    """Share of later updates that are repetition."""
    learning_rate: float = 0.01
    """Peak, of Muon for the layers' matrices and of AdamW for the rest."""
    other_token_weight: float = 0.1
    """Loss weight of tokens that are no action."""
    vocabulary_size: int = 2048
    hidden: int = 128
    feed_forward: int = 256
    layers: str = "caca"
    heads: int = 2
    seed: int = 0


Row = tuple[list[int], list[float]]


def tokenizer_texts(seed: int) -> list[str]:
    """The text the vocabulary is learned from."""
    rng = random.Random(f"tokenizer-{seed}")
    return [message.content for _ in range(3000) for message in dialogue(rng)] + list(WORDS) * 3


def dialogue_row(rng: random.Random, template: RoleTokenTemplate, config: BaseConfig) -> Row:
    """Ids and loss weights of one dialogue, cut to the row length."""
    ids: list[int] = []
    weights: list[float] = []
    for message in dialogue(rng):
        piece = template.render_closed([message])
        inside = 1.0 if message.role == "assistant" else config.other_token_weight
        ids += piece
        weights += [config.other_token_weight] + [inside] * (len(piece) - 1)
    return ids[: config.row_tokens], weights[: config.row_tokens]


def training_rows(
    rng: random.Random, template: RoleTokenTemplate, config: BaseConfig, update: int
) -> list[Row]:
    """One update's rows: all repetition or all dialogue."""
    if update <= config.copy_updates or rng.random() < config.repetition_share:
        vocabulary = range(len(CONTROL_TOKENS), config.vocabulary_size)
        spans = [repetition(rng, config.repetition_tokens, vocabulary) for _ in range(config.repetition_rows)]
        return [(ids, [1.0] * len(ids)) for ids in spans]
    return [dialogue_row(rng, template, config) for _ in range(config.rows)]


def collate(rows: list[Row], pad_id: int) -> tuple[Tensor, Tensor]:
    """Rows to right-padded (rows, tokens) ids and weights."""
    width = max(len(ids) for ids, _ in rows)
    ids = torch.full((len(rows), width), pad_id)
    weights = torch.zeros(len(rows), width)
    for index, (row_ids, row_weights) in enumerate(rows):
        ids[index, : len(row_ids)] = torch.tensor(row_ids)
        weights[index, : len(row_ids)] = torch.tensor(row_weights)
    return ids, weights


def weighted_loss(model: nn.Module, ids: Tensor, weights: Tensor) -> Tensor:
    """Mean cross-entropy of the next token, weighted; (rows, tokens) in, a scalar out."""
    logits = model(input_ids=ids, use_cache=False).logits[:, :-1]
    losses = F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten(), reduction="none")
    flat = weights[:, 1:].flatten()
    return (losses * flat).sum() / flat.sum()


@torch.no_grad()
def measure(model: nn.Module, template: RoleTokenTemplate, config: BaseConfig) -> dict[str, float]:
    """Share of repeated tokens, action tokens and whole actions predicted exactly, on unseen rows."""
    rng = random.Random(f"measure-{config.seed}")
    copies = torch.tensor([_span_gap_span(rng, config.vocabulary_size) for _ in range(32)])
    rows = [dialogue_row(rng, template, config) for _ in range(48)]
    ids, weights = collate(rows, template.pad_id)
    guesses = model(input_ids=ids, use_cache=False).logits.argmax(-1)[:, :-1]
    right = (guesses == ids[:, 1:]) | (weights[:, 1:] < 1.0)
    counted = weights[:, 1:] == 1.0
    copied = model(input_ids=copies, use_cache=False).logits.argmax(-1)[:, 54:-1] == copies[:, 55:]
    return {
        "copy_accuracy": copied.float().mean().item(),
        "action_token_accuracy": (right & counted).sum().item() / counted.sum().item(),
        "action_accuracy": _whole_actions(right, counted),
    }


def _span_gap_span(rng: random.Random, vocabulary_size: int) -> list[int]:
    """75 ids: 25 at random, 25 others, the first 25 again."""
    first, between = (
        [rng.randrange(len(CONTROL_TOKENS), vocabulary_size) for _ in range(25)] for _ in range(2)
    )
    return first + between + first


def _whole_actions(right: Tensor, counted: Tensor) -> float:
    """Share of maximal runs of counted tokens that are right throughout."""
    exact = total = 0
    for row_right, row_counted in zip(right.tolist(), counted.tolist(), strict=True):
        run_ok: bool | None = None
        for ok, inside in zip([*row_right, True], [*row_counted, False], strict=True):
            if inside:
                run_ok = ok if run_ok is None else run_ok and ok
            elif run_ok is not None:
                exact, total, run_ok = exact + run_ok, total + 1, None
    return exact / max(total, 1)


def rate_factor(progress: float) -> float:
    """Warm-up over 1 % of the run, then a straight line to a twentieth."""
    return min(progress / 0.01, 1.0) * (1.0 - 0.95 * progress)


def train_base(
    config: BaseConfig, report: Callable[[dict[str, float]], None]
) -> tuple[PreTrainedModel, RoleTokenTemplate]:
    """Train from nothing; ``report`` receives measurements every 200 updates."""
    template = RoleTokenTemplate(train_tokenizer(tokenizer_texts(config.seed), config.vocabulary_size))
    shape = {"hidden": config.hidden, "feed_forward": config.feed_forward, "heads": config.heads}
    model = new_nano(config.vocabulary_size, layers=config.layers, seed=config.seed, **shape)
    optimizers = make_optimizers(model, "muon")
    rng, started = random.Random(f"rows-{config.seed}"), time.perf_counter()
    for update in range(1, config.updates + 1):
        for optimizer in optimizers:
            optimizer.param_groups[0]["lr"] = config.learning_rate * rate_factor(update / config.updates)
        loss = weighted_loss(model, *collate(training_rows(rng, template, config, update), template.pad_id))
        model.zero_grad()
        torch.autograd.backward(loss)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer in optimizers:
            optimizer.step()
        if update % 200 == 0 or update == config.updates:
            seconds = time.perf_counter() - started
            report(
                {
                    "update": update,
                    "seconds": seconds,
                    "loss": loss.item(),
                    **measure(model, template, config),
                }
            )
    return model, template


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, help="folder for the weights")
    parser.add_argument("--updates", type=int, default=BaseConfig.updates)
    parser.add_argument("--seed", type=int, default=BaseConfig.seed)
    arguments = parser.parse_args()
    config = BaseConfig(updates=arguments.updates, seed=arguments.seed)
    curve: list[dict[str, float]] = []

    def report(row: dict[str, float]) -> None:
        curve.append(row)
        print(json.dumps(row), flush=True)

    model, template = train_base(config, report)
    arguments.out.mkdir(parents=True, exist_ok=True)
    save_policy(arguments.out, model.half(), template)
    (arguments.out / "curve.json").write_text(
        json.dumps({"config": asdict(config), "curve": curve}, indent=1)
    )


if __name__ == "__main__":
    main()
