"""``report``, ``doctor``, ``replay`` and ``parse``: what a run came to, what went wrong, and what was played.

None needs torch. The one surprising choice: ``report --json`` prints the object and nothing else, and
writes no page unless asked, so that scripts can poll a run.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from palestra.errors import ConfigError


def report(
    run: Annotated[Path, typer.Argument(help="Run folder, finished or not.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")] = False,
    html: Annotated[
        bool | None, typer.Option("--html/--no-html", help="Write report.html.", show_default="unless --json")
    ] = None,
) -> None:
    """Show what a run came to, as a table, a page or JSON.

    Examples:
        palestra report runs/quickstart-1
        palestra report runs/quickstart-1 --json
    """
    from rich.console import Console

    from palestra.viewer import run_summary, summary_table, write_report

    if as_json:
        typer.echo(json.dumps(run_summary(run), indent=2, ensure_ascii=False))
    else:
        Console().print(summary_table(run))
    if html or (html is None and not as_json):
        typer.echo(f"Report: {write_report(run)}", err=as_json)


def doctor(
    run: Annotated[Path, typer.Argument(help="Run folder, finished or not.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print the alarms as JSON.")] = False,
) -> None:
    """Say what went wrong in a run's training, with evidence, likely cause and remedy.

    Examples:
        palestra doctor runs/quickstart-1
        palestra doctor runs/quickstart-1 --json
    """
    from dataclasses import asdict

    from palestra.monitor import DETECTORS, first_alarms, run_windows
    from palestra.store import RunFolder

    folder = RunFolder.open(run)
    weights = folder.resolved().get("rubric", {}).get("weights", {})
    alarms = first_alarms(run_windows(folder, weights))
    if as_json:
        typer.echo(json.dumps([asdict(alarm) for alarm in alarms], indent=2, ensure_ascii=False))
        return
    for alarm in alarms:
        typer.echo(f"{alarm.stage} update {alarm.update}: {alarm.symptom} ({alarm.detector})")
        typer.echo(f"  evidence  {alarm.evidence}\n  cause     {alarm.cause}\n  remedy    {alarm.remedy}")
        if alarm.replay:
            typer.echo(f"  replay    {', '.join(alarm.replay)}")
    for change in folder.read_changes()[0]:
        typer.echo(
            f"{change['stage']} update {change['update']}: changed {change['setting']} "
            f"{change['before']:g} -> {change['after']:g}\n  reason    {change['reason']}"
        )
    updates = sum("success/mean" in row for row in folder.read_metrics()[0])
    found = f"{len(alarms)} found" if alarms else "Nothing found"
    typer.echo(f"{found} by {len(DETECTORS)} detectors over {updates} updates.")


def replay(
    run: Annotated[Path, typer.Argument(help="Run folder, finished or not.")],
    episodes: Annotated[list[str], typer.Argument(help="Ids of episodes, or how they begin.")],
) -> None:
    """Show episodes turn by turn: what was said, what came back, and what it earned.

    Examples:
        palestra replay runs/quickstart-1 rl/12/3/0
        palestra replay runs/quickstart-1 rl/12/3/0, eval-rl-greedy/5
    """
    from rich.console import Console

    from palestra.store import RunFolder
    from palestra.viewer import trajectory_text

    folder, console = RunFolder.open(run), Console()
    for wanted in (each.strip(",") for each in episodes):
        stage = folder.stage_of(wanted)
        if stage is None:
            known = ", ".join(folder.trajectory_stages()) or "none"
            raise ConfigError(f"{run} has no stage {wanted.split('/', 1)[0]!r}; it has {known}.")
        played = [each for group in folder.read_groups(stage) for each in group.trajectories]
        inside = [each for each in played if f"{each.id}/".startswith(f"{wanted}/")]
        found = inside or [each for each in played if each.id.startswith(wanted)]
        if not found:
            example = played[0].id if played else "rl/12/3/0"
            raise ConfigError(f"{run} has no episode {wanted!r}; ids look like {example}.")
        console.print(trajectory_text(found[0]))


def parse(
    cases: Annotated[Path, typer.Argument(help="One case a line: id, format, text, tools, expected.")],
) -> None:
    """Check the action parser against a file of cases; exits 1 if any fails.

    Examples:
        palestra parse cases.jsonl
    """
    from palestra.actions import check_cases

    outcome = check_cases(cases)
    for failure in outcome.failures:
        typer.echo(f"{failure.id} ({failure.level})\n  got      {failure.got}\n  expected {failure.expected}")
    typer.echo(f"{outcome.passed} of {outcome.total} cases pass")
    raise typer.Exit(0 if outcome.ok else 1)
