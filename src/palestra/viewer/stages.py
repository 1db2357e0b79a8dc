"""Which evaluation speaks for which stage: the columns of every table.

A run may hold many evaluations of one policy; the summary and the report show one a stage and must agree on
it. The one surprising choice: the world most evaluations were made in is the run's world, so that a probe in
another world never takes the main column.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from palestra.store import RunFolder

STAGES = ("base", "teacher", "sft", "rl", "dpo", "oracle")
"""In the order in which they are shown."""
STAGE_TITLES = {
    "base": "Base",
    "teacher": "Teacher",
    "sft": "SFT",
    "rl": "RL",
    "dpo": "DPO",
    "oracle": "Oracle",
}
_MODES = ("greedy", "scripted", "sampled")
_SPLITS = ("test", "validation", "train")

Eval = Mapping[str, Any]
"""One ``eval/<name>.json``: the metrics and ``stage``, ``mode``, ``split``, ``world``."""


def stage_evals(evals: Iterable[Eval]) -> dict[str, Eval]:
    """One evaluation for each stage that has any: of the run's world, held-out before seen, greedy first."""
    every = list(evals)
    world = main_world(every)
    chosen: dict[str, Eval] = {}
    for stage in STAGES:
        of_stage = [each for each in every if each.get("stage") == stage]
        if of_stage:
            chosen[stage] = min(of_stage, key=lambda each: _preference(each, world))
    return chosen


def main_world(evals: Iterable[Eval]) -> str | None:
    """The world most of the evaluations were made in; None without any."""
    worlds = Counter(str(each["world"]) for each in evals if each.get("world"))
    return worlds.most_common(1)[0][0] if worlds else None


def stage_costs(run: RunFolder) -> tuple[float | None, float | None]:
    """Seconds of all finished stages together, and their peak memory in MB; None where none was recorded."""
    names = sorted(path.stem for path in (run.path / "stages").glob("*.json"))
    results = [run.stage_result(name) or {} for name in names]
    seconds = [each["seconds"] for each in results if each.get("seconds") is not None]
    memory = [each["peak_memory_mb"] for each in results if each.get("peak_memory_mb") is not None]
    return (sum(seconds) if seconds else None), max(memory, default=None)


def _preference(each: Eval, world: str | None) -> tuple[int, int, int]:
    return (
        int(each.get("world") != world),
        _place(_SPLITS, each.get("split")),
        _place(_MODES, each.get("mode")),
    )


def _place(order: tuple[str, ...], value: Any) -> int:
    return order.index(value) if value in order else len(order)
