"""Online reinforcement learning on one page: tasks -> trajectories -> advantages -> update -> new policy.

The policy is frozen while a batch is collected, and strictly on-policy unless ``max_policy_lag`` lets batches
be sampled ahead, beside the learning. Everything an update needs follows from the seed, its number and the
checkpoint before it, so a killed run goes on bit for bit.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from palestra.errors import GateFailed, StoreError, TrainingPaused
from palestra.monitor import GuardAction
from palestra.store import ExperienceStore
from palestra.training.advantages import lean
from palestra.training.ahead import Batch, Batches, is_due, sampling_seed
from palestra.training.checkpoint import (
    checkpoints,
    keep_checkpoints,
    load_newest,
    save_checkpoint,
    scores_in,
    validation_scores,
)
from palestra.training.credit import Credit
from palestra.training.guarding import act
from palestra.training.kl_reward import subtract_kl
from palestra.training.loop_parts import LoopParts, LoopSettings
from palestra.training.metrics import summarize_groups
from palestra.training.segments import make_segments
from palestra.types import Segment, StopReason, TrajectoryGroup

KEPT_CHECKPOINTS = 2
"""Of a stage, beside its best one: the newest to go on from, and one in case that turns out torn."""


def train_online(settings: LoopSettings, parts: LoopParts) -> None:
    """Run the stage from its newest checkpoint, or from its start, to its last update.

    Raises:
        GateFailed: a gradient is not finite and no guard is set for it.
        TrainingPaused: a guard stopped the run at a checkpoint.
    """
    folder = parts.run.path / "checkpoints" / settings.stage
    start = _resume(folder, settings, parts)
    experience = ExperienceStore(
        parts.run,
        settings.stage,
        max_policy_lag=settings.max_policy_lag,
        hot_updates=1,
        after_update=start,
    )
    batches = Batches(settings, parts, start)
    if parts.guards.may_roll_back and not checkpoints(folder):
        _save(folder, 0, settings, parts, scores_in(parts.validate(0)))
    for update in range(start + 1, settings.updates + 1):
        groups, metrics = _play_and_learn(update, batches, experience, settings, parts)
        due = is_due(update, settings)
        if due:
            parts.engine.weights_changed(settings.first_version + update)
            metrics |= parts.validate(update)
        row = {"stage": settings.stage, "update": update, **metrics}
        parts.run.append_metrics(row)
        parts.report(update, settings.updates, metrics)
        actions = parts.guards.choose(update, parts.watch(row, groups))
        restored = _change(actions, update, metrics, folder, settings, parts)
        if due or "pause" in actions:
            # last: a resumed run drops rows and notes past its checkpoint, never misses one before it
            _save(folder, update, settings, parts, scores_in(metrics) if restored is None else restored)
        if "pause" in actions:
            raise TrainingPaused(
                f"{settings.stage} update {update}: paused by the guard for {actions['pause']}. "
                "`palestra doctor` says more. Go on with --resume, or start a new run with other settings."
            )


def _play_and_learn(
    update: int, batches: Batches, experience: ExperienceStore, settings: LoopSettings, parts: LoopParts
) -> tuple[list[TrajectoryGroup], dict[str, float]]:
    """One batch of episodes, stored, and what was learned from it."""
    version = settings.first_version + update - 1
    parts.engine.weights_changed(version)
    batch = batches.take(update, version)
    groups, sampled = batch.sampled.groups, time.perf_counter()
    experience.add(update, groups)
    fresh = experience.fresh(version)
    metrics = summarize_groups(groups) | parts.curriculum.metrics()
    if settings.max_policy_lag:
        metrics |= _side_by_side(batch, version) | experience.metrics()
    parts.curriculum.observe(groups)
    segments, credit_metrics = _credited(fresh, settings, parts)
    trained = {segment.trajectory_id for segment in segments}
    metrics |= {"episodes/trained": len(trained) / max(1, sum(len(group.trajectories) for group in fresh))}
    metrics |= credit_metrics
    if segments:
        metrics |= _learn(segments, update, settings, parts)
    updated = time.perf_counter()
    return groups, metrics | {
        "time/rollout": batch.sampled.seconds,
        "time/update": updated - sampled,
        "tokens_per_second/rollout": _sampled_tokens(groups) / batch.sampled.seconds,
        "tokens_per_second/update": sum(len(s.ids) for s in segments) / (updated - sampled),
    }


def _side_by_side(batch: Batch, version: int) -> dict[str, float]:
    """Which side waited for the other, and how far behind the sampling weights were."""
    oldest = min(t.policy_version for group in batch.sampled.groups for t in group.trajectories)
    waits = {"policy/lag": float(version - oldest), "time/waited_for_batch": batch.waited}
    return waits if batch.sampled.idle is None else waits | {"time/sampler_idle": batch.sampled.idle}


def _change(
    actions: Mapping[GuardAction, str],
    update: int,
    metrics: Mapping[str, float],
    folder: Path,
    settings: LoopSettings,
    parts: LoopParts,
) -> tuple[float, ...] | None:
    """Move what follows the metrics and do what guards ask for.

    Returns:
        Validation scores of the weights that were put back; None if they were not.
    """
    changes = parts.controls.observe(metrics)
    rate = learning_rate_at(update, settings) * parts.controls.rate_scale
    done, restored = act(actions, update, rate, folder, parts)
    for change in changes + done:
        parts.run.append_change({"stage": settings.stage, "update": update, **asdict(change)})
        parts.note(change)
    return None if restored is None else validation_scores(restored)


def _credited(
    groups: Sequence[TrajectoryGroup], settings: LoopSettings, parts: LoopParts
) -> tuple[list[Segment], dict[str, float]]:
    """Rows with their advantages, ready for the loss, and metrics of credit."""
    if settings.kl_in_reward and parts.reference is not None:
        groups = subtract_kl(groups, parts.learner, parts.reference, parts.controls.kl_weight)
    segments, metrics = parts.make_rows(groups)
    if settings.recompute:
        found = parts.learner.logprobs(parts.learner.model, segments)
        segments = [replace(row, old_logprobs=old) for row, old in zip(segments, found, strict=True)]
    return segments, metrics


def _learn(
    segments: Sequence[Segment], update: int, settings: LoopSettings, parts: LoopParts
) -> dict[str, float]:
    """Passes over the batch in minibatches, an optimiser step each; metrics weighted by their tokens."""
    controls = parts.controls
    weights = {"kl": controls.kl_weight, "entropy": controls.entropy_weight}
    loss = parts.make_loss(0.0 if settings.kl_in_reward else weights["kl"], weights["entropy"])
    rate = learning_rate_at(update, settings) * controls.rate_scale
    sums, tokens = dict[str, float](), 0.0
    for rows in minibatches(segments, update, settings):
        try:
            values = parts.learner.update(rows, loss, rate, parts.reference)
        except FloatingPointError as error:
            if parts.guards.mends("not_finite") and controls.may_skip():
                return {"gradient/norm": math.nan, "learning_rate": rate}
            raise GateFailed(
                f"{settings.stage} update {update}: {error}. Start a new run with a lower "
                "rl.learning_rate, or with rl.guards.not_finite=roll_back if it had no guard; resuming this "
                "one would come to the same point."
            ) from error
        sums.setdefault("policy/kl_mismatch", values["policy/kl_sampled"])  # before the first step
        count = values.pop("tokens/trained")
        tokens += count
        for name, value in values.items():
            sums[name] = sums.get(name, 0.0) + value * count
    mismatch = sums.pop("policy/kl_mismatch")
    metrics = {name: value / tokens for name, value in sums.items()}
    metrics["tokens/trained"] = tokens
    if not settings.max_policy_lag:  # else it would measure the lag, not the sampler
        metrics["policy/kl_mismatch"] = mismatch
    return metrics | {f"policy/{name}_weight": value for name, value in weights.items()}


def minibatches(segments: Sequence[Segment], update: int, settings: LoopSettings) -> Iterator[list[Segment]]:
    """Every pass goes over all episodes, in an order of its own; the rows of one stay together."""
    rows: dict[str, list[Segment]] = {}
    for segment in segments:
        rows.setdefault(segment.trajectory_id, []).append(segment)
    order, size = list(rows.values()), -(-len(rows) // settings.minibatches)
    shuffler = random.Random(sampling_seed(settings.seed, f"{settings.stage}/{update}/order"))
    for _ in range(settings.epochs):
        shuffler.shuffle(order)
        for start in range(0, len(order), size):
            yield [row for episode in order[start : start + size] for row in episode]


def advantage_segments(
    groups: Sequence[TrajectoryGroup], credit: Credit, negative_weight: float = 1.0
) -> list[Segment]:
    """Rows of every attempt with an advantage; those without, such as a group without spread, cost nothing.

    A ``negative_weight`` under 1 leans on the better attempts: a small policy that fails in many ways learns
    little from each of them and is unsettled by all.
    """
    segments: list[Segment] = []
    for group, credited in zip(groups, credit(groups), strict=True):
        for trajectory, advantages in zip(group.trajectories, credited, strict=True):
            if advantages is None or trajectory.stop_reason is StopReason.env_error:
                continue
            weighted = [lean(each, negative_weight) for each in advantages]
            if any(weighted):
                segments += make_segments(trajectory, weighted)
    return segments


def _sampled_tokens(groups: Sequence[TrajectoryGroup]) -> int:
    return sum(len(turn.action_ids) for g in groups for t in g.trajectories for turn in t.turns)


def learning_rate_at(update: int, settings: LoopSettings) -> float:
    """Linear from the first update's rate to the last's."""
    share = (update - 1) / max(settings.updates - 1, 1)
    return settings.first_rate + (settings.last_rate - settings.first_rate) * share


def _save(
    folder: Path, update: int, settings: LoopSettings, parts: LoopParts, scores: Sequence[float]
) -> None:
    state = {
        "update": update,
        "version": settings.first_version + update,
        "validation": list(scores),
        "curriculum": parts.curriculum.state(),
        "controls": parts.controls.state(),
        "guards": parts.guards.state(),
    }
    save_checkpoint(folder / f"step-{update}", parts.learner, parts.template, state, parts.critic)
    keep_checkpoints(folder, KEPT_CHECKPOINTS)


def _resume(folder: Path, settings: LoopSettings, parts: LoopParts) -> int:
    """Load the newest checkpoint and drop metrics past it; the update it was taken after, or 0."""
    state = load_newest(folder, parts.learner, parts.critic)
    update = 0
    if state is not None:
        update = int(state["update"])
        try:
            parts.curriculum.load(state["curriculum"])
            parts.controls.load(state["controls"])
            parts.guards.load(state["guards"])
        except KeyError as error:
            raise StoreError(
                f"{folder} was written by another version of palestra ({error} is missing): start a new run"
            ) from error

    def is_before(row: Mapping[str, Any]) -> bool:
        return bool(row.get("stage") != settings.stage or row.get("update", 0) <= update)

    parts.run.keep_metrics(is_before)
    parts.run.keep_notes(is_before)
    keep_checkpoints(folder, KEPT_CHECKPOINTS)  # a killed run may not have come to it
    return update
