"""Numbers as a reader says them: percent, intervals, durations.

Every part of the viewer writes numbers through here, so that the page, the terminal and the headline agree.
The one surprising choice: a share that is nearly but not quite all or nothing keeps a decimal, because
"100 %" must mean every single one.
"""

from __future__ import annotations

from collections.abc import Sequence

UNKNOWN = "–"
"""What stands for a value that was not measured."""


def percent(share: float | None) -> str:
    """A share in 0..1 as ``52 %``."""
    return UNKNOWN if share is None else f"{_rounded(share)} %"


def interval(bounds: Sequence[float] | None) -> str:
    """Two shares in 0..1 as ``45–59``; empty for None."""
    return f"{_rounded(bounds[0])}–{_rounded(bounds[1])}" if bounds else ""


def percent_with_interval(share: float | None, bounds: Sequence[float] | None) -> str:
    """A share with its interval as ``52 % (45–59)``."""
    within = interval(bounds)
    return f"{percent(share)} ({within})" if within and share is not None else percent(share)


def number(value: float | None) -> str:
    """A plain number with the digits that matter: ``4.25``, ``31.2``, ``1,240``."""
    if value is None:
        return UNKNOWN
    if isinstance(value, int) or abs(value) >= 100:
        text = f"{value:,.0f}"
    elif value and abs(value) < 0.01:
        text = f"{value:.1e}"
    else:
        text = f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"
    return text.replace("-", "\N{MINUS SIGN}")


def duration(seconds: float | None) -> str:
    """Seconds as ``42 s``, ``3 min 20 s`` or ``2 h 5 min``."""
    if seconds is None:
        return UNKNOWN
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes_left = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes_left} min"
    return f"{minutes} min {rest} s" if minutes else f"{seconds:.1f} s" if seconds < 10 else f"{rest} s"


def plural(count: int, noun: str) -> str:
    """``1 episode``, ``2 episodes``."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def _rounded(share: float) -> str:
    whole = round(100 * share)
    if (whole == 0 and share > 0) or (whole == 100 and share < 1):
        return f"{100 * share:.1f}"
    return str(whole)
