"""``plan``: what an update will cost on this machine, before anything is spent.

The one surprising choice: it measures for some seconds instead of asking a table of machines.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from palestra.cli.training import Set

if TYPE_CHECKING:
    from palestra.pipeline.estimating import Estimate


def plan(
    source: Annotated[str, typer.Argument(help="quickstart or a YAML file.")],
    changes: Set = None,
) -> None:
    """Measure for a few seconds what training will cost here: tokens, memory by part, time an update.

    Examples:
        palestra plan quickstart
        palestra plan fridge.yaml --set policy.model=smollm2 --set policy.lora={}
    """
    from rich.console import Console

    from palestra.pipeline import Reporter, parse_config, read_config_text
    from palestra.pipeline.workshop import Workshop
    from palestra.store import RunFolder

    text, folder = read_config_text(source)
    config = parse_config(text, changes or [], folder=folder)
    workshop = Workshop(RunFolder(Path(), {}), config, Reporter())
    workshop.preflight()
    from palestra.pipeline.estimating import estimate, free_memory_mb
    from palestra.pipeline.run import check_settings

    check_settings(config)
    console = Console()
    with console.status("measuring"):
        found = estimate(workshop)
    console.print(_table(found, config.rl.epochs))
    needed, free = max(sum(found.memory_mb.values()), found.peak_mb), free_memory_mb()
    if free is not None and needed > free:
        hint = "Lower rollout.concurrency or policy.micro_batch_tokens, or set policy.lora."
        console.print(f"[red]More than the {free:,.0f} MB that are free.[/] {hint}")
    hours = config.rl.updates * (found.rollout_seconds + config.rl.epochs * found.learning_seconds) / 3600
    typer.echo(
        f"{config.rl.updates} updates: about {hours:.1f} hours, without validation, demonstrations and SFT"
    )


def _table(found: Estimate, passes: int) -> Any:
    from rich.table import Table

    count = found.episodes
    sampled, learned = count * found.sampled_tokens, count * found.row_tokens
    table = Table("", "", show_header=False)
    rows = {
        "parameters": f"{found.parameters:,}, of which {found.trained:,} are trained",
        "an episode": f"{found.turns:.1f} turns, {found.prompt_tokens:,.0f} tokens of prompt, "
        f"{found.sampled_tokens:,.0f} sampled, {found.row_tokens:,.0f} in all",
        "an update": f"{count:,} episodes, {sampled:,.0f} tokens sampled, {learned:,.0f} learned from",
        **{f"memory: {name}": f"{size:,.0f} MB" for name, size in found.memory_mb.items()},
        "memory: measured peak": f"{found.peak_mb:,.0f} MB, with libraries and a micro-batch",
        "rollout": f"{found.rollout_speed:,.0f} tokens/s, {found.rollout_seconds:,.0f} s an update "
        "in one process",
        "learning": f"{found.learning_speed:,.0f} tokens/s, "
        f"{passes * found.learning_seconds:,.0f} s an update",
    }
    for name, text in rows.items():
        table.add_row(name, text)
    return table
