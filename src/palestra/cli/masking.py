"""``masks``: the token rows of an episode as the learner gets them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from palestra.errors import ConfigError

_ONLINE = re.compile(r"(rl|mine\d+)/")
"""Ids of episodes that were learned from as they were played."""

if TYPE_CHECKING:
    from collections.abc import Sequence

    from palestra.pipeline import RunConfig
    from palestra.policy import ChatTemplate
    from palestra.types import Segment, Trajectory, TrajectoryGroup


def masks(
    run: Annotated[Path, typer.Argument(help="Run folder, finished or not.")],
    episode: Annotated[
        str | None, typer.Argument(help="Id of an episode, or how it begins.", show_default="the first of rl")
    ] = None,
    table: Annotated[bool, typer.Option("--table", help="A line a token, with ids.")] = False,
) -> None:
    """Show the tokens of an episode: which are trained on, their log-probabilities and advantages.

    Examples:
        palestra masks runs/quickstart-1
        palestra masks runs/quickstart-1 rl/12/3/0 --table
    """
    from rich.console import Console

    from palestra.pipeline.run import open_run
    from palestra.policy.models import find_model, load_template
    from palestra.viewer import mask_table, mask_text

    folder, config = open_run(run)
    batch, played = _find(folder.path, episode)
    template = load_template(find_model(config.policy.model))
    rows, note = _rows(config, batch, played)
    show = mask_table if table else mask_text
    Console().print(show(rows, lambda token: template.decode([token, template.end_id])))
    if note:
        typer.echo(note)
    breaks, drifted = sum(bool(turn.prompt_ids) for turn in played.turns), _drifted(played, template)
    typer.echo(
        f"{breaks} prefix breaks · {drifted} of {len(played.turns)} actions would be other ids if their text "
        "were encoded again (the sampled ones are trained on)"
    )


def _find(run: Path, wanted: str | None) -> tuple[list[TrajectoryGroup], Trajectory]:
    """The episode with token ids whose id begins as wanted, and all groups of its update."""
    from palestra.store import RunFolder

    folder = RunFolder.open(run)
    start = wanted or ""
    stage = folder.stage_of(wanted or "rl")
    if stage is None:
        known = ", ".join(folder.trajectory_stages()) or "none"
        raise ConfigError(
            f"{run} has no episodes of stage {(wanted or 'rl').split('/')[0]!r}; it has {known}."
        )
    groups = list(folder.read_groups(stage))
    found = [t for group in groups for t in group.trajectories if t.id == start] or [
        t
        for group in groups
        for t in group.trajectories
        if t.id.startswith(start) and t.prompt_ids and t.turns
    ]
    if not found or not found[0].prompt_ids:
        raise ConfigError(
            f"{run} has no episode {start or stage!r} with token ids. Those of a script have none; ids look "
            f"like {groups[0].trajectories[0].id if groups else 'rl/12/3/0'}."
        )
    update = found[0].id.rsplit("/", 2)[0]
    return [group for group in groups if group.id.rsplit("/", 1)[0] == update], found[0]


def _rows(
    config: RunConfig, batch: Sequence[TrajectoryGroup], played: Trajectory
) -> tuple[list[Segment], str]:
    """The episode's rows with the advantages it has in its batch, and what to say where it has none."""
    from palestra.pipeline.learning_parts import configured_algorithm
    from palestra.training import advantage_segments, make_segments

    algorithm, without = configured_algorithm(config), make_segments(played, [0.0] * len(played.turns))
    if not _ONLINE.match(played.id):
        return without, "Advantages are not shown: they belong to online learning."
    if config.loss.kl_in == "reward" and config.loss.kl_weight:
        return without, "Advantages are not shown: the distance to the reference was a cost in them."
    if algorithm.critic is not None:
        return without, "Advantages are not shown: a critic gave them, and it has learned since."
    credit = algorithm.make_credit(config.credit.batch_share)
    rows = advantage_segments(batch, credit, config.credit.negative_weight)
    mine = [row for row in rows if row.trajectory_id == played.id]
    if not mine:
        return without, "It is not trained on: nothing in its group can be compared."
    return mine, ""


def _drifted(played: Trajectory, template: ChatTemplate) -> int:
    """Actions whose ids are not those that their text would be encoded as."""
    from palestra.types import Message

    history, drifted = list(played.prompt), 0
    for turn in played.turns:
        ended = bool(turn.action_ids) and turn.action_ids[-1] in template.end_ids
        ids = turn.action_ids[:-1] if ended else turn.action_ids
        drifted += tuple(template.encode_action(history, turn.action)) != ids
        history += [Message("assistant", turn.action), Message("tool", turn.observation)]
    return drifted
