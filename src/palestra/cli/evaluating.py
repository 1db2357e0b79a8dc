"""``eval``: a trained policy, or a folder of weights, on held-out tasks.

The result of a run's policy is kept in the run, under a name of its own. The one surprising choice: it never
takes a column of the run's report, because it may have been made on other tasks than the others.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from palestra.cli.trials import by_tier, plainly, under_faults
from palestra.errors import ConfigError

if TYPE_CHECKING:
    from palestra.pipeline import RunConfig
    from palestra.pipeline.workshop import Workshop
    from palestra.policy import Policy

    MakePolicy = Callable[[str, float], Policy]
    """Name and temperature to a policy."""

_HOSTED_ACTION_TOKENS = 512
"""Most tokens of a hosted model's action: it may think aloud."""


class HeldOut(StrEnum):
    """Splits that no stage trains on."""

    test = "test"
    validation = "validation"


def evaluate(
    policy: Annotated[
        str, typer.Argument(help="A run, a folder with weights, nano, or a server's http://…/v1.")
    ],
    world: Annotated[str | None, typer.Option(help="World to play.", show_default="the run's")] = None,
    tasks: Annotated[int, typer.Option(min=1, help="Held-out tasks, one attempt each.")] = 200,
    greedy: Annotated[bool, typer.Option("--greedy/--sampled", help="Likeliest action, or sampled.")] = True,
    split: Annotated[HeldOut, typer.Option(help="Which held-out tasks.")] = HeldOut.test,
    faults: Annotated[bool, typer.Option("--faults", help="Also under each kind of fault.")] = False,
    tiers: Annotated[bool, typer.Option("--tiers", help="Also on seen tasks and a changed surface.")] = False,
    model: Annotated[str | None, typer.Option(help="Of a server: the model to ask.")] = None,
    key_variable: Annotated[
        str | None, typer.Option(help="Of a server: environment variable with the key.")
    ] = None,
) -> None:
    """Evaluate a policy on tasks it was not trained on, with a 95 % interval.

    Examples:
        palestra eval runs/quickstart-1
        palestra eval runs/quickstart-1 --world alerts --tasks 100 --sampled
        palestra eval runs/quickstart-1/checkpoints/sft/step-1 --world orders
        palestra eval http://localhost:8000/v1 --world orders --tasks 50
        palestra eval runs/quickstart-1 --faults --tiers
    """
    from palestra.evaluation import evaluate_groups

    if policy.startswith(("http://", "https://")):
        workshop, stage, make = _from_server(policy, world, model, key_variable)
    elif model is not None or key_variable is not None:
        raise ConfigError(f"--model and --key-variable are for a server; {policy} is none")
    else:
        workshop, stage, make = from_run_or_weights(policy, world)
    if faults or tiers:
        workshop = plainly(workshop)
    mode, temperature = ("greedy", 0.0) if greedy else ("sampled", workshop.config.rl.temperature)
    chosen = workshop.held_out_tasks(split.value, tasks)
    player = make(stage, temperature)
    played = f"{mode}-{split.value}-{workshop.make_world().name}"
    groups = workshop.play(player, chosen, 1, stage=f"eval-cli-{stage}-{played}", seed=3)
    result = evaluate_groups(groups).to_dict()
    about = {"stage": f"cli-{stage}", "mode": mode, "split": split.value, "world": workshop.config.world.name}
    _print(result, f"{policy} · {about['world']} · {split.value} · {mode}")
    if faults:
        result["faults"] = under_faults(workshop, player, chosen, groups)
    if tiers:
        result["tiers"] = by_tier(workshop, player, chosen, groups)
    from palestra.pipeline.hosting import spent

    if text := spent(player):
        typer.echo(text)
    if _is_run(policy):
        name = f"cli-{stage}-{played}"
        workshop.run.write_groups(f"eval-cli-{stage}", played, groups)
        workshop.run.write_eval(name, {**about, **result})
        typer.echo(f"Written: {workshop.run.path / 'eval' / name}.json")


