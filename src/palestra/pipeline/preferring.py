"""Learning from preferences: pairs out of a run's stored attempts, DPO on them, and a reward model of them.

DPO leaves a run folder of its own, which starts as a copy of the run it takes its pairs from. The
surprising choice: the copy is whole but for checkpoints other than the best, so the new run stands alone, its
report shows what came before, and its held-out tasks are those of the old one.
"""

from __future__ import annotations

import json
import re
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from palestra.errors import ConfigError, GateFailed, StoreError
from palestra.pipeline.config import PolicyConfig
from palestra.pipeline.examination import examine
from palestra.pipeline.learning import final_stage, validated
from palestra.pipeline.model_parts import context_window, load_learning, load_stage, make_dpo_learner
from palestra.pipeline.progress import Reporter, time_left
from palestra.pipeline.workshop import Workshop
from palestra.store import RunFolder, check_free, write_atomic, write_folder
from palestra.training import (
    DpoSettings,
    PreferencePair,
    best_checkpoint,
    keep_checkpoints,
    make_segments,
    pair_rows,
    prefer,
    preference_pairs,
    save_checkpoint,
    scores_in,
    tokenize_trajectory,
)
from palestra.types import Trajectory, TrajectoryGroup

SETTINGS_FILE, PAIRS_FILE = "dpo.json", "pairs.jsonl"
_TRAINED = re.compile(r"collect|rl|mine\d+(-pool|-teacher)?")
"""Stages whose tasks are training tasks. Demonstrations are copies of attempts in ``collect``."""
_LEFT_OUT = ("config.yaml", "resolved.yaml", "manifest.json", "report.html")


@dataclass(frozen=True)
class DpoOptions:
    """What ``palestra dpo`` was asked for; kept in the run as ``dpo.json``."""

    margin: float
    """Smallest difference in reward that makes a pair where success does not decide."""
    beta: float
    epochs: int
    pairs_per_update: int
    learning_rate: float


def stored_pairs(run: RunFolder, template: Any, limits: PolicyConfig, margin: float) -> list[PreferencePair]:
    """The preference pairs among the attempts at training tasks that a run has stored.

    Scripted attempts are given the ids that a policy would have had. Nothing of validation or test is read.

    Raises:
        GateFailed: there is none; the message says why.
    """
    stages = [stage for stage in run.trajectory_stages() if _TRAINED.fullmatch(stage)]
    groups = [with_ids(group, template, limits) for stage in stages for group in run.read_groups(stage)]
    pairs = preference_pairs(groups, margin)
    if not pairs:
        alone = sum(len(group.trajectories) < 2 for group in groups)
        long = sum(bool(t.turns) and not t.prompt_ids for group in groups for t in group.trajectories)
        left_out = (
            f" {long} attempts of scripts are in no pair, as they do not fit policy.context_tokens or "
            "policy.action_tokens."
            if long
            else ""
        )
        raise GateFailed(
            f"No preference pair in {run.path}: of {len(groups)} groups of training tasks (stages: "
            f"{', '.join(stages) or 'none'}) {alone} have a single attempt, and in the others no attempt is "
            f"better than another by success or by {margin:g} of reward.{left_out} Pairs need several "
            "attempts at a task that come out differently: train with rl.updates or collect.attempts above "
            "1, or lower --margin."
        )
    return pairs


def with_ids(group: TrajectoryGroup, template: Any, limits: PolicyConfig) -> TrajectoryGroup:
    """The group with token ids for attempts that nobody sampled, in the context that a policy would have had.

    One that the policy could not have played to its end within ``limits`` stays without.
    """

    def tokenized(trajectory: Trajectory) -> Trajectory:
        if trajectory.prompt_ids or not trajectory.turns:
            return trajectory
        made = tokenize_trajectory(trajectory, template, context_window(limits))
        rows = make_segments(made, [0.0] * len(made.turns))
        row, action = max(len(each.ids) for each in rows), max(len(turn.action_ids) for turn in made.turns)
        fits = row <= limits.context_tokens and action <= limits.action_tokens
        return made if fits else trajectory

    return TrajectoryGroup(group.id, group.task, tuple(map(tokenized, group.trajectories)))


def pairs_text(pairs: Sequence[PreferencePair]) -> str:
    """The pairs as JSON lines: who was preferred to whom, with rewards and the actions where they part."""
    return "".join(json.dumps(_readable(pair), ensure_ascii=False) + "\n" for pair in pairs)


def start_dpo(workshop: Workshop, path: Path, options: DpoOptions, command: str) -> RunFolder:
    """A new run folder for DPO: a copy of the workshop's run, of whose checkpoints only each stage's best.

    Whatever is raised, no folder is left.

    Raises:
        ConfigError: the run has been through DPO already, or has no policy.
        GateFailed: it has no preference pair.
        StoreError: ``path`` is taken, or cannot be written.
    """
    source = workshop.run
    if is_dpo_run(source.path):
        raise ConfigError(
            f"{source.path} was made by `palestra dpo`, so its pairs are spent: name a trained run, or go on "
            f"with it (palestra dpo {source.path} --resume)."
        )
    if source.path.resolve() in path.resolve().parents:
        raise StoreError(f"{path} is inside the run {source.path}: choose a folder beside it")
    check_free(path)
    loaded = load_stage(source, final_stage(workshop), workshop.config)
    stored_pairs(source, loaded.template, workshop.config.policy, options.margin)

    def fill(folder: Path) -> None:
        text, resolved = source.config_text(), source.resolved()
        RunFolder.create(folder, config_text=text, resolved=resolved, command=command)
        shutil.copytree(source.path, folder, ignore=partial(_unneeded, source.path), dirs_exist_ok=True)
        write_atomic(folder / SETTINGS_FILE, json.dumps(asdict(options), indent=2) + "\n")

    write_folder(path, fill)
    return RunFolder.open(path)


