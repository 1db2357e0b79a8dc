"""Metric rows to curves: what the plots draw and the findings read.

Rows come from ``metrics.jsonl`` in the order they were written. The one surprising choice: a stage that goes
on after RL (such as mining hard examples) continues its axis even if it counts its own updates anew.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

Curve = dict[int, float]
"""Value by update, in order. Updates where the metric was not measured are missing."""

LEARNING_STAGES = ("rl", "mine")
"""The stages that learn online, in order; their curves are one. A round's number may follow the name."""


def learning_curves(rows: Iterable[Mapping[str, Any]]) -> dict[str, Curve]:
    """The curves of online learning by metric name."""
    return _curves(rows, LEARNING_STAGES)


def sft_curves(rows: Iterable[Mapping[str, Any]]) -> dict[str, Curve]:
    """The curves of supervised fine-tuning by metric name."""
    return _curves(rows, ("sft",))


def level(curve: Curve, *, end: bool, share: float = 0.1) -> float | None:
    """Mean over the first or the last tenth of a curve; None for an empty one."""
    values = list(curve.values())
    count = max(1, round(len(values) * share))
    part = values[-count:] if end else values[:count]
    return sum(part) / len(part) if part else None


def smooth(values: list[float], window: int) -> list[float]:
    """Mean of each value with the ``window - 1`` before it, as far as there are any."""
    return [
        sum(part) / len(part)
        for part in (values[max(0, at - window + 1) : at + 1] for at in range(len(values)))
    ]


def _curves(rows: Iterable[Mapping[str, Any]], stages: tuple[str, ...]) -> dict[str, Curve]:
    curves: dict[str, Curve] = defaultdict(dict)
    stage, start, last = None, 0, -1
    for row in rows:
        if str(row.get("stage")).rstrip("0123456789") not in stages or not isinstance(row.get("update"), int):
            continue
        if row["stage"] != stage:
            start = last + 1 - row["update"] if row["update"] <= last else 0
            stage = row["stage"]
        at = start + row["update"]
        last = max(last, at)
        for name, value in row.items():
            if name != "update" and _is_measured(value):
                curves[name][at] = float(value)
    return {name: dict(sorted(curve.items())) for name, curve in curves.items()}


def _is_measured(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
