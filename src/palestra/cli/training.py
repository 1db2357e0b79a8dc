"""``train``, ``collect`` and ``sft``: the pipeline, or its first stages, in a run folder.

All three take the same options and leave a folder that any of them can go on with. The one surprising
choice: world, oracle and rubric are checked before the folder is made, so a mistake leaves nothing behind.
"""

from __future__ import annotations

import itertools
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from palestra.cli.interrupts import raise_interrupt
from palestra.errors import ConfigError

if TYPE_CHECKING:
    from palestra.pipeline import RunConfig
    from palestra.store import RunFolder

Source = Annotated[str, typer.Argument(help="quickstart, a YAML file, or a run folder to go on with.")]
Out = Annotated[Path | None, typer.Option(help="New run folder.", show_default="first free runs/NAME-N")]
Set = Annotated[
    list[str] | None, typer.Option("--set", metavar="SECTION.KEY=VALUE", help="Change one key; repeatable.")
]
Seed = Annotated[int | None, typer.Option(help="Everything random follows from it.")]
Resume = Annotated[bool, typer.Option("--resume", help="Go on with a run, as it was configured.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Check, print configuration and plan, and stop.")]


@dataclass(frozen=True)
class _Options:
    """The options that the three verbs share."""

    out: Path | None
    changes: list[str] | None
    seed: int | None
    resume: bool
    dry_run: bool


def train(
    source: Source,
    out: Out = None,
    changes: Set = None,
    seed: Seed = None,
    resume: Resume = False,
    dry_run: DryRun = False,
) -> None:
    """Train a policy: demonstrations, imitation, reinforcement learning, evaluation, report.

    Examples:
        palestra train quickstart
        palestra train fridge.yaml --set rl.updates=80 --seed 1
        palestra train runs/fridge-1 --resume
        palestra train quickstart --dry-run > mine.yaml
    """
    run = _execute("train", source, _Options(out, changes, seed, resume, dry_run), None)
    if run is not None:
        from rich.console import Console

        from palestra.viewer import summary_table, write_report

        page = write_report(run.path)
        Console().print(summary_table(run.path))
        typer.echo(f"Report: {page}")


def collect(
    source: Source,
    out: Out = None,
    changes: Set = None,
    seed: Seed = None,
    resume: Resume = False,
    dry_run: DryRun = False,
) -> None:
    """Collect demonstrations only: a noisy teacher plays, the verifier keeps what is worth imitating.

    Examples:
        palestra collect quickstart
        palestra collect fridge.yaml --set collect.tasks=500 --out runs/data
    """
    run = _execute("collect", source, _Options(out, changes, seed, resume, dry_run), ["collect"])
    if run is not None:
        typer.echo(f"Next: palestra sft {run.path}")


def sft(
    source: Source,
    out: Out = None,
    changes: Set = None,
    seed: Seed = None,
    resume: Resume = False,
    dry_run: DryRun = False,
) -> None:
    """Imitate demonstrations only, after collecting them where a run has none yet.

    Examples:
        palestra sft runs/quickstart-1
        palestra sft quickstart --set sft.epochs=5
    """
    options = _Options(out, changes, seed, resume or _is_run(source), dry_run)
    run = _execute("sft", source, options, ["collect", "sft"])
    if run is not None:
        typer.echo(f"Next: palestra train {run.path} --resume")


def _execute(verb: str, source: str, options: _Options, stages: list[str] | None) -> RunFolder | None:
    """Check what was asked, then do it; None after a dry run."""
    from palestra.pipeline import Reporter
    from palestra.pipeline.workshop import Workshop

    again = f"palestra {verb} {shlex.quote(source)} --resume"
    if _is_run(source) and not options.resume:
        raise ConfigError(f"{source} is a run: add --resume to go on with it ({again}).")
    run, config, text = _stored(source, options) if options.resume else _new(source, options)
    Workshop(run, config, Reporter()).preflight()
    if options.dry_run:
        from palestra.cli.planning import config_text, plan_text

        _check_learner(config)
        typer.echo(f"{config_text(config)}\n{plan_text(config, stages)}")
        return None
    from palestra.pipeline.run import STAGES, create_run, run_pipeline

    if not options.resume:
        run = create_run(run.path, text, config, shlex.join(["palestra", *sys.argv[1:]]))
    raise_interrupt()
    try:
        typer.echo(f"Run: {run.path}")
        run_pipeline(run, config, Reporter(), stages or tuple(STAGES))
    except KeyboardInterrupt:
        again = f"palestra {verb} {shlex.quote(str(run.path))} --resume"
        typer.echo(f"\nInterrupted. Go on with: {again}", err=True)
        raise typer.Exit(130) from None
    return run


def _check_learner(config: RunConfig) -> None:
    """Refuse settings of the learner that do not fit, where the libraries that know are installed."""
    try:
        from palestra.pipeline.run import check_settings
    except ImportError as error:
        typer.echo(f"Settings of rl, credit, loss and critic were not checked: {error}", err=True)
        return
    check_settings(config)


def _stored(source: str, options: _Options) -> tuple[RunFolder, RunConfig, str]:
    """A run on disk, its configuration and the text of that."""
    from palestra.pipeline.preferring import is_dpo_run
    from palestra.pipeline.run import open_run

    if options.changes or options.seed is not None or options.out is not None:
        raise ConfigError(
            "A run goes on with the configuration stored in it, so --set, --seed and --out are refused. "
            "Start a new run to change something."
        )
    run, config = open_run(Path(source))
    if is_dpo_run(run.path):
        raise ConfigError(
            f"{source} was made by palestra dpo: go on with palestra dpo {shlex.quote(source)} --resume."
        )
    return run, config, run.config_text()


def _new(source: str, options: _Options) -> tuple[RunFolder, RunConfig, str]:
    """A run that is not on disk yet, its configuration and the text of that."""
    from palestra.pipeline import parse_config, read_config_text
    from palestra.store import RunFolder

    text, folder = read_config_text(source)
    changes = [*(options.changes or []), *([] if options.seed is None else [f"seed={options.seed}"])]
    config = parse_config(text, changes, folder=folder)
    numbered = (Path("runs", f"{Path(source).stem}-{n}") for n in itertools.count(1))
    path = options.out or next(path for path in numbered if not path.exists())
    return RunFolder(path, {}), config, text


def _is_run(source: str) -> bool:
    return Path(source, "manifest.json").is_file()