def is_dpo_run(path: Path) -> bool:
    """Whether ``palestra dpo`` made the run at ``path``."""
    return (path / SETTINGS_FILE).exists()


def optimize_preferences(workshop: Workshop) -> dict[str, Any]:
    """The stage: DPO from the trained policy; the result goes to ``checkpoints/dpo`` and is evaluated.

    An interrupted stage starts again. After every pass the policy is validated, and the best pass is
    evaluated.
    """
    run, config = workshop.run, workshop.config
    options = _options(run)
    start = final_stage(workshop, before="dpo")
    loaded = load_learning(run, start, config)
    pairs = stored_pairs(run, loaded.template, config.policy, options.margin)
    write_atomic(run.path / PAIRS_FILE, pairs_text(pairs))
    workshop.reporter.line(f"  {describe(pairs)}; starting from {start}")
    run.keep_metrics(lambda row: row["stage"] != "dpo")
    learner = make_dpo_learner(loaded)
    settings = DpoSettings(
        options.beta, options.epochs, options.pairs_per_update, options.learning_rate, config.seed
    )
    tasks = workshop.held_out_tasks("validation", config.rl.validation_tasks)

    def after_epoch(epoch: int) -> None:
        loaded.engine.weights_changed(loaded.version)
        found = validated(workshop, loaded.policy("dpo", 0.0), tasks, "dpo")
        state = {"update": epoch, "version": loaded.version, "validation": scores_in(found)}
        folder = run.path / "checkpoints" / "dpo"
        save_checkpoint(folder / f"step-{epoch}", learner, loaded.template, state)
        keep_checkpoints(folder, 0)
        run.append_metrics({"stage": "dpo", "epoch": epoch, **found})
        workshop.reporter.line(f"  dpo pass {epoch}: validation {found.get('validation/success', 0.0):.3f}")

    report = line_reporter(workshop.reporter, "dpo", run.append_metrics)
    with finite_gradients():
        prefer(learner, [pair_rows(pair) for pair in pairs], settings, report, after_epoch)
    _examine(workshop)
    return {"pairs": len(pairs), "start": start}


@contextmanager
def finite_gradients() -> Iterator[None]:
    """Turns a gradient that is not finite into advice.

    Raises:
        GateFailed: in its place.
    """
    try:
        yield
    except FloatingPointError as error:
        raise GateFailed(f"{error}. Start anew with a lower --learning-rate.") from error


def describe(pairs: Sequence[PreferencePair]) -> str:
    """How many pairs, of how many tasks, and how far in they part."""
    tasks = len({pair.chosen.task.id for pair in pairs})
    decided = sum(pair.chosen.success != pair.rejected.success for pair in pairs)
    turn = sum(pair.turn + 1 for pair in pairs) / len(pairs)
    return (
        f"{len(pairs)} preference pairs of {tasks} tasks, {decided} of a success over a failure; "
        f"they part in turn {turn:.1f} on average"
    )


def line_reporter(
    reporter: Reporter, stage: str, keep: Callable[[dict[str, Any]], None]
) -> Callable[[int, int, dict[str, float]], None]:
    """Has an update's metrics kept under ``stage`` and prints six lines on the way."""
    started = time.perf_counter()

    def report(update: int, total: int, metrics: dict[str, float]) -> None:
        keep({"stage": stage, "update": update, **metrics})
        if update % max(total // 6, 1) == 0 or update == total:
            left = time_left(update, total, started)
            reporter.line(f"  {stage} update {update}/{total} {_shown(metrics)} · {left} left")

    return report


def _shown(metrics: dict[str, float]) -> str:
    names = ("loss", "accuracy", "margin")
    values = {name.rpartition("/")[2]: value for name, value in metrics.items()}
    return " · ".join(f"{name} {values[name]:.3f}" for name in names)


def _examine(workshop: Workshop) -> None:
    """Evaluate the best pass as the other stages were."""
    config = workshop.config
    loaded = load_stage(workshop.run, "dpo", config)
    tasks = workshop.held_out_tasks("test", config.evaluation.tasks)
    modes = [("greedy", 0.0), *([("sampled", config.rl.temperature)] if config.evaluation.sampled else [])]
    for mode, temperature in modes:
        examine(workshop, "dpo", mode, tasks, partial(loaded.policy, "dpo", temperature))


def _options(run: RunFolder) -> DpoOptions:
    path = run.path / SETTINGS_FILE
    try:
        return DpoOptions(**json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError) as error:
        raise StoreError(f"{path} cannot be read: {error}") from error


def _unneeded(root: Path, folder: str, names: list[str]) -> set[str]:
    """What of ``folder`` in the run at ``root`` a copy does without."""
    here = Path(folder)
    ignored = shutil.ignore_patterns(*_LEFT_OUT)(folder, names) if here == root else set()
    if here.parent == root / "checkpoints":
        ignored |= set(names) - {best.name for best in [best_checkpoint(here)] if best is not None}
    return ignored


def _readable(pair: PreferencePair) -> dict[str, Any]:
    about = {"group": pair.group_id, "task": pair.chosen.task.id, "turn": pair.turn}
    return about | {
        name: {
            "id": trajectory.id,
            "success": trajectory.success,
            "reward": trajectory.reward,
            "action": trajectory.turns[pair.turn].action,
        }
        for name, trajectory in {"chosen": pair.chosen, "rejected": pair.rejected}.items()
    }
