"""Train the world-agnostic nano base from nothing: ``python -m palestra.recipes.nano_base --out FOLDER``.

First only random spans repeated over and over, on which attention learns to copy within a few hundred
updates; then rows that ask for a value by its name, on which it learns to look up; then invented tool
dialogues, which teach where to copy from and to, with some of the earlier rows between.
Only action tokens count. Everything follows from the seed; ``docs/nano.md`` holds the last curve.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

from palestra.policy.chat import CONTROL_TOKENS, ROLE_TOKENS, RoleTokenTemplate
from palestra.policy.models import save_policy
from palestra.policy.nano import new_nano, train_tokenizer
from palestra.recipes.base_dialogues import dialogue
from palestra.recipes.base_recall import Ids, Recall
from palestra.recipes.base_texts import repetition
from palestra.recipes.base_words import WORDS
from palestra.training import Learner, imitation_loss
from palestra.types import Segment


@dataclass(frozen=True)
class BaseConfig:
    """What the base is trained with."""

    updates: int = 3000
    copy_updates: int = 300
    """Updates of repetition alone, to begin with."""
    recall_updates: int = 1200
    """Updates of recall that follow, before dialogues join in."""
    rows: int = 12
    """Dialogues per update."""
    row_tokens: int = 448
    repetition_rows: int = 32
    repetition_tokens: int = 64
    recall_rows: int = 24
    recall_tokens: int = 128
    repetition_share: float = 0.08
    recall_share: float = 0.12
    """Shares of later updates that are one or the other."""
    learning_rate: float = 0.01
    """Peak, of Muon for the layers' matrices and of AdamW for the rest."""
    vocabulary_size: int = 3072
    hidden: int = 128
    feed_forward: int = 256
    layers: str = "cacaca"
    heads: int = 4
    seed: int = 0


def tokenizer_texts(seed: int) -> list[str]:
    """The text the vocabulary is learned from."""
    rng = random.Random(f"tokenizer-{seed}")
    return [message.content for _ in range(3000) for message in dialogue(rng)] + list(WORDS) * 4


def as_segment(ids: list[int], mask: list[bool]) -> Segment:
    """A row to imitate."""
    zeros = (0.0,) * len(ids)
    return Segment("base", tuple(ids), tuple(mask), zeros, tuple(float(trained) for trained in mask))


def dialogue_segment(rng: random.Random, template: RoleTokenTemplate, config: BaseConfig) -> Segment:
    """One dialogue, cut to the row length; trained on what the assistant says and its end tokens."""
    ids: list[int] = []
    mask: list[bool] = []
    for message in dialogue(rng):
        piece = template.render_closed([message])
        ids += piece
        mask += [False] + [message.role == "assistant"] * (len(piece) - 1)
    return as_segment(ids[: config.row_tokens], mask[: config.row_tokens])


def repetition_segment(rng: random.Random, config: BaseConfig, *, few: bool) -> Segment:
    """Repeated ids; ``few`` different ones, as in numbers, so that only several together tell the place."""
    vocabulary: Sequence[int] = range(len(CONTROL_TOKENS), config.vocabulary_size)
    if few:
        vocabulary = rng.sample(vocabulary, 12)
    ids = repetition(rng, config.repetition_tokens, vocabulary)
    return as_segment(ids, [False] + [True] * (len(ids) - 1))


def recall_segment(rng: random.Random, config: BaseConfig) -> Segment:
    """Values asked for by name, over random ids."""
    return as_segment(*Recall(rng, config.vocabulary_size).row(config.recall_tokens))


def training_segments(
    rng: random.Random, template: RoleTokenTemplate, config: BaseConfig, update: int
) -> list[Segment]:
    """One update's rows, all of one kind."""
    kind, copying = rng.random(), update <= config.copy_updates
    if copying or kind < config.repetition_share:
        return [
            repetition_segment(rng, config, few=not copying and index % 2 == 0)
            for index in range(config.repetition_rows)
        ]
    if (
        update <= config.copy_updates + config.recall_updates
        or kind < config.repetition_share + config.recall_share
    ):
        return [recall_segment(rng, config) for _ in range(config.recall_rows)]
    return [dialogue_segment(rng, template, config) for _ in range(config.rows)]


