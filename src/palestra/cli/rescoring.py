"""``rescore``: what another rubric would have paid for the episodes a run already has.

A rubric reads only the record, so a reward can be tried out without a rollout. The one surprising choice:
what counts is not the mean, which any weight moves, but the order: group by group whether another attempt
would be the best one, which is what group advantages learn from.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from palestra.errors import ConfigError

if TYPE_CHECKING:
    from palestra.rewards import Rubric
    from palestra.store import RunFolder
    from palestra.types import Trajectory, TrajectoryGroup

SUFFIX = "-rescored"
"""Of the stage that ``--write`` makes."""


@dataclass(frozen=True)
class _Pair:
    """A group as it was scored and as it is scored now."""

    before: TrajectoryGroup
    after: TrajectoryGroup


def rescore(
    run: Annotated[Path, typer.Argument(help="Run folder.")],
    rubric: Annotated[str, typer.Option(help="YAML file, or weights such as outcome=1,process=0.5.")],
    stage: Annotated[str | None, typer.Option(help="Only this stage's trajectories.")] = None,
    write: Annotated[bool, typer.Option("--write", help="Keep them as trajectories/STAGE-rescored.")] = False,
) -> None:
    """Score stored trajectories with another rubric, without new rollouts.

    Examples:
        palestra rescore runs/quickstart-1 --rubric outcome=1,process=0.5
        palestra rescore runs/quickstart-1 --rubric rubric.yaml --stage rl --write
    """
    from palestra.store import RunFolder

    folder = RunFolder.open(run)
    scorer = read_rubric(rubric, folder.resolved()["policy"]["model"])
    known = [name for name in folder.trajectory_stages() if not name.endswith(SUFFIX)]
    if stage is not None and stage not in folder.trajectory_stages():
        raise ConfigError(
            f"{run} has no trajectories of stage {stage!r}; it has {', '.join(known) or 'none'}."
        )
    for name in [stage] if stage else known:
        pairs = list(_rescored(folder, name, scorer, write))
        if pairs:
            _print(name, pairs)
    if write:
        typer.echo(f"Written: {folder.path / 'trajectories'}/*{SUFFIX}")


def read_rubric(text: str, policy: str = "nano") -> Rubric:
    """The rubric of ``name=weight,...`` or of a YAML file of weights, a rubric section or a configuration.

    A relative path of a reward model starts from the file's folder, as in a configuration.
    ``policy`` is the model whose episodes a reward model would read.

    Raises:
        ConfigError: no such file, no number, an unknown part, or scales too far apart.
    """
    import yaml
    from pydantic import ValidationError

    from palestra.pipeline.config import RubricConfig
    from palestra.pipeline.workshop import make_rubric

    if "=" in text and not Path(text).exists():
        values: Any = {"weights": dict(part.strip().partition("=")[::2] for part in text.split(","))}
    elif Path(text).is_file():
        loaded = yaml.safe_load(Path(text).read_text(encoding="utf-8"))
        values = loaded.get("rubric", loaded) if isinstance(loaded, dict) else {}
        values = values if {"weights", "reward_model"} & values.keys() else {"weights": values}
        if isinstance(values.get("reward_model"), str):
            values["reward_model"] = str((Path(text).parent / values["reward_model"]).resolve())
    else:
        raise ConfigError(f"{text} is neither a YAML file nor weights such as outcome=1,process=0.5.")
    try:
        section = RubricConfig.model_validate(values)
    except ValidationError as error:
        found = error.errors()[0]
        raise ConfigError(f"rubric: {'.'.join(map(str, found['loc']))}: {found['msg']}") from error
    if section.reward_model is None:
        return make_rubric(section, None)
    from palestra.pipeline.model_parts import load_judge

    return make_rubric(section, load_judge(section.reward_model, policy))


def best_changes(pairs: Sequence[tuple[Sequence[float], Sequence[float]]]) -> float | None:
    """Share of groups in which no attempt is best both before and after; None without a group of two."""
    compared = [_best(before).isdisjoint(_best(after)) for before, after in pairs if len(before) > 1]
    return sum(compared) / len(compared) if compared else None


def rank_correlation(before: Sequence[float], after: Sequence[float]) -> float | None:
    """Spearman's, ties sharing their mean rank; None where either side is constant."""
    import numpy as np

    ranks: list[Any] = []
    for values in (before, after):
        _, place, count = np.unique(np.round(values, 9), return_inverse=True, return_counts=True)
        ranks.append((np.cumsum(count) - (count - 1) / 2)[place])
    if any(len(set(each)) < 2 for each in ranks):
        return None
    return float(np.corrcoef(ranks)[0, 1])


def _rescored(folder: RunFolder, stage: str, rubric: Rubric, write: bool) -> Iterator[_Pair]:
    for path in folder.trajectory_files(stage):
        before = list(folder.read_groups(stage, path.stem))
        after = [replace(g, trajectories=tuple(map(rubric.score, g.trajectories))) for g in before]
        if write and after:
            folder.write_groups(stage.removesuffix(SUFFIX) + SUFFIX, path.stem, after)
        yield from map(_Pair, before, after)


def _print(stage: str, pairs: Sequence[_Pair]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from palestra.viewer.words import number, percent

    before, after = _flat([p.before for p in pairs]), _flat([p.after for p in pairs])
    table = Table("", "before", "after", title=Text(f"{stage}: {len(after)} episodes"))
    table.add_row(
        "reward", number(_mean([t.reward for t in before])), number(_mean([t.reward for t in after]))
    )
    for part in dict.fromkeys(name for t in (*before, *after) for name in t.reward_parts):
        means = (_mean([t.reward_parts.get(part) for t in side]) for side in (before, after))
        table.add_row(part, *map(number, means))
    scores = [_both_scored(pair.before, pair.after) for pair in pairs]
    flat = [[value for pair in scores for value in pair[side]] for side in (0, 1)]
    console = Console()
    console.print(table)
    changed, kept = best_changes(scores), rank_correlation(*flat)
    console.print(
        f"Groups whose best attempt changes: {percent(changed)} · rank correlation: {number(kept)}\n"
    )


def _both_scored(before: TrajectoryGroup, after: TrajectoryGroup) -> tuple[list[float], list[float]]:
    """Rewards of the attempts that both rubrics scored."""
    both = [
        (old.reward, new.reward)
        for old, new in zip(before.trajectories, after.trajectories, strict=True)
        if old.reward is not None and new.reward is not None
    ]
    return [old for old, _ in both], [new for _, new in both]


def _flat(groups: Sequence[TrajectoryGroup]) -> list[Trajectory]:
    return [trajectory for group in groups for trajectory in group.trajectories]


def _best(rewards: Sequence[float]) -> set[int]:
    return {index for index, reward in enumerate(rewards) if reward > max(rewards) - 1e-9}


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None