def from_run_or_weights(policy: str, world: str | None) -> tuple[Workshop, str, MakePolicy]:
    """A run's final policy, or that of a folder or name, and the world it plays.

    Raises:
        ConfigError: there is no such policy, or no world is named.
    """
    return _from_run(policy, world) if _is_run(policy) else _from_weights(policy, world)


def _is_run(policy: str) -> bool:
    return Path(policy, "manifest.json").is_file()


def _from_run(path: str, world: str | None) -> tuple[Workshop, str, MakePolicy]:
    """The run's final policy, and the stage that left it; another world is played at its own difficulty."""
    from palestra.pipeline.hosting import sampling_here
    from palestra.pipeline.run import open_run

    run, stored = open_run(Path(path))
    config = sampling_here(stored)
    if world is not None:
        section = config.world.model_copy(update={"name": world, "difficulty": None, "hold_out": ()})
        config = config.model_copy(update={"world": section})
    workshop = _workshop(run, config)
    from palestra.pipeline.learning import final_stage
    from palestra.pipeline.model_parts import load_stage

    stage = final_stage(workshop)
    return workshop, stage, load_stage(run, stage, config).policy


def _from_weights(path: str, world: str | None) -> tuple[Workshop, str, MakePolicy]:
    """The weights in a folder, called after it."""
    from palestra.pipeline import RunConfig
    from palestra.policy import check_model_name
    from palestra.store import RunFolder

    check_model_name(path)
    config = RunConfig.model_validate({"world": {"name": _named(world)}, "policy": {"model": path}})
    workshop = _workshop(
        RunFolder(Path(path), {}), config
    )  # no run: no episodes to keep test tasks apart from
    from palestra.pipeline.model_parts import load_start

    return workshop, Path(path).name, load_start(config).policy


def _from_server(
    url: str, world: str | None, model: str | None, key_variable: str | None
) -> tuple[Workshop, str, MakePolicy]:
    """The chat model of a server, called after it; nothing here needs torch."""
    from palestra.pipeline import Reporter, RunConfig
    from palestra.pipeline.config import ServerConfig
    from palestra.pipeline.hosting import host
    from palestra.pipeline.workshop import Workshop
    from palestra.policy import SamplingParams
    from palestra.store import RunFolder

    config = RunConfig.model_validate({"world": {"name": _named(world)}})
    section = ServerConfig(url=url, model=model, key_variable=key_variable)
    hosted = host("hosted", section, SamplingParams(_HOSTED_ACTION_TOKENS))
    workshop = Workshop(RunFolder(Path(), {}), config, Reporter())
    workshop.preflight()

    def make(name: str, temperature: float) -> Policy:
        return replace(hosted, name=name, params=SamplingParams(_HOSTED_ACTION_TOKENS, temperature))

    return workshop, hosted.server.model.replace("/", "-"), make


def _named(world: str | None) -> str:
    if world is None:
        raise ConfigError(
            "A model alone does not say which world to play: add --world, such as --world orders."
        )
    return world


def _workshop(run: Any, config: RunConfig) -> Workshop:
    """Shared parts, checked before torch and weights are loaded."""
    from palestra.pipeline import Reporter
    from palestra.pipeline.workshop import Workshop

    Workshop(run, config, Reporter()).preflight()
    from palestra.pipeline.model_parts import load_judge
    from palestra.pipeline.players import Players

    judge = load_judge(config.rubric.reward_model, config.policy.model)
    return Workshop(run, config, Reporter(), Players(config.policy.threads), judge)


def _print(result: dict[str, Any], title: str) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from palestra.viewer.words import number, percent_with_interval

    table = Table("Metric", "Value", title=Text(title))
    for name, value in result.items():
        if name == "success":
            table.add_row(name, percent_with_interval(value, result["success_ci95"]))
        elif isinstance(value, dict):
            for key, inner in value.items():
                table.add_row(Text(f"{name}: {key}"), number(inner))
        elif name != "success_ci95":
            table.add_row(name, number(value))
    Console().print(table)
