"""A run's past as windows, and a watch over a stage while it trains."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from palestra.monitor.alarms import Alarm, Row, Window
from palestra.monitor.detect import detect
from palestra.store import RunFolder
from palestra.types import TrajectoryGroup

Say = Callable[[Alarm], None]


class Watch:
    """Looks at a stage after each of its updates and reports what begins to be wrong.

    An alarm is given when its detector starts to find something, and again only after it found nothing for an
    update. Alarms go to the run's ``alarms.jsonl``.
    """

    def __init__(self, run: RunFolder, stage: str, weights: Mapping[str, float], say: Say) -> None:
        """Watch ``stage``; ``weights`` are the rubric's."""
        self._run, self._stage, self._weights, self._say = run, stage, weights, say
        self._rows: list[Row] | None = None
        self._active: set[str] = set()

    def __call__(self, row: Mapping[str, Any], groups: Sequence[TrajectoryGroup]) -> list[Alarm]:
        """Look at an update whose metrics are ``row`` and whose episodes are ``groups``.

        Returns:
            All that is found at this update, whether it began here or not.
        """
        if self._rows is None:
            self._rows = self._earlier(int(row["update"]))
        self._rows.append(_numbers(row))
        alarms = detect(Window(self._stage, comparable(self._rows), groups, self._weights))
        for alarm in alarms:
            if alarm.detector not in self._active:
                self._run.append_alarm(asdict(alarm))
                self._say(alarm)
        self._active = {alarm.detector for alarm in alarms}
        return alarms

    def _earlier(self, update: int) -> list[Row]:
        """Rows before ``update`` of a resumed stage; what was found at the last of them is known already."""
        rows = [row for row in stage_rows(self._run, self._stage) if row["update"] < update]
        if rows:
            groups = _groups(self._run, self._stage, update - 1)
            last = Window(self._stage, comparable(rows), groups, self._weights)
            self._active = {alarm.detector for alarm in detect(last)}
        return rows


def stage_rows(run: RunFolder, stage: str) -> list[Row]:
    """The metrics of a stage's updates."""
    return [_numbers(row) for row in run.read_metrics()[0] if row.get("stage") == stage]


def run_windows(run: RunFolder, weights: Mapping[str, float]) -> Iterator[Window]:
    """The windows of every online stage, update by update."""
    stages = dict.fromkeys(row["stage"] for row in run.read_metrics()[0] if "success/mean" in row)
    for stage in stages:
        rows = stage_rows(run, stage)
        for number, row in enumerate(rows, start=1):
            groups = _groups(run, stage, int(row["update"]))
            yield Window(stage, comparable(rows[:number]), groups, weights)


def comparable(rows: Sequence[Row]) -> list[Row]:
    """The last rows that are of one step of the curriculum: success falls when a step is climbed."""

    def step(row: Row) -> dict[str, float]:
        return {name: value for name, value in row.items() if name.startswith("curriculum/")}

    start = len(rows) - 1
    while start > 0 and step(rows[start - 1]) == step(rows[-1]):
        start -= 1
    return list(rows[start:])


def _groups(run: RunFolder, stage: str, update: int) -> list[TrajectoryGroup]:
    """What an update collected; nothing if it is no longer there."""
    name = f"update-{update}"
    stored = {path.stem for path in run.trajectory_files(stage)}
    return list(run.read_groups(stage, name)) if name in stored else []


def _numbers(row: Mapping[str, Any]) -> dict[str, float]:
    """The numbers of a row; the store keeps what is not finite as null."""
    return {
        name: math.nan if value is None else float(value)
        for name, value in row.items()
        if value is None or isinstance(value, int | float)
    }
