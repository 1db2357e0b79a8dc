"""The run in a few numbers: one JSON object for scripts, one table for the terminal.

Reads the evaluations and the stage results of a run folder. The one surprising choice: a stage that was not
evaluated has no key at all, while a metric that was not measured is there as null.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from palestra.store import RunFolder
from palestra.viewer.stages import STAGE_TITLES, main_world, stage_costs, stage_evals
from palestra.viewer.words import UNKNOWN, duration, number, percent, percent_with_interval

SUMMARY_STAGES = ("teacher", "sft", "rl", "dpo", "oracle")
"""The stages of a summary, in order."""
SUMMARY_METRICS = (
    "success",
    "success_ci95",
    "turns",
    "invalid_actions",
    "format_compliance",
    "step_efficiency",
    "episodes",
)
"""What a summary holds of each stage."""


def run_summary(run_path: str | Path) -> dict[str, Any]:
    """The run as one JSON object: a key for each evaluated stage, then ``seconds, peak_memory_mb, world``.

    Raises:
        StoreError: if there is no run at ``run_path``.
    """
    run = RunFolder.open(run_path)
    evals = run.read_evals()
    chosen = stage_evals(evals.values())
    seconds, memory = stage_costs(run)
    stages = {
        stage: {metric: chosen[stage].get(metric) for metric in SUMMARY_METRICS}
        for stage in SUMMARY_STAGES
        if stage in chosen
    }
    world = main_world(evals.values()) or _collected_world(run)
    return {**stages, "seconds": seconds, "peak_memory_mb": memory, "world": world}


def summary_table(run_path: str | Path) -> Table:
    """The same for the terminal: one row a stage.

    Raises:
        StoreError: if there is no run at ``run_path``.
    """
    summary = run_summary(run_path)
    table = Table(title=Text(f"World: {summary['world'] or UNKNOWN}"), caption=_caption(summary))
    table.add_column("Stage", style="bold")
    for title in ("Success (95 %)", "Turns", "Invalid", "Format", "Efficiency", "Episodes"):
        table.add_column(title, justify="right", no_wrap=True)
    for stage in SUMMARY_STAGES:
        if stage not in summary:
            continue
        values = summary[stage]
        table.add_row(
            STAGE_TITLES[stage],
            percent_with_interval(values["success"], values["success_ci95"]),
            number(values["turns"]),
            number(values["invalid_actions"]),
            percent(values["format_compliance"]),
            percent(values["step_efficiency"]),
            number(values["episodes"]),
        )
    return table


def _caption(summary: dict[str, Any]) -> str:
    memory = summary["peak_memory_mb"]
    parts = [f"{duration(summary['seconds'])} in all stages"] if summary["seconds"] is not None else []
    if not any(stage in summary for stage in SUMMARY_STAGES):
        parts.insert(0, "nothing evaluated yet")
    return " · ".join(parts + ([f"{number(memory)} MB at most"] if memory is not None else []))


def _collected_world(run: RunFolder) -> str | None:
    for stage in run.trajectory_stages():
        for group in run.read_groups(stage):
            return group.task.env
    return None
