"""``compare``: whether one evaluation came out better than another, task by task.

Reads the episodes that evaluations have stored, so nothing is played again. The one surprising choice: a task
that only one of the two played is left out and counted, for a mean over other tasks says nothing.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from palestra.errors import ConfigError

if TYPE_CHECKING:
    from palestra.evaluation import Comparison
    from palestra.store import RunFolder
    from palestra.types import Trajectory

_LAST_FIRST = ("dpo-greedy", "rl-greedy", "sft-greedy")
"""Evaluations that speak for a whole run; one of DPO keeps those of the run that it started from."""


def compare(
    before: Annotated[Path, typer.Argument(help="Run folder.")],
    after: Annotated[
        Path, typer.Argument(help="Run folder; the same one to compare two of its evaluations.")
    ],
    before_eval: Annotated[
        str | None,
        typer.Option("--before", help="Name of its evaluation.", show_default="the final policy's"),
    ] = None,
    after_eval: Annotated[
        str | None, typer.Option("--after", help="Name of its evaluation.", show_default="the final policy's")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")] = False,
) -> None:
    """Compare two evaluations on the tasks that both played: paired difference, interval and p.

    Examples:
        palestra compare runs/quickstart-1 runs/quickstart-2
        palestra compare runs/quickstart-1 runs/quickstart-1 --before sft-greedy --after rl-greedy
        palestra compare runs/quickstart-1 runs/quickstart-2 --json
    """
    from palestra.evaluation import compare as compared

    first, second = _episodes(before, before_eval), _episodes(after, after_eval)
    shared = _tasks(first) & _tasks(second)
    alone = len(_tasks(first) ^ _tasks(second))
    if not shared:
        ids = {each.task.id for each in first} & {each.task.id for each in second}
        why = "; tasks of the same seeds differ, for the world's state has changed in between" if ids else ""
        raise ConfigError(
            f"{before} and {after} played no task in common{why}. Evaluate both alike: palestra eval RUN, "
            "and name what it writes with --before and --after"
        )
    both = [[each for each in played if _task(each) in shared] for played in (first, second)]
    found = compared(both[0], both[1], seed=0)
    if as_json:
        typer.echo(json.dumps(_values(found, alone), indent=2))
    else:
        _print(found, alone, [str(before), str(after)])


def _episodes(path: Path, name: str | None) -> list[Trajectory]:
    """The episodes of one evaluation of a run, the final policy's without a ``name``."""
    from palestra.store import RunFolder

    run = RunFolder.open(path)
    stored = _stored(run)
    chosen = name or next((each for each in _LAST_FIRST if each in stored), None)
    if chosen not in stored:
        known = ", ".join(sorted(stored)) or "none; `palestra eval` makes one"
        raise ConfigError(
            f"{path} has no episodes of the evaluation {chosen or 'of a policy'}. There: {known}"
        )
    stage, file = stored[chosen]
    return [each for group in run.read_groups(stage, file) for each in group.trajectories]


def _stored(run: RunFolder) -> dict[str, tuple[str, str]]:
    """Where the episodes of each evaluation are: its name to stage and file."""
    return {
        f"{stage.removeprefix('eval-')}-{path.stem}": (stage, path.stem)
        for stage in run.trajectory_stages()
        if stage.startswith("eval-")
        for path in run.trajectory_files(stage)
    }


def _task(played: Trajectory) -> tuple[str, str]:
    return played.task.id, played.task.content_hash


def _tasks(played: list[Trajectory]) -> set[tuple[str, str]]:
    return {_task(each) for each in played}


def _values(found: Comparison, alone: int) -> dict[str, Any]:
    success = found.success
    return {
        "tasks": success.tasks,
        "unscored": success.unscored,
        "only_in_one": alone,
        "difference": success.difference,
        "ci95": success.interval,
        "p": success.p,
        "metrics": {row.metric: {"before": row.before, "after": row.after} for row in found.rows},
    }


def _print(found: Comparison, alone: int, names: list[str]) -> None:
    from rich.console import Console
    from rich.table import Table

    from palestra.viewer.words import number

    table = Table("Metric", "Before", "After", "Change", title=" → ".join(names))
    for row in found.rows:
        table.add_row(row.metric, number(row.before), number(row.after), number(row.change))
    Console().print(table)
    success = found.success
    if success.difference is None or success.interval is None or success.p is None:
        typer.echo("No task was scored in both: nothing can be said of success.")
    else:
        low, high = (100 * bound for bound in success.interval)
        verdict = "a difference" if low > 0 or high < 0 else "no difference that these tasks can show"
        typer.echo(
            f"Success {100 * success.difference:+.1f} points ({low:+.1f} to {high:+.1f}) over "
            f"{success.tasks} tasks, p = {success.p:.2g}: {verdict}."
        )
    if alone or success.unscored:
        typer.echo(f"Tasks left out: {alone} played by one only, {success.unscored} not scored in one.")
