"""``train``, ``collect`` and ``sft``: the pipeline, or its first stages, in a run folder.

All three take the same options and end in a folder that any of them can go on with. The one surprising
choice: world, oracle and rubric are checked before the folder is made, so a mistake leaves nothing behind.
"""

from __future__ import annotations

import itertools
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from palestra.errors import ConfigError

if TYPE_CHECKING:
    from palestra.pipeline import Reporter, RunConfig
    from palestra.store import RunFolder

Source = Annotated[str, typer.Argument(help="quickstart, a YAML file, or a run folder to go on with.")]
Out = Annotated[Path | None, typer.Option(help="New run folder. [default: runs/NAME-1, -2, ...]")]
Overrides = Annotated[
    list[str] | None, typer.Option("--set", metavar="SECTION.KEY=VALUE", help="Change one key; repeatable.")
]
Seed = Annotated[int | None, typer.Option(help="Everything random follows from it.")]
Resume = Annotated[bool, typer.Option("--resume", help="Go on with a run, as it was configured.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Check, print configuration and plan, and stop.")]


@dataclass(frozen=True)
class _Request:
    """What was asked for on the command line."""

    verb: str
    source: str
    out: Path | None
    overrides: Sequence[str]
    resume: bool
    dry_run: bool


def train(
    source: Source,
    out: Out = None,
    override: Overrides = None,
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
    run = _execute(_request("train", source, out, override, seed, resume, dry_run), None)
    if run is None:
        return
    from rich.console import Console

    from palestra.viewer import summary_table, write_report

    page = write_report(run.path)
    Console().print(summary_table(run.path))
    typer.echo(f"Report: {page}")


def collect(
    source: Source,
    out: Out = None,
    override: Overrides = None,
    seed: Seed = None,
    resume: Resume = False,
    dry_run: DryRun = False,
) -> None:
    """Collect demonstrations only: a noisy teacher plays, the verifier keeps what is worth imitating.

    Examples:
        palestra collect quickstart
        palestra collect fridge.yaml --set collect.tasks=500 --out runs/data
    """
    run = _execute(_request("collect", source, out, override, seed, resume, dry_run), ["collect"])
    if run is not None:
        typer.echo(f"Next: palestra sft {run.path}")


def sft(
    source: Source,
    out: Out = None,
    override: Overrides = None,
    seed: Seed = None,
    resume: Resume = False,
    dry_run: DryRun = False,
) -> None:
    """Imitate demonstrations only, after collecting them where a run has none yet.

    Examples:
        palestra sft runs/quickstart-1
        palestra sft quickstart --set sft.epochs=5
    """
    resume = resume or _is_run(source)
    run = _execute(_request("sft", source, out, override, seed, resume, dry_run), ["collect", "sft"])
    if run is not None:
        typer.echo(f"Next: palestra train {run.path} --resume")


def _request(
    verb: str,
    source: str,
    out: Path | None,
    overrides: list[str] | None,
    seed: int | None,
    resume: bool,
    dry_run: bool,
) -> _Request:
    """The arguments with ``seed`` as one more override, if they go together.

    Raises:
        ConfigError: a run is named without ``--resume``, or asked to change while it resumes.
    """
    changes = [*(overrides or []), *([] if seed is None else [f"seed={seed}"])]
    if _is_run(source) and not resume:
        raise ConfigError(
            f"{source} is a run: add --resume to go on with it (palestra {verb} {source} --resume)"
        )
    if resume and (changes or out is not None):
        raise ConfigError(
            "--resume goes on with the configuration stored in the run, so it takes no --set, --seed or --out. "
            "Start a new run to change something."
        )
    return _Request(verb, source, out, changes, resume, dry_run)


def _execute(request: _Request, stages: list[str] | None) -> RunFolder | None:
    """Do what was asked; None after a dry run."""
    from palestra.pipeline import Reporter

    run, config, text = _configured(request)
    reporter = Reporter()
    _check(run, config, reporter)
    if request.dry_run:
        from palestra.cli.planning import config_text, plan_text

        typer.echo(f"{config_text(config)}\n{plan_text(config, stages)}")
        return None
    from palestra.pipeline.run import STAGES, create_run, run_pipeline

    if not request.resume:
        run = create_run(run.path, text, config, shlex.join(["palestra", *sys.argv[1:]]))
    typer.echo(f"Run: {run.path}")
    try:
        run_pipeline(run, config, reporter, stages or tuple(STAGES))
    except KeyboardInterrupt:
        command = f"palestra {request.verb} {shlex.quote(str(run.path))} --resume"
        typer.echo(f"\nInterrupted. Go on with: {command}", err=True)
        raise typer.Exit(130) from None
    return run


def _configured(request: _Request) -> tuple[RunFolder, RunConfig, str]:
    """The run, not yet on disk if it is new, with its configuration and the text that was written."""
    from palestra.pipeline import RunConfig, parse_config, read_config_text
    from palestra.store import RunFolder

    if request.resume:
        run = RunFolder.open(request.source)
        return run, RunConfig.model_validate(run.resolved()), run.config_text()
    text, folder = read_config_text(request.source)
    config = parse_config(text, request.overrides, folder=folder)
    return RunFolder(request.out or _free_folder(Path(request.source).stem), {}), config, text


def _check(run: RunFolder, config: RunConfig, reporter: Reporter) -> None:
    from palestra.pipeline.workshop import Workshop

    Workshop(run, config, reporter).preflight()


def _free_folder(name: str) -> Path:
    return next(path for n in itertools.count(1) if not (path := Path("runs", f"{name}-{n}")).exists())


def _is_run(source: str) -> bool:
    return Path(source, "manifest.json").is_file()
