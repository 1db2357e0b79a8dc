"""``envs`` and ``init``: which worlds there are, what they are like, and the start of a new one.

The one surprising choice: the list counts tasks that really differ, by content hash, because a world with few
of them is learned by heart.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from palestra.envs import ToolEnv

SEEDS = 500
"""Seeds among which different tasks are counted."""
SAMPLE = 50
"""Tasks whose shortest solutions are averaged."""


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

    from palestra.envs import list_envs, make_env

    console = Console()
    if name is None:
        console.print(_table(list_envs()))
        return
    world: Any = make_env(name)
    console.print(_table({name: ""}))
    _show(console, world)


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
    typer.echo(f"Written: {world}, {config}, {test}\n\nNext:")
    typer.echo(f"  pytest {test}\n  palestra play {world}:{class_name}\n  palestra train {config} --dry-run")
    typer.echo(f"  palestra train {config}")


def _table(summaries: dict[str, str]) -> Any:
    """A row a world; a world that cannot be made says why and hides no other."""
    from rich.table import Table
    from rich.text import Text

    from palestra.envs import ToolEnv, make_env
    from palestra.tasks import SPLIT_RANGES

    sizes = ", ".join(f"{split} {len(seeds):,}" for split, seeds in SPLIT_RANGES.items())
    table = Table(
        caption=f"Seeds of each split: {sizes}. Distinct: different tasks among {SEEDS} training seeds."
    )
    for title in ("World", "Tools", "Difficulties", "Optimal turns", "Distinct", "About"):
        table.add_column(title)
    for name, about in summaries.items():
        try:
            world = make_env(name)
        except Exception as error:  # an installed world may fail in any way
            table.add_row(Text(name), "–", "–", "–", "–", Text(f"cannot be made: {error}"))
            continue
        cells = _measures(world) if isinstance(world, ToolEnv) else ("–", "–", "–", "–")
        table.add_row(Text(name, style="bold"), *cells, Text(about))
    return table


def _measures(world: ToolEnv[Any]) -> tuple[str, str, str, str]:
    """Tools, difficulties, optimal turns, distinct tasks."""
    tasks = [world.make_task(seed) for seed in range(SEEDS)]
    turns = [task.optimal_turns for task in tasks[:SAMPLE] if task.optimal_turns is not None]
    optimal = f"{sum(turns) / len(turns):.1f} ({min(turns)}–{max(turns)})" if turns else "–"
    levels = ", ".join(f"{level}{'*' * (level == world.difficulty)}" for level in world.difficulties)
    distinct = len({task.content_hash for task in tasks})
    return str(len(world.tools)), levels, optimal, f"{distinct} of {SEEDS}"


def _show(console: Any, world: Any) -> None:
    from rich.table import Table
    from rich.text import Text

    from palestra.envs import ToolEnv

    if not isinstance(world, ToolEnv):
        console.print(Text(f"First observation:\n{world.reset(seed=0)[0]}"))
        return
    tools = Table("Tool", "Parameters", "What it does")
    for spec in world.tools.values():
        parameters = [f"{key}: {_kind(schema)}" for key, schema in spec.parameters["properties"].items()]
        tools.add_row(Text(spec.name), Text("\n".join(parameters)), Text(spec.description))
    console.print(tools)
    task = world.make_task(0)
    for title, text in (("System prompt", world.system_prompt), (f"Example task {task.id}", task.prompt)):
        console.print(Text(f"\n{title}", style="bold"))
        console.print(Text(text), soft_wrap=True)
    console.print(Text(f"(shortest solution: {task.optimal_turns or 'unknown'} turns)", style="dim"))


def _kind(schema: Any) -> str:
    return " | ".join(map(str, schema["enum"])) if "enum" in schema else str(schema.get("type", "any"))
