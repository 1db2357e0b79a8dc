"""Collect: a noisy teacher attempts training tasks and the verifier keeps what is worth imitating.

Keepers succeed without long detours, are deduplicated and are spread over tasks and over solution forms
before any task gets a second one. Failures stay in the run as negatives.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from palestra.errors import GateFailed
from palestra.pipeline.config import RunConfig
from palestra.pipeline.hosting import host, spent
from palestra.pipeline.workshop import Workshop
from palestra.policy import NoisyTeacher, Policy, SamplingParams, ScriptedPolicy
from palestra.types import Task, Trajectory, TrajectoryGroup


def make_teacher(config: RunConfig) -> Policy:
    """The configured teacher: a model on a server, or the noisy oracle."""
    section = config.collect
    if section.teacher is not None:
        params = SamplingParams(config.policy.action_tokens, config.rl.temperature)
        return host("teacher", section.teacher, params)
    return ScriptedPolicy("teacher", NoisyTeacher(section.skip, section.repeat, section.wrong))


def collect(workshop: Workshop) -> dict[str, Any]:
    """The stage: attempts to ``trajectories/collect``, keepers to ``trajectories/demonstrations``."""
    config = workshop.config.collect
    tasks = vary_prompts(workshop, workshop.train_tasks(config.tasks, "collect"), config.vary_prompts)
    groups, kept = demonstrate(workshop, tasks, config.attempts, "collect")
    if not kept:
        raise GateFailed(
            f"The teacher solved none of {len(groups)} tasks well enough to imitate. Lower collect.skip, "
            "collect.wrong or collect.min_efficiency, or look at the world's oracle with `palestra play`."
        )
    workshop.run.write_groups("demonstrations", "kept", kept)
    attempts = [trajectory for group in groups for trajectory in group.trajectories]
    count = sum(len(group.trajectories) for group in kept)
    return {
        "attempts": len(attempts),
        "successes": sum(bool(t.success) for t in attempts),
        "demonstrations": count,
    }


def demonstrate(
    workshop: Workshop, tasks: Sequence[Task], attempts: int, stage: str
) -> tuple[list[TrajectoryGroup], list[TrajectoryGroup]]:
    """Let the teacher attempt ``tasks``: all attempts, stored under ``stage``, and those worth imitating."""
    config = workshop.config.collect
    teacher = make_teacher(workshop.config)
    groups = workshop.play(teacher, tasks, attempts, stage=stage)
    if text := spent(teacher):
        workshop.reporter.line(f"  {text}")
    workshop.run.write_groups(stage, "attempts", groups)
    kept = keep_demonstrations(groups, config.demonstrations, config.min_efficiency)
    shown, tried = (sum(len(group.trajectories) for group in some) for some in (kept, groups))
    workshop.reporter.line(f"  kept {shown} demonstrations of {tried} attempts")
    return groups, kept


def vary_prompts(workshop: Workshop, tasks: Sequence[Task], share: float) -> list[Task]:
    """A share of the tasks with their own wording, tool order and distractors."""
    rng = random.Random(f"prompts:{workshop.config.seed}")
    return [
        replace(task, data={**task.data, "prompt_seed": task.seed}) if rng.random() < share else task
        for task in tasks
    ]


def keep_demonstrations(
    groups: Sequence[TrajectoryGroup], limit: int, min_efficiency: float
) -> list[TrajectoryGroup]:
    """Successful, efficient, different; one per task first, rarer solution forms first."""
    forms: Counter[tuple[str | None, ...]] = Counter()
    ranked: list[tuple[int, int, TrajectoryGroup, Trajectory]] = []
    for group in groups:
        for rank, trajectory in enumerate(_distinct_keepers(group, min_efficiency)):
            forms[solution_form(trajectory)] += 1
            ranked.append((rank, forms[solution_form(trajectory)], group, trajectory))
    ranked.sort(key=lambda item: item[:2])
    chosen: dict[str, list[Trajectory]] = {}
    for _, _, group, trajectory in ranked[:limit]:
        chosen.setdefault(group.id, []).append(trajectory)
    return [replace(g, trajectories=tuple(chosen[g.id])) for g in groups if g.id in chosen]


def solution_form(trajectory: Trajectory) -> tuple[str | None, ...]:
    """The sequence of tools a solution uses."""
    return tuple(turn.facts.tool_name for turn in trajectory.turns)


def _distinct_keepers(group: TrajectoryGroup, min_efficiency: float) -> list[Trajectory]:
    optimal = group.task.optimal_turns
    seen: set[tuple[str, ...]] = set()
    keepers = []
    for trajectory in group.trajectories:
        actions = tuple(turn.action for turn in trajectory.turns)
        efficient = optimal is None or optimal / max(len(actions), 1) >= min_efficiency
        if trajectory.success and efficient and actions not in seen:
            seen.add(actions)
            keepers.append(trajectory)
    return keepers
