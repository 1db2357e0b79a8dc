"""Imitation: the cold start, and the teacher's answers to hard tasks in later rounds.

The surprising choice: a demonstration that would not fit the policy's limits stops the run, because
imitating an episode that can never be played out teaches a policy to be cut.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from palestra.errors import ConfigError, StoreError
from palestra.pipeline.config import PolicyConfig
from palestra.pipeline.model_parts import LoadedPolicy, check_tools, context_window, load_start
from palestra.pipeline.progress import time_left
from palestra.pipeline.workshop import Workshop
from palestra.training import (
    Learner,
    SftSettings,
    imitate,
    imitation_weights,
    make_segments,
    save_checkpoint,
    supervised_share,
    tokenize_trajectory,
)
from palestra.types import Segment, Trajectory, TrajectoryGroup


def cold_start(workshop: Workshop) -> dict[str, Any]:
    """SFT on the kept demonstrations; the policy goes to ``checkpoints/sft``."""
    section = workshop.config.sft
    loaded = load_start(workshop.config)
    groups = list(workshop.run.read_groups("demonstrations"))
    if not groups:
        raise StoreError(
            f"No demonstration in {workshop.run.path}/trajectories/demonstrations can be read. Delete "
            "stages/collect.json there and resume, and they are collected again."
        )
    # Demonstrations may have been collected anew since an earlier attempt; its rows would describe others.
    workshop.run.keep_metrics(lambda row: row["stage"] != "sft")
    segments, learner = imitate_groups(
        workshop, loaded, groups, "sft", epochs=section.epochs, rate=section.learning_rate
    )
    save_checkpoint(
        workshop.run.path / "checkpoints" / "sft" / "step-1", learner, loaded.template, {"version": 0}
    )
    return {
        "demonstrations": sum(len(group.trajectories) for group in groups),
        "supervised_share": supervised_share(segments),
        **_said_of_tools(workshop),
    }


def _said_of_tools(workshop: Workshop) -> dict[str, Any]:
    """How the policy is told of its tools, printed once and for the run's record; nothing where as text."""
    form = check_tools(workshop.config)
    if form is None:
        return {}
    workshop.reporter.line(
        f"  the model's chat template declares the tools; calls are in {form.action_format}, observations "
        f"have the role {form.observed_as}"
    )
    return {"tools": "schemas", "action_format": form.action_format, "observed_as": form.observed_as}


def imitate_groups(
    workshop: Workshop,
    loaded: LoadedPolicy,
    groups: Sequence[TrajectoryGroup],
    stage: str,
    *,
    epochs: int,
    rate: float,
) -> tuple[list[Segment], Learner]:
    """Train the loaded policy on every trajectory of ``groups``; metrics go to the run under ``stage``."""
    section, window = workshop.config.sft, context_window(workshop.config.policy)
    tokenized = [
        trajectory if trajectory.prompt_ids else tokenize_trajectory(trajectory, loaded.template, window)
        for group in groups
        for trajectory in group.trajectories
    ]
    segments = [
        row for trajectory in tokenized for row in make_segments(trajectory, imitation_weights(trajectory))
    ]
    _refuse_too_long(workshop.config.policy, tokenized, segments)
    workshop.reporter.line(
        f"  {len(tokenized)} demonstrations, {supervised_share(segments):.0%} of their tokens are trained on"
    )
    # A round's imitation that is played again comes to the same rows, and later ones may already follow them.
    workshop.run.keep_metrics(lambda row: True)
    known = {row["update"] for row in workshop.run.read_metrics()[0] if row["stage"] == stage}
    learner = loaded.learner()
    settings = SftSettings(epochs, section.rows_per_update, rate, workshop.config.seed)
    started, tokens = time.perf_counter(), 0.0

    def report(update: int, total: int, metrics: dict[str, float]) -> None:
        nonlocal tokens
        tokens += metrics["tokens/trained"]
        if update not in known:
            workshop.run.append_metrics({"stage": stage, "update": update, **metrics})
        if update % max(total // 6, 1) == 0 or update == total:
            speed = tokens / (time.perf_counter() - started)
            workshop.reporter.line(
                f"  {stage} update {update}/{total} loss {metrics['loss/sft']:.3f} · "
                f"{speed:,.0f} action tokens/s · {time_left(update, total, started)} left"
            )

    imitate(learner, segments, settings, report)
    return segments, learner


def _refuse_too_long(limits: PolicyConfig, tokenized: Sequence[Trajectory], rows: Sequence[Segment]) -> None:
    action = max(len(turn.action_ids) for trajectory in tokenized for turn in trajectory.turns)
    row = max(len(segment.ids) for segment in rows)
    if action > limits.action_tokens or row > limits.context_tokens:
        raise ConfigError(
            f"Demonstrations hold an action of {action} tokens and an episode of {row}; the policy may use "
            f"{limits.action_tokens} and {limits.context_tokens}. Raise policy.action_tokens or "
            "policy.context_tokens, or every episode is cut."
        )
