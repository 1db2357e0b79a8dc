"""What ``eval`` adds to a plain evaluation: the same tasks under faults, and tiers of generalisation.

The one surprising choice: both start from the world without faults and with its own surface, whatever the run
was trained in, so that two runs are measured alike.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from palestra.evaluation import FaultResult
    from palestra.pipeline.workshop import Workshop
    from palestra.policy import Policy
    from palestra.types import Task, Trajectory, TrajectoryGroup

_FAULT_RATE = 0.5
"""Of each call, until one is disturbed: nearly every episode has one, early or late."""


def plainly(workshop: Workshop) -> Workshop:
    """The workshop whose world has no faults and its own surface."""
    return _in_world(workshop, faults=None, changed_surface=False)


def under_faults(
    workshop: Workshop, player: Policy, tasks: list[Task], clean: list[TrajectoryGroup]
) -> list[dict[str, Any]]:
    """The same tasks with one fault of a kind in each episode, kind by kind, shown and as plain values."""
    from palestra.envs import possible_faults
    from palestra.evaluation import fault_results
    from palestra.pipeline.config import FaultsConfig

    faulty: dict[str, list[Trajectory]] = {}
    for kind in possible_faults(workshop.make_world().upsets):
        disturbed = _in_world(workshop, faults=FaultsConfig(kinds=(kind,), rate=_FAULT_RATE))
        faulty[kind] = _attempts(disturbed.play(player, tasks, 1, stage=f"eval-{kind}", seed=3))
    results = fault_results(_attempts(clean), faulty)
    _print_faults(results)
    return [result.to_dict() for result in results]


def by_tier(
    workshop: Workshop, player: Policy, tasks: list[Task], clean: list[TrajectoryGroup]
) -> list[dict[str, Any]]:
    """Success on seen tasks (tier 0), new ones (1), these on a changed surface (2), kinds held out (3)."""
    from dataclasses import asdict

    from palestra.evaluation import evaluate_groups, paired_difference, task_success

    seen = _seen_tasks(workshop, len(tasks))
    changed = _in_world(workshop, changed_surface=True)
    played = {
        "0 seen tasks": workshop.play(player, seen, 1, stage="eval-seen", seed=3) if seen else [],
        "1 new tasks": clean,
        "2 changed surface": changed.play(player, tasks, 1, stage="eval-surface", seed=3),
    }
    if workshop.held_out_kinds is not None:
        other = workshop.held_out_kinds.take("test", len(tasks))
        played["3 kinds held out"] = workshop.play(player, other, 1, stage="eval-kinds", seed=3)
    found: list[dict[str, Any]] = []
    for tier, groups in played.items():
        if groups:
            report = evaluate_groups(groups)
            entry = {
                "tier": tier,
                "tasks": report.tasks,
                "success": report.success,
                "ci95": report.success_ci95,
            }
            found.append({**entry, "format_compliance": report.format_compliance})
    before, after = (task_success(_attempts(played[tier])) for tier in ("1 new tasks", "2 changed surface"))
    surface = next(each for each in found if each["tier"] == "2 changed surface")
    surface["against_new_tasks"] = asdict(paired_difference(before, after, seed=0))
    _print_tiers(found)
    return found


def _in_world(workshop: Workshop, **changes: Any) -> Workshop:
    world = workshop.config.world.model_copy(update=changes)
    return replace(workshop, config=workshop.config.model_copy(update={"world": world}))


def _seen_tasks(workshop: Workshop, count: int) -> list[Task]:
    """Tasks that the run learned online from; none if it did not."""
    found: dict[str, Task] = {}
    for stage in workshop.run.trajectory_stages():
        if stage == "rl" or (stage.startswith("mine") and stage[4:].isdigit()):
            for group in workshop.run.read_groups(stage):
                found.setdefault(group.task.id, group.task)
                if len(found) == count:
                    return list(found.values())
    return list(found.values())


def _attempts(groups: list[TrajectoryGroup]) -> list[Trajectory]:
    return [trajectory for group in groups for trajectory in group.trajectories]


def _print_tiers(found: list[dict[str, Any]]) -> None:
    from rich.console import Console
    from rich.table import Table

    from palestra.viewer.words import percent, percent_with_interval

    table = Table("Tier", "Tasks", "Success", "Format")
    for each in found:
        shown = percent_with_interval(each["success"], each["ci95"])
        table.add_row(each["tier"], str(each["tasks"]), shown, percent(each["format_compliance"]))
    Console().print(table)


def _print_faults(results: list[FaultResult]) -> None:
    from rich.console import Console
    from rich.table import Table

    from palestra.viewer.words import number, percent_with_interval

    table = Table("Fault", "Seen in", "Success there", "Without it", "More turns")
    for result in results:
        change = result.against_clean
        before = None
        if change is not None and change.difference is not None and result.recovery is not None:
            before = result.recovery - change.difference
        interval = list(result.recovery_ci95) if result.recovery_ci95 else None
        table.add_row(
            result.kind,
            f"{result.landed} of {result.episodes}",
            percent_with_interval(result.recovery, interval),
            "–" if before is None else f"{before:.0%}",
            number(result.turns_to_recover),
        )
    Console().print(table)
