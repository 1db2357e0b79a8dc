"""``audit``: attack a world's reward before anything is trained in it.

Exit codes are those a pipeline wants: 0 nothing found, 1 findings, 2 it could not be audited. The one
surprising choice: the attempt behind each finding is printed, since a number convinces nobody.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from palestra.errors import ConfigError, WorldError

if TYPE_CHECKING:
    from palestra.audit import Attempt, Audit

_STEPS = 8
"""Steps of an attempt that are printed; the files hold all."""

World = Annotated[str, typer.Argument(help="A world's name, file.py:Class or module:Class.")]
Rubric = Annotated[
    str | None,
    typer.Option(
        help="YAML file, or weights such as outcome=1,process=0.5.", show_default="the default rubric"
    ),
]
Level = Annotated[int | None, typer.Option(help="Level of the tasks.", show_default="the world's")]
Tasks = Annotated[int, typer.Option(min=5, help="Tasks that each probe plays.")]
Turns = Annotated[
    int | None, typer.Option(min=1, help="Most actions.", show_default="what the longest solution needs")
]
Episodes = Annotated[int, typer.Option(min=0, help="Most episodes of the search for exploits.")]
Html = Annotated[Path | None, typer.Option(help="Write a page.")]
Json = Annotated[Path | None, typer.Option(help="Write all attempts.")]


def audit(
    world: World,
    rubric: Rubric = None,
    difficulty: Level = None,
    tasks: Tasks = 20,
    max_turns: Turns = None,
    episodes: Episodes = 400,
    html: Html = None,
    json: Json = None,
) -> None:
    """Look for holes in a world and its reward: what pays without success, what a guess earns, what leaks.

    Exits with 0 if nothing is found, 1 with findings, 2 if the world cannot be audited.

    Examples:
        palestra audit orders
        palestra audit fridge.py:Fridge --html audit.html --json audit.json
        palestra audit palestra.audit.examples:PaidRepetition
    """
    from rich.console import Console

    from palestra.audit import AuditSettings, audit, write_json, write_page
    from palestra.cli.rescoring import read_rubric
    from palestra.envs import make_env

    console = Console()
    options: dict[str, Any] = {} if difficulty is None else {"difficulty": difficulty}
    make = partial(make_env, world, **options)
    with console.status("") as status:
        try:
            done = audit(
                make,
                world,
                rubric=read_rubric(rubric) if rubric else None,
                settings=AuditSettings(tasks, max_turns, episodes),
                elsewhere=(world, options),
                tell=lambda check: status.update(f"{world}: {check}"),
            )
        except WorldError as error:
            raise ConfigError(str(error)) from error
    _print(console, done)
    for path, write in ((html, write_page), (json, write_json)):
        if path is not None:
            write(done, path)
            typer.echo(f"Written: {path}")
    raise typer.Exit(1 if done.findings else 0)


def _print(console: Any, audit: Audit) -> None:
    from rich.table import Table
    from rich.text import Text

    from palestra.audit import headline

    ceiling = "unknown" if audit.oracle_reward is None else f"{audit.oracle_reward:.2f}"
    console.print(Text(f"{audit.world}: {headline(audit)}", style="bold"))
    console.print(
        f"{len(audit.checks)} checks in {audit.seconds:.1f} s; the oracle earns {ceiling}", highlight=False
    )
    if not audit.findings:
        return
    table = Table("", "Check", "What was found", "What to do", show_lines=True)
    for number, finding in enumerate(audit.findings, start=1):
        style = "red" if finding.severity == "error" else "yellow"
        table.add_row(
            Text(f"{number} {finding.severity}", style=style),
            Text(finding.check),
            Text(finding.symptom),
            Text(finding.remedy),
        )
    console.print(table)
    for number, finding in enumerate(audit.findings, start=1):
        if finding.evidence is not None:
            console.print(_attempt(number, finding.evidence))


def _attempt(number: int, attempt: Attempt) -> Any:
    from rich.text import Text

    outcome = "success" if attempt.success else "no success"
    text = Text(f"\n{number}. {attempt.task}: reward {attempt.total:.2f}, {outcome}\n", style="bold")
    for step in attempt.steps[:_STEPS]:
        text.append(f"   > {step.action or '(nothing)'}\n", style="cyan")
        text.append(f"     {step.observation}\n", style="default not bold")
    if len(attempt.steps) > _STEPS:
        text.append(f"   … and {len(attempt.steps) - _STEPS} steps more\n", style="dim not bold")
    return text
