"""Progress a person can read: a bar with rate and remaining time, and lines worth keeping.

On a terminal rich draws the bar; elsewhere (a log file, CI) only finished lines are printed, so logs stay
short.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn


class Bar:
    """One running count."""

    def __init__(self, progress: Progress, task: TaskID, unit: str) -> None:
        """Wrap a rich task."""
        self._progress, self._task, self._unit = progress, task, unit
        self._labels: Counter[str] = Counter()
        self._started = time.perf_counter()
        self.done = 0

    def advance(self, label: str = "") -> None:
        """Count one more; ``label`` (such as a stop reason) is tallied behind the bar."""
        self.done += 1
        if label:
            self._labels[label] += 1
        self._progress.update(self._task, advance=1, note=self.note())

    def note(self) -> str:
        """Rate and tally so far."""
        rate = self.done / max(time.perf_counter() - self._started, 1e-9)
        tally = ", ".join(f"{count} {name}" for name, count in self._labels.most_common(3))
        return f"{rate:.1f} {self._unit}/s" + (f" · {tally}" if tally else "")


class Reporter:
    """Where a run says what it is doing."""

    def __init__(self, console: Console | None = None) -> None:
        """Print to ``console``, by default the terminal."""
        self.console = console or Console()

    def line(self, text: str) -> None:
        """Say something that should stay visible."""
        self.console.print(text, highlight=False, soft_wrap=True)

    @contextmanager
    def bar(self, name: str, total: int, unit: str) -> Iterator[Bar]:
        """A bar for ``total`` things; leaves one line when it is done."""
        columns = (
            TextColumn("  {task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[note]}"),
        )
        progress = Progress(
            *columns, console=self.console, transient=True, disable=not self.console.is_terminal
        )
        with progress:
            bar = Bar(progress, progress.add_task(name, total=total, note=""), unit)
            yield bar
        self.line(f"  {name}: {bar.done} of {total} {unit}, {bar.note()}")


def time_left(done: int, total: int, started: float) -> str:
    """Remaining time at the rate so far, as ``1m20s``."""
    seconds = (time.perf_counter() - started) / max(done, 1) * (total - done)
    return f"{int(seconds) // 60}m{int(seconds) % 60:02d}s"
