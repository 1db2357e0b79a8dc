"""``dpo`` and ``reward-model``: what a finished run's attempts say of each other, learned two ways.

Neither plays anything to learn from: pairs come from the attempts at training tasks that the run has stored.
The one surprising choice: pairs are looked for before a folder is made, so a run without any leaves nothing.
"""

from __future__ import annotations

import itertools
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from palestra.cli.interrupts import raise_interrupt
from palestra.errors import ConfigError

if TYPE_CHECKING:
    from palestra.pipeline.preferring import DpoOptions
    from palestra.store import RunFolder

Run = Annotated[Path, typer.Argument(help="Run folder of palestra train.")]
Margin = Annotated[
    float, typer.Option(min=0, help="Least difference in reward that counts where success does not decide.")
]
PairsPerUpdate = Annotated[int, typer.Option(min=1, help="Pairs per optimiser step.")]


def dpo(
    context: typer.Context,
    run: Run,
    out: Annotated[
        Path | None, typer.Option(help="New run folder.", show_default="first free RUN-dpo-N")
    ] = None,
    beta: Annotated[float, typer.Option(min=1e-3, help="Larger stays nearer to the run's policy.")] = 0.1,
    epochs: Annotated[int, typer.Option(min=1, help="Passes over the pairs; the best one is kept.")] = 2,
    margin: Margin = 0.5,
    pairs_per_update: PairsPerUpdate = 16,
    learning_rate: Annotated[
        float, typer.Option(min=1e-9, help="Peak; 5e-7 with adamw suits a large model.")
    ] = 1e-3,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with RUN, which an earlier dpo made.")
    ] = False,
) -> None:
    """Train a run's policy on preferences among its stored attempts, in a new run folder.

    Examples:
        palestra dpo runs/quickstart-1
        palestra dpo runs/quickstart-1 --out runs/preferred --beta 0.05
        palestra dpo runs/preferred --resume
    """
    from rich.console import Console

    from palestra.pipeline import Reporter
    from palestra.pipeline.preferring import DpoOptions
    from palestra.pipeline.run import open_run, run_pipeline
    from palestra.viewer import summary_table, write_report

    options = DpoOptions(margin, beta, epochs, pairs_per_update, learning_rate)
    new = _resumed(run, context) if resume else _started(run, out, options)
    raise_interrupt()
    try:
        typer.echo(f"Run: {new.path}")
        run_pipeline(*open_run(new.path), Reporter(), ["dpo"])
    except KeyboardInterrupt:
        again = f"palestra dpo {shlex.quote(str(new.path))} --resume"
        typer.echo(f"\nInterrupted. Go on with: {again}", err=True)
        raise typer.Exit(130) from None
    page = write_report(new.path)
    Console().print(summary_table(new.path))
    typer.echo(f"Report: {page}")


def reward_model(
    run: Run,
    out: Annotated[Path | None, typer.Option(help="New folder.", show_default="RUN-reward-model")] = None,
    held_out: Annotated[
        float, typer.Option(min=0.01, max=0.9, help="Share of tasks that it is tested on.")
    ] = 0.2,
    epochs: Annotated[int, typer.Option(min=1, help="Passes over the pairs.")] = 2,
    margin: Margin = 0.1,
    pairs_per_update: PairsPerUpdate = 16,
    learning_rate: Annotated[
        float, typer.Option(min=1e-9, help="Peak, of AdamW; 1e-5 suits a large model.")
    ] = 1e-3,
) -> None:
    """Train a reward model on preferences among a run's stored attempts, for use as a part of a rubric.

    Examples:
        palestra reward-model runs/quickstart-1 --out judge
        palestra train quickstart --set rubric.reward_model=judge
    """
    from palestra.pipeline import Reporter
    from palestra.pipeline.judging import RewardModelOptions, train_reward_model
    from palestra.pipeline.run import open_run
    from palestra.pipeline.workshop import Workshop

    folder = out or run.resolve().with_name(f"{run.resolve().name}-reward-model")
    options = RewardModelOptions(margin, held_out, epochs, pairs_per_update, learning_rate)
    about = train_reward_model(Workshop(*open_run(run), Reporter()), folder, options)
    typer.echo(
        f"On {about['held_out_pairs']} pairs of held-out tasks it prefers the better attempt in "
        f"{about['held_out_accuracy']:.0%}; chance is 50%."
    )
    typer.echo(
        f"Use it: palestra train CONFIG --set rubric.reward_model={shlex.quote(str(folder.resolve()))}"
    )


def _started(source: Path, out: Path | None, options: DpoOptions) -> RunFolder:
    from palestra.pipeline import Reporter
    from palestra.pipeline.preferring import start_dpo
    from palestra.pipeline.run import open_run
    from palestra.pipeline.workshop import Workshop

    base = source.resolve()
    numbered = (base.with_name(f"{base.name}-dpo-{n}") for n in itertools.count(1))
    path = out or next(path for path in numbered if not path.exists())
    command = shlex.join(["palestra", *sys.argv[1:]])
    return start_dpo(Workshop(*open_run(source), Reporter()), path, options, command)


def _resumed(source: Path, context: typer.Context) -> RunFolder:
    """A run on disk, which goes on as it was asked for at first."""
    from palestra.pipeline.preferring import is_dpo_run
    from palestra.store import RunFolder

    run = RunFolder.open(source)
    if not is_dpo_run(source):
        raise ConfigError(f"{source} was not made by palestra dpo: leave --resume out to start from it.")
    kept = ("out", "beta", "epochs", "margin", "pairs_per_update", "learning_rate")
    given = [name for name in kept if _is_given(context, name)]
    if given:
        raise ConfigError(
            f"A run goes on with the options stored in it, so --{given[0].replace('_', '-')} is refused with "
            "--resume. Start a new run to change something."
        )
    return run


def _is_given(context: typer.Context, name: str) -> bool:
    """Whether an option was written on the command line."""
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"