@torch.no_grad()
def measure(model: Any, template: RoleTokenTemplate, config: BaseConfig) -> dict[str, float]:
    """Share of ids copied, values recalled, action tokens and actions predicted exactly, on unseen rows."""
    rng = random.Random(f"measure-{config.seed}")
    right: list[bool] = []
    exact: list[bool] = []
    for segment in [dialogue_segment(rng, template, config) for _ in range(64)]:
        logits = model(input_ids=torch.tensor([segment.ids]), use_cache=False).logits[0]
        hits = [False, *(logits.argmax(-1)[:-1] == torch.tensor(segment.ids[1:])).tolist()]
        right += [hit for hit, trained in zip(hits, segment.action_mask, strict=True) if trained]
        exact += _whole_actions(hits, segment.action_mask)
    return {
        "copy_accuracy": measure_copying(model, rng, config.vocabulary_size),
        "recall_name_first": measure_recall(model, rng, config.vocabulary_size, Recall.name_first),
        "recall_list_first": measure_recall(model, rng, config.vocabulary_size, Recall.list_first),
        "action_token_accuracy": sum(right) / len(right),
        "action_accuracy": sum(exact) / len(exact),
    }


@torch.no_grad()
def measure_copying(model: Any, rng: random.Random, vocabulary_size: int) -> float:
    """Share of ids predicted exactly when a span comes again after other ids."""
    copies = torch.tensor([_span_gap_span(rng, vocabulary_size) for _ in range(32)])
    guesses = model(input_ids=copies, use_cache=False).logits.argmax(-1)[:, 54:-1]
    return float((guesses == copies[:, 55:]).float().mean())


@torch.no_grad()
def measure_recall(
    model: Any, rng: random.Random, vocabulary_size: int, ask: Callable[[Recall], tuple[Ids, Ids]]
) -> float:
    """Share of values whose first id is predicted exactly; ``ask`` draws a question and its answer."""
    hits = 0
    for _ in range(128):
        asked, answer = ask(Recall(rng, vocabulary_size))
        ids = [*asked, CONTROL_TOKENS.index(ROLE_TOKENS["assistant"])]
        guess = model(input_ids=torch.tensor([ids]), use_cache=False).logits[0, -1].argmax()
        hits += int(guess) == answer[0]
    return hits / 128


def _span_gap_span(rng: random.Random, vocabulary_size: int) -> list[int]:
    """75 ids: 25 at random, 25 others, the first 25 again."""
    first, between = (
        [rng.randrange(len(CONTROL_TOKENS), vocabulary_size) for _ in range(25)] for _ in range(2)
    )
    return first + between + first


def _whole_actions(hits: Sequence[bool], mask: Sequence[bool]) -> list[bool]:
    """For each maximal run of trained tokens, whether all were hit."""
    runs = groupby(zip(hits, mask, strict=True), key=lambda pair: pair[1])
    return [all(hit for hit, _ in pairs) for trained, pairs in runs if trained]


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
    learner = Learner(model, optimizer="muon")
    rng, started = random.Random(f"rows-{config.seed}"), time.perf_counter()
    for update in range(1, config.updates + 1):
        segments = training_segments(rng, template, config, update)
        rate = config.learning_rate * rate_factor(update / config.updates)
        loss = learner.update(segments, imitation_loss, rate)["loss/total"]
        if update % 200 == 0 or update == config.updates:
            seconds = time.perf_counter() - started
            report({"update": update, "seconds": seconds, "loss": loss, **measure(model, template, config)})
    return model, template


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, help="folder for the weights")
    parser.add_argument("--updates", type=int, default=BaseConfig.updates)
    parser.add_argument("--seed", type=int, default=BaseConfig.seed)
    parser.add_argument("--layers", default=BaseConfig.layers, help="c: convolution, a: attention")
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    config = BaseConfig(updates=arguments.updates, seed=arguments.seed, layers=arguments.layers)
    torch.set_num_threads(arguments.threads)
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
