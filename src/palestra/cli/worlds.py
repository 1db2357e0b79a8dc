"""``envs``, ``play`` and ``init``: which worlds there are, what they are like, and the start of a new one.

The one surprising choice: the list counts tasks that really differ, by content hash, because a world with few
of them is learned by heart.
"""

from __future__ import annotations

import asyncio
import json
from contextlib import closing
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from palestra.cli.interrupts import raise_interrupt
from palestra.errors import ConfigError

SEEDS = 500
"""Seeds among which different tasks are counted."""
SAMPLE = 50
"""Tasks whose shortest solutions are averaged."""
MAX_TURNS = 30
PATIENCE = 86_400.0
"""Seconds that an episode may take a person."""

World = Annotated[str, typer.Argument(help="A world's name, file.py:Class or module:Class.")]


class Player(StrEnum):
    """Who plays."""

    human = "human"
    oracle = "oracle"
    teacher = "teacher"
    random = "random"


def envs(
    name: Annotated[str | None, typer.Argument(help="A world's name, file.py:Class or module:Class.")] = None,
) -> None:
    """List the worlds, or show one: tools, system prompt and an example task.

    Examples:
        palestra envs
        palestra envs orders
        palestra envs fridge.py:Fridge
    """
    from rich.console import Console

    from palestra.envs import ToolEnv, list_envs, make_env

    console = Console()
    if name is None:
        console.print(_table(list_envs()))
        return
    world = make_env(name)
    console.print(_table({name: (type(world).__doc__ or "").partition("\n")[0]}))
    if isinstance(world, ToolEnv):
        _show(console, world)


def play(
    world: World,
    script: Annotated[Player, typer.Option(help="Who plays.")] = Player.human,
    seed: Annotated[int, typer.Option(min=0, help="Of the first task.")] = 0,
    difficulty: Annotated[
        int | None, typer.Option(help="Level of the tasks.", show_default="the world's")
    ] = None,
    episodes: Annotated[int, typer.Option(min=1, help="One a seed, counting up.")] = 1,
    out: Annotated[Path | None, typer.Option(help="Append the trajectories to this JSON lines file.")] = None,
) -> None:
    """Play a world yourself, or watch a script play it.

    Examples:
        palestra play orders
        palestra play orders --script oracle --seed 7
        palestra play fridge.py:Fridge --script teacher --episodes 20 --out teacher.jsonl
    """
    from rich.console import Console

    from palestra.store import trajectory_to_dict
    from palestra.viewer import trajectory_text

    raise_interrupt()
    console, solved, played = Console(), 0, 0
    for number in range(seed, seed + episodes):
        try:
            trajectory = _attempt(world, difficulty, number, script, console)
        except KeyboardInterrupt:
            console.print("\nStopped; the unfinished episode is not kept.")
            break
        console.print(_result(trajectory) if script is Player.human else trajectory_text(trajectory))
        played, solved = played + 1, solved + bool(trajectory.success)
        if out is not None:
            out.parent.mkdir(parents=True, exist_ok=True)
            with out.open("a", encoding="utf-8") as file:
                file.write(json.dumps(trajectory_to_dict(trajectory), ensure_ascii=False) + "\n")
    typer.echo(f"Solved {solved} of {played}." + (f" Saved to {out}." if out and played else ""))


def init(
    name: Annotated[str, typer.Argument(help="Of the world, in snake case, such as fridge.")],
    folder: Annotated[Path, typer.Option(help="Where the files go.")] = Path("."),
) -> None:
    """Start a new world: a working one of under 100 lines, its configuration and its test.

    Examples:
        palestra init fridge
        palestra init fridge --folder worlds
    """
    from palestra.envs.template import write_template

    world, config, test = write_template(name, folder)
    class_name = "".join(part.capitalize() for part in name.split("_"))
    typer.echo(f"Written: {world}, {config}, {test}\n\nNext:\n  pytest {test}")
    typer.echo(f"  palestra play {world}:{class_name}")
    typer.echo(f"  palestra train {config} --dry-run\n  palestra train {config}")


