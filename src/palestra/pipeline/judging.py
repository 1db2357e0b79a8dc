"""The reward model of a run: trained on its preference pairs, tested on pairs of other tasks.

The surprising choice: it is read after its last pass and not after its best, so that the accuracy on held-out
tasks is a measurement and not a maximum.
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from palestra.errors import ConfigError, GateFailed, StoreError
from palestra.pipeline.learning import final_stage
from palestra.pipeline.model_parts import load_judging
from palestra.pipeline.preferring import (
    PAIRS_FILE,
    describe,
    finite_gradients,
    line_reporter,
    pairs_text,
    stored_pairs,
)
from palestra.pipeline.workshop import Workshop
from palestra.store import check_free, write_folder
from palestra.training import (
    ABOUT_FILE,
    JudgedPair,
    PreferencePair,
    RewardModel,
    RewardModelSettings,
    fit_reward_model,
    judged_segment,
    preference_metrics,
    save_reward_model,
    score_margins,
)


@dataclass(frozen=True)
class RewardModelOptions:
    """What ``palestra reward-model`` was asked for."""

    margin: float
    """Smallest difference in reward that makes a pair where success does not decide."""
    held_out: float
    """Share of tasks whose pairs are not learned from."""
    epochs: int
    pairs_per_update: int
    learning_rate: float


def split_by_task(
    pairs: Sequence[PreferencePair], share: float, seed: int
) -> tuple[list[PreferencePair], list[PreferencePair]]:
    """Pairs to learn from and pairs to be tested on, which have no task in common.

    Raises:
        GateFailed: all pairs are of one task.
    """
    tasks = sorted({_problem(pair) for pair in pairs})
    if len(tasks) < 2:
        raise GateFailed(
            "All preference pairs are of one task, so a reward model could not be tested on another. Train "
            "on more tasks first (rl.updates, rl.tasks_per_update)."
        )
    random.Random(f"held out:{seed}").shuffle(tasks)
    count = min(max(1, round(share * len(tasks))), len(tasks) - 1)
    held_out = set(tasks[:count])
    known = [pair for pair in pairs if _problem(pair) not in held_out]
    return known, [pair for pair in pairs if _problem(pair) in held_out]


def train_reward_model(workshop: Workshop, out: Path, options: RewardModelOptions) -> dict[str, Any]:
    """Train on the run's pairs, starting from its policy, and write the folder ``out``, whole or not at all.

    A folder that holds this reward model already is left as it is. Returns what is in ``reward_model.json``.

    Raises:
        ConfigError: ``out`` holds a reward model of another run, or made with other options.
        GateFailed: too few pairs, or a gradient that is not finite.
        StoreError: ``out`` holds something else, or cannot be written.
    """
    asked = {"run": str(workshop.run.path.resolve()), **asdict(options)}
    finished = read_about(out)
    if finished is not None:
        if asked.items() <= finished.items():
            workshop.reporter.line(f"{out} is finished already")
            return finished
        raise ConfigError(
            f"{out} holds a reward model of {finished.get('run')} or with other options: name another folder"
        )
    config = workshop.config
    start = final_stage(workshop)
    loaded = load_judging(workshop.run, start, config)
    pairs = stored_pairs(workshop.run, loaded.template, config.policy, options.margin)
    known, held_out = split_by_task(pairs, options.held_out, config.seed)
    workshop.reporter.line(f"{describe(pairs)}; {len(held_out)} are held out; starting from {start}")
    reward = RewardModel(loaded.model, micro_batch_tokens=loaded.micro_batch_tokens)
    settings = RewardModelSettings(
        options.epochs, options.pairs_per_update, options.learning_rate, config.seed
    )
    rows: list[str] = []
    report = line_reporter(workshop.reporter, "reward_model", lambda row: rows.append(json.dumps(row) + "\n"))
    with finite_gradients():
        fit_reward_model(reward, [_rows(pair) for pair in known], settings, report)
    tested = preference_metrics(score_margins(reward, [_rows(pair) for pair in held_out]))
    about = {
        **asked,
        "start": start,
        "pairs": len(known),
        "held_out_pairs": len(held_out),
        "held_out_accuracy": tested["reward_model/accuracy"],
        "held_out_loss": tested["reward_model/loss"],
    }

    def fill(folder: Path) -> None:
        save_reward_model(folder, reward, loaded.template, about)
        (folder / PAIRS_FILE).write_text(pairs_text(pairs), encoding="utf-8")
        (folder / "metrics.jsonl").write_text("".join(rows), encoding="utf-8")

    write_folder(out, fill)
    return about


def read_about(folder: Path) -> dict[str, Any] | None:
    """What the reward model in ``folder`` says of itself; None where nothing is.

    Raises:
        StoreError: something else is there, or it cannot be read.
    """
    path = folder / ABOUT_FILE
    if not path.exists():
        check_free(folder)
        return None
    try:
        about: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise StoreError(f"{path} cannot be read: {error}") from error
    return about


def _rows(pair: PreferencePair) -> JudgedPair:
    return judged_segment(pair.chosen), judged_segment(pair.rejected)


def _problem(pair: PreferencePair) -> str:
    task = pair.chosen.task
    return task.content_hash or task.id
