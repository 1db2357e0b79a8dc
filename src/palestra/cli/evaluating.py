"""``eval``: a trained policy, or a folder of weights, on held-out tasks.

The result of a run's policy is kept in the run, under a name of its own. The one surprising choice: it never
takes a column of the run's report, because it may have been made on other tasks than the others.
"""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from palestra.errors import ConfigError

if TYPE_CHECKING:
    from palestra.evaluation import EvalReport
    from palestra.pipeline import RunConfig
    from palestra.pipeline.model_parts import LoadedPolicy
    from palestra.pipeline.workshop import Workshop


class HeldOut(StrEnum):
    """Splits that no stage trains on."""

    test = "test"
    validation = "validation"


def evaluate(
    policy: Annotated[str, typer.Argument(help="A run, a folder with model.safetensors, or nano.")],
    world: Annotated[str | None, typer.Option(help="World to play. [default: the run's]")] = None,
    tasks: Annotated[int, typer.Option(min=1, help="Held-out tasks, one attempt each.")] = 200,
    greedy: Annotated[bool, typer.Option("--greedy/--sampled", help="Likeliest action, or sampled.")] = True,
    split: Annotated[HeldOut, typer.Option(help="Which held-out tasks.")] = HeldOut.test,
) -> None:
    """Evaluate a policy on tasks it was not trained on, with a 95 % interval.

    Examples:
        palestra eval runs/quickstart-1
        palestra eval runs/quickstart-1 --world alerts --tasks 100 --sampled
        palestra eval runs/quickstart-1/checkpoints/sft/step-1 --world orders
    """
    from palestra.evaluation import evaluate_trajectories

    workshop, stage, loaded = _prepare(policy, world)
    config = workshop.config
    mode = "greedy" if greedy else "sampled"
    chosen = workshop.held_out_tasks(split.value, tasks)
    player = loaded.policy(stage, 0.0 if greedy else config.rl.temperature)
    groups = workshop.play(player, chosen, 1, stage=f"eval-{stage}-{mode}", seed=3)
    result = evaluate_trajectories([t for group in groups for t in group.trajectories])
    _print(result, f"{policy} · {config.world.name} · {split.value} · {mode}")
    if _is_run(policy):
        name = f"cli-{stage}-{mode}-{split.value}-{workshop.make_world().name}"
        about = {"stage": f"cli-{stage}", "mode": mode, "split": split.value, "world": config.world.name}
        workshop.run.write_eval(name, {**about, **result.to_dict()})
        typer.echo(f"Written: {workshop.run.path / 'eval' / name}.json")


def _prepare(policy: str, world: str | None) -> tuple[Workshop, str, LoadedPolicy]:
    """The run or the weights behind ``policy``, loaded, and what to call them."""
    from palestra.pipeline import Reporter, RunConfig
    from palestra.pipeline.workshop import Workshop
    from palestra.store import RunFolder

    path = Path(policy)
    if _is_run(policy):
        run = RunFolder.open(path)
        config = _in_world(RunConfig.model_validate(run.resolved()), world)
        from palestra.pipeline.learning import final_stage
        from palestra.pipeline.model_parts import load_stage

        workshop = Workshop(run, config, Reporter())
        workshop.preflight()
        stage = final_stage(workshop)
        return workshop, stage, load_stage(run, stage, config)
    if policy != "nano" and not (path / "model.safetensors").is_file():
        raise ConfigError(f"{policy} is neither a run (manifest.json) nor a folder with model.safetensors.")
    if world is None:
        raise ConfigError(
            "Weights alone do not say which world to play: add --world, such as --world orders."
        )
    config = RunConfig.model_validate({"world": {"name": world}, "policy": {"model": policy}})
    workshop = Workshop(RunFolder(path, {}), config, Reporter())  # holds no episodes: nothing to keep apart
    workshop.preflight()
    from palestra.pipeline.model_parts import load_start

    return workshop, path.resolve().name, load_start(config)


def _in_world(config: RunConfig, world: str | None) -> RunConfig:
    """The same configuration in another world, at that world's own difficulty."""
    if world is None:
        return config
    section = config.world.model_copy(update={"name": world, "difficulty": None})
    return config.model_copy(update={"world": section})


def _print(result: EvalReport, title: str) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from palestra.viewer.words import number, percent, percent_with_interval

    rows = {
        "Success (95 %)": percent_with_interval(result.success, result.success_ci95),
        "Episodes": number(result.episodes),
        "Excluded": number(result.excluded),
        "Turns": number(result.turns),
        "Step efficiency": percent(result.step_efficiency),
        "Invalid actions an episode": number(result.invalid_actions),
        "Format compliance": percent(result.format_compliance),
        "Tool-call accuracy": percent(result.tool_call_accuracy),
        "Recovery after trouble": percent(result.recovery),
        "Tokens an episode": number(result.action_tokens),
        "Reward": number(result.reward),
        **{f"Milestone {name}": percent(rate) for name, rate in result.milestone_rates.items()},
        **{f"Ended: {name}": number(count) for name, count in result.stop_reasons.items()},
    }
    table = Table(title=Text(title), show_header=False)
    table.add_column(style="bold")
    table.add_column(justify="right")
    for label, value in rows.items():
        table.add_row(Text(label), value)
    Console().print(table)


def _is_run(policy: str) -> bool:
    return Path(policy, "manifest.json").is_file()
