"""Online reinforcement learning on one page: tasks -> trajectories -> advantages -> update -> new policy.

Strictly on-policy: the policy is frozen while a batch is collected. Everything an update needs follows
from the seed, its number and the checkpoint before it, so a killed run goes on bit for bit.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from palestra.errors import GateFailed
from palestra.policy.local import LocalEngine
from palestra.rollout import Rollout, collect_groups
from palestra.store import RunFolder
from palestra.training.advantages import has_spread
from palestra.training.algorithms import Algorithm
from palestra.training.checkpoint import keep_newest, load_newest, save_checkpoint
from palestra.training.learner import Learner
from palestra.training.losses import LossFunction
from palestra.training.metrics import summarize_groups
from palestra.training.segments import make_segment
from palestra.types import Segment, StopReason, Task, TrajectoryGroup

KEPT_CHECKPOINTS = 3
"""Of a stage: the one to go on from, and two in case it turns out torn."""


@dataclass(frozen=True)
class LoopSettings:
    """The numbers of a training stage."""

    stage: str
    """Name in ids, metrics and folders, such as ``rl``."""
    updates: int
    group_size: int
    first_rate: float
    last_rate: float
    """Learning rate, linear from first to last."""
    checkpoint_every: int
    seed: int


@dataclass(frozen=True)
class LoopParts:
    """What the loop drives; built once by the pipeline."""

    run: RunFolder
    learner: Learner
    engine: LocalEngine
    template: Any
    reference: Any
    """Frozen model that the KL is measured to."""
    algorithm: Algorithm
    loss: LossFunction
    make_rollout: Callable[[int], Rollout]
    """Policy version to rollout."""
    pick_tasks: Callable[[int], list[Task]]
    """Update number to its tasks."""
    observe: Callable[[Sequence[TrajectoryGroup]], None]
    """Tells the curriculum how the groups went."""
    curriculum_state: Callable[[], dict[str, Any]]
    load_curriculum: Callable[[dict[str, Any]], None]
    validate: Callable[[int], dict[str, float]]
    """Update number to validation metrics."""
    report: Callable[[int, int, dict[str, float]], None]
    """Update number, number of updates, metrics."""


def train_online(settings: LoopSettings, parts: LoopParts) -> None:
    """Run the stage from its newest checkpoint, or from its start, to its last update."""
    folder = parts.run.path / "checkpoints" / settings.stage
    start = _resume(folder, settings, parts)
    for update in range(start + 1, settings.updates + 1):
        began = time.perf_counter()
        before = parts.engine.sampled_tokens
        parts.engine.weights_changed(update - 1)
        groups = collect_groups(
            parts.make_rollout(update - 1),
            parts.pick_tasks(update),
            settings.group_size,
            stage=f"{settings.stage}/{update}",
            seed=sampling_seed(settings.seed, f"{settings.stage}/{update}"),
        )
        sampled = time.perf_counter()
        parts.run.write_groups(settings.stage, f"update-{update}", groups)
        parts.observe(groups)
        metrics = summarize_groups(groups)
        segments = advantage_segments(groups, parts.algorithm)
        if segments:
            rate = learning_rate_at(update, settings)
            try:
                metrics |= parts.learner.update(segments, parts.loss, rate, parts.reference)
            except FloatingPointError as error:
                raise GateFailed(
                    f"{settings.stage} update {update}: {error}. Start a new run with a lower "
                    "rl.learning_rate; resuming this one would come to the same point."
                ) from error
        updated = time.perf_counter()
        metrics |= {
            "time/rollout": sampled - began,
            "time/update": updated - sampled,
            "tokens_per_second/rollout": (parts.engine.sampled_tokens - before) / (sampled - began),
            "tokens_per_second/update": sum(len(s.ids) for s in segments) / (updated - sampled),
        }
        due = update % settings.checkpoint_every == 0 or update == settings.updates
        if due:
            parts.engine.weights_changed(update)
            metrics |= parts.validate(update)
        parts.run.append_metrics({"stage": settings.stage, "update": update, **metrics})
        if due:  # after the row: a resumed run drops rows past its checkpoint, never misses one before it
            _save(folder, update, parts)
        parts.report(update, settings.updates, metrics)


def advantage_segments(groups: Sequence[TrajectoryGroup], algorithm: Algorithm) -> list[Segment]:
    """Rows of every group with spread; groups without teach nothing and cost nothing."""
    segments: list[Segment] = []
    for group in groups:
        advantages = algorithm.advantages([trajectory.reward for trajectory in group.trajectories])
        if not has_spread(advantages):
            continue
        for trajectory, advantage in zip(group.trajectories, advantages, strict=True):
            if advantage is not None and trajectory.stop_reason is not StopReason.env_error:
                segments.append(make_segment(trajectory, advantage))
    return segments


def sampling_seed(seed: int, stage: str) -> int:
    """The seed of a collection: differs between runs, stages and updates."""
    return random.Random(f"{seed}:{stage}").getrandbits(40)


def learning_rate_at(update: int, settings: LoopSettings) -> float:
    """Linear from the first update's rate to the last's."""
    share = (update - 1) / max(settings.updates - 1, 1)
    return settings.first_rate + (settings.last_rate - settings.first_rate) * share


def _save(folder: Path, update: int, parts: LoopParts) -> None:
    state = {"update": update, "curriculum": parts.curriculum_state()}
    save_checkpoint(folder / f"step-{update}", parts.learner, parts.template, state)
    keep_newest(folder, KEPT_CHECKPOINTS)


def _resume(folder: Path, settings: LoopSettings, parts: LoopParts) -> int:
    """Load the newest checkpoint and drop metrics past it; the update it was taken after, or 0."""
    state = load_newest(folder, parts.learner)
    update = 0
    if state is not None:
        update = int(state["update"])
        parts.load_curriculum(state["curriculum"])
    parts.run.keep_metrics(lambda row: row.get("stage") != settings.stage or row.get("update", 0) <= update)
    return update