def _table(summaries: dict[str, str]) -> Any:
    """A row a world, its summary under its name; one that cannot be made says why and hides no other."""
    from rich.table import Table
    from rich.text import Text

    from palestra.envs import ToolEnv, make_env
    from palestra.tasks import SPLIT_RANGES

    sizes = ", ".join(f"{split} {len(seeds):,}" for split, seeds in SPLIT_RANGES.items())
    table = Table(caption=f"Distinct: different tasks among {SEEDS} seeds. Seeds: {sizes}. *: default.")
    for title in ("World", "Tools", "Levels", "Optimal turns", "Distinct"):
        table.add_column(title)
    for name, about in summaries.items():
        try:
            world = make_env(name)
        except Exception as error:  # an installed world may fail in any way
            table.add_row(Text(f"{name}\ncannot be made: {error}"), "–", "–", "–", "–")
            continue
        cells = _measures(world) if isinstance(world, ToolEnv) else ("–", "–", "–", "–")
        table.add_row(Text.assemble((name, "bold"), f"\n{about}"), *cells)
    return table


def _measures(world: Any) -> tuple[str, str, str, str]:
    """Tools, levels, optimal turns, distinct tasks."""
    tasks = [world.make_task(seed) for seed in range(SEEDS)]
    turns = [task.optimal_turns for task in tasks[:SAMPLE] if task.optimal_turns is not None]
    optimal = f"{sum(turns) / len(turns):.1f} ({min(turns)}–{max(turns)})" if turns else "–"
    levels = ", ".join(f"{level}{'*' * (level == world.difficulty)}" for level in world.difficulties)
    distinct = len({task.content_hash for task in tasks})
    return str(len(world.tools)), levels, optimal, f"{distinct} of {SEEDS}"


def _show(console: Any, world: Any) -> None:
    from rich.table import Table
    from rich.text import Text

    tools = Table("Tool", "Parameters", "What it does")
    for spec in world.tools.values():
        kinds = {
            key: " | ".join(map(str, schema.get("enum", [schema.get("type", "any")])))
            for key, schema in spec.parameters["properties"].items()
        }
        parameters = "\n".join(f"{key}: {kind}" for key, kind in kinds.items())
        tools.add_row(spec.name, Text(parameters), Text(spec.description))
    console.print(tools)
    task = world.make_task(0)
    for title, text in (("System prompt", world.system_prompt), (f"Example task {task.id}", task.prompt)):
        console.print(Text(f"\n{title}", style="bold"))
        console.print(Text(text), soft_wrap=True)


def _attempt(name: str, difficulty: int | None, seed: int, player: Player, console: Any) -> Any:
    """One scored episode; asks the console where a person plays."""
    from palestra.cli.human import HumanPolicy, Narrator
    from palestra.envs import ToolEnv, make_env
    from palestra.policy import NoisyTeacher, Script, ScriptedPolicy, oracle_script, random_script
    from palestra.rewards import Rubric
    from palestra.rollout import EpisodeKey, Limits, run_episode

    world = make_env(name, **({} if difficulty is None else {"difficulty": difficulty}))
    if not isinstance(world, ToolEnv):
        raise ConfigError(f"{name} is no ToolEnv, so it has no tasks to play.")
    task, key = _task(world, seed), EpisodeKey(f"play/{player.value}/{seed}", seed)
    limits = Limits(max_turns=MAX_TURNS, max_seconds=PATIENCE)
    if player is Player.human:
        episode = run_episode(Narrator(console, world), task, HumanPolicy(console, world), limits, key)
    else:
        scripts: dict[str, Script] = {
            "oracle": oracle_script,
            "teacher": NoisyTeacher(),
            "random": random_script,
        }
        episode = run_episode(world, task, ScriptedPolicy(player.value, scripts[player.value]), limits, key)
    with closing(asyncio.new_event_loop()) as loop:  # asyncio.run would swallow the first Ctrl-C at a prompt
        return Rubric().score(loop.run_until_complete(episode))


def _task(world: Any, seed: int) -> Any:
    """The task of a seed, labelled with the split that owns the seed."""
    from palestra.tasks import SPLIT_RANGES

    for split, seeds in SPLIT_RANGES.items():
        if seed in seeds:
            return world.make_task(seed, split)
    raise ConfigError(f"Seed {seed} belongs to no split: {', '.join(map(str, SPLIT_RANGES.values()))}.")


def _result(trajectory: Any) -> Any:
    from rich.text import Text

    from palestra.viewer.words import number

    verdict, style = ("Solved", "bold green") if trajectory.success else ("Not solved", "bold red")
    parts = " · ".join(f"{name} {number(value)}" for name, value in trajectory.reward_parts.items())
    shortest, ended = trajectory.task.optimal_turns or "unknown", trajectory.stop_reason.value
    counted = f" in {len(trajectory.turns)} turns (shortest: {shortest}, ended: {ended})"
    return Text.assemble((verdict, style), counted, f"\nreward {number(trajectory.reward)}: {parts}")
