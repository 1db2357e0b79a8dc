"""``serve-model``: a policy behind an OpenAI-compatible address, and learning from the programs that use it.

The one surprising choice: with ``--learn`` there is no world. The program that talks to the server is the
agent and its world in one; it names its episodes in a header and posts their rewards.
"""

from __future__ import annotations

import itertools
import json
import os
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from palestra.cli.interrupts import raise_interrupt
from palestra.cli.training import Set
from palestra.errors import ConfigError

if TYPE_CHECKING:
    from palestra.pipeline import RunConfig
    from palestra.pipeline.model_parts import LoadedPolicy
    from palestra.store import RunFolder


Served = Annotated[str, typer.Argument(help="A run, a folder with weights, nano or smollm2.")]
Host = Annotated[str, typer.Option(help="Address to listen on.")]
Port = Annotated[int, typer.Option(min=0, max=65535, help="0 takes a free one.")]
Learn = Annotated[bool, typer.Option("--learn", help="Learn from the episodes that are rewarded.")]
Out = Annotated[Path | None, typer.Option(help="New run folder.", show_default="first free runs/served-N")]
Resume = Annotated[bool, typer.Option("--resume", help="Go on with a run of --learn.")]
Key = Annotated[str | None, typer.Option(help="Environment variable with a key that requests must carry.")]


def serve_model(
    policy: Served,
    host: Host = "127.0.0.1",
    port: Port = 8000,
    learn: Learn = False,
    out: Out = None,
    changes: Set = None,
    resume: Resume = False,
    key_variable: Key = None,
) -> None:
    """Serve a policy to OpenAI clients, and learn from the programs that use it.

    Requests go to /v1/chat/completions. With --learn, give each episode a header X-Episode-Id and all
    attempts at one task the same X-Group-Id, and post {"reward": 1.0, "success": true} to
    /v1/episodes/ID/reward.

    Examples:
        palestra serve-model runs/quickstart-1
        palestra serve-model nano --learn --set rl.tasks_per_update=8 --set rl.group_size=4
        palestra serve-model runs/served-1 --resume
    """
    is_run = Path(policy, "manifest.json").is_file()
    if resume and not is_run:
        raise ConfigError(f"{policy} is no run to go on with")
    if is_run and (out is not None or changes or learn):
        raise ConfigError(
            f"{policy} is a run, which has its configuration: --resume goes on with a run of --learn. To "
            f"learn from where it ended, start with its weights: {policy}/checkpoints/STAGE/step-N"
        )
    if (out is not None or changes) and not learn:
        raise ConfigError("--out and --set are for --learn")
    from palestra.pipeline import Reporter
    from palestra.serving import bind, serve

    key = None if key_variable is None else os.environ.get(key_variable)
    if key_variable is not None and not key:
        raise ConfigError(f"there is no environment variable {key_variable}, which is to hold the key")
    sock = bind((host, port), key)
    learning = resume or learn
    run, loaded = _learning(policy, out, changes or [], resume) if learning else (None, _loaded(policy))
    raise_interrupt()
    beside = None if run is None else (run, Reporter())
    try:
        serve(loaded, Path(policy).name, sock, typer.echo, beside, key)
    except KeyboardInterrupt:
        if run is None:
            raise typer.Exit(0) from None
        again = f"palestra serve-model {shlex.quote(str(run.path))} --resume"
        typer.echo(f"\nInterrupted. Go on with: {again}", err=True)
        raise typer.Exit(130) from None
    if run is not None:
        from palestra.viewer import write_report

        typer.echo(f"Report: {write_report(run.path)}")


def _learning(
    policy: str, out: Path | None, changes: list[str], resume: bool
) -> tuple[RunFolder, LoadedPolicy]:
    """The run folder, new or old, and the policy that learns in it."""
    from palestra.pipeline.run import create_run, open_run
    from palestra.serving import WORLD, prepare

    if resume:
        run, config = open_run(Path(policy))
        if config.world.name != WORLD:
            raise ConfigError(f"{policy} was trained in a world of its own: palestra train {policy} --resume")
        if run.stage_result("rl") is not None:
            raise ConfigError(f"{policy} is finished: serve it with palestra serve-model {policy}")
    else:
        text, config = _config(policy, changes)
        numbered = (Path("runs", f"served-{n}") for n in itertools.count(1))
        path = out or next(path for path in numbered if not path.exists())
        run = create_run(path, text, config, shlex.join(["palestra", *sys.argv[1:]]))
    typer.echo(f"Run: {run.path}")
    return run, prepare(run, config)


def _config(policy: str, changes: list[str]) -> tuple[str, RunConfig]:
    from palestra.pipeline import parse_config
    from palestra.policy import check_model_name
    from palestra.serving import WORLD

    if any(change.startswith("world.") for change in changes):
        raise ConfigError(
            "there is no world to set here: the program that is served is agent and world in one"
        )
    text = f"world: {{name: {WORLD}}}\npolicy: {{model: {json.dumps(policy)}}}\n"
    config = parse_config(text, changes, folder=Path.cwd())
    check_model_name(config.policy.model)
    return text, config


def _loaded(policy: str) -> LoadedPolicy:
    """The final policy of a run, or that of a folder of weights."""
    from palestra.pipeline import Reporter
    from palestra.pipeline.workshop import Workshop

    if not Path(policy, "manifest.json").is_file():
        _, config = _config(policy, [])
        from palestra.pipeline.model_parts import load_start

        return load_start(config)
    from palestra.pipeline.hosting import sampling_here
    from palestra.pipeline.learning import final_stage
    from palestra.pipeline.model_parts import load_stage
    from palestra.pipeline.run import open_run

    run, stored = open_run(Path(policy))
    config = sampling_here(stored)
    return load_stage(run, final_stage(Workshop(run, config, Reporter())), config)
