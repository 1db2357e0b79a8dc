"""Curves as inline SVG for the report: the only file of the viewer that needs matplotlib.

``report`` hands in curves and gets drawings back. The one surprising choice: colours are written as
placeholders and become CSS variables, so that a drawing follows the page into dark mode and onto paper.
"""

from __future__ import annotations

import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter

from palestra.viewer.curves import Curve, smooth

_ACCENT, _INK, _FAINT, _RULE = "#010201", "#010202", "#010203", "#010204"
_VARIABLES = {_ACCENT: "--accent", _INK: "--ink", _FAINT: "--faint", _RULE: "--rule"}
_SIZE = (4.6, 2.5)
_SMOOTHED_FROM = 40
_STEPS = [1, 2, 2.5, 5, 10]
_STYLE = {
    "svg.fonttype": "none",
    "font.size": 9,
    "text.color": _INK,
    "axes.edgecolor": _RULE,
    "axes.labelcolor": _FAINT,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.spines.left": False,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "grid.color": _RULE,
    "grid.linewidth": 0.6,
    "xtick.color": _RULE,
    "ytick.color": _RULE,
    "xtick.labelcolor": _FAINT,
    "ytick.labelcolor": _FAINT,
    "ytick.major.size": 0,
    "xtick.major.size": 3,
    "legend.frameon": False,
    "legend.fontsize": 9,
}


@dataclass(frozen=True, slots=True)
class Line:
    """One curve of a chart."""

    label: str
    """Shown where a chart has several; empty for none."""
    curve: Curve
    """What is drawn."""
    main: bool = True
    """In the accent colour; else a plain dotted companion."""


@dataclass(frozen=True, slots=True)
class Chart:
    """What one drawing shows."""

    title: str
    caption: str
    """One sentence: what to look for."""
    lines: tuple[Line, ...]
    share: bool = False
    """Whether values are shares, drawn from 0 to 100 %."""
    stacked: bool = False
    """Whether the curves add up."""
    level: tuple[str, float] | None = None
    """A named value to compare with."""


@dataclass(frozen=True, slots=True)
class Drawing:
    """A finished chart."""

    title: str
    caption: str
    svg: str
    """Safe to place in HTML: made of numbers and escaped labels only."""


def charts(
    learning: Mapping[str, Curve], sft: Mapping[str, Curve], teacher_success: float | None
) -> list[Chart]:
    """The charts this run has data for, in reading order."""
    level = ("teacher", teacher_success) if teacher_success is not None else None
    success = (
        Line("training", learning.get("success/mean", {})),
        Line("validation", learning.get("validation/success", {}), main=False),
    )
    time = (
        Line("playing", learning.get("time/rollout", {})),
        Line("updating", learning.get("time/update", {}), main=False),
    )
    loss = (Line("training", sft.get("loss/sft", {})),)
    wanted = [
        Chart("Success", "Share of episodes solved, by update.", success, share=True, level=level),
        _single(learning, "turns/mean", "Turns", "Mean turns an episode; fewer at equal success is better."),
        _single(learning, "reward/mean", "Reward", "The weighted total the policy is trained on."),
        *_reward_parts(learning),
        _single(
            learning,
            "format/compliance",
            "Format compliance",
            "Share of actions that could be understood.",
        ),
        _single(
            learning, "actions/repeated", "Repeated actions", "An episode; that they rise is a bad sign."
        ),
        _single(learning, "tokens/action_mean", "Tokens", "Sampled tokens an episode."),
        _single(learning, "policy/entropy", "Entropy", "How much the policy still varies its actions."),
        _single(learning, "policy/kl_reference", "KL to the reference", "How far it moved from its start."),
        _single(
            learning,
            "groups/zero_spread",
            "Groups without spread",
            "Groups whose attempts all earned the same: they teach nothing.",
        ),
        Chart("Time", "Seconds an update, playing and updating.", time, stacked=True),
        Chart("SFT loss", "Loss on the collected episodes.", loss),
    ]
    return [chart for chart in wanted if any(line.curve for line in chart.lines)]


def draw(chart: Chart) -> Drawing:
    """Draw one chart, the same bytes for the same data."""
    with matplotlib.rc_context({**_STYLE, "svg.hashsalt": chart.title}):
        figure = Figure(figsize=_SIZE, layout="constrained")
        axes = figure.subplots()
        if chart.stacked:
            _draw_stack(axes, chart.lines)
        else:
            for line in chart.lines:
                _draw_line(axes, line)
        _finish(axes, chart)
        buffer = io.StringIO()
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
    return Drawing(chart.title, chart.caption, _inline(buffer.getvalue()))


def _single(learning: Mapping[str, Curve], metric: str, title: str, caption: str) -> Chart:
    return Chart(title, caption, (Line("", learning.get(metric, {})),))


def _reward_parts(learning: Mapping[str, Curve]) -> list[Chart]:
    prefix = "reward/part/"
    names = sorted(name for name in learning if name.startswith(prefix))
    return [
        _single(
            learning, name, f"Reward part: {name.removeprefix(prefix)}", "Before weighting, in its own range."
        )
        for name in names
    ]


def _draw_line(axes: Axes, line: Line) -> None:
    x, y = list(line.curve), list(line.curve.values())
    if not x:
        return
    if not line.main:
        axes.plot(x, y, color=_INK, linewidth=1, linestyle=":", marker="o", markersize=3, label=line.label)
        return
    if len(x) < _SMOOTHED_FROM:
        axes.plot(x, y, color=_ACCENT, linewidth=1.8, label=line.label, solid_capstyle="round")
        return
    axes.plot(x, y, color=_ACCENT, linewidth=0.7, alpha=0.3)
    axes.plot(x, smooth(y, len(x) // 20), color=_ACCENT, linewidth=1.8, label=line.label)


def _draw_stack(axes: Axes, lines: Sequence[Line]) -> None:
    x = sorted({at for line in lines for at in line.curve})
    floor = [0.0] * len(x)
    for line in lines:
        top = [below + line.curve.get(at, 0.0) for below, at in zip(floor, x, strict=True)]
        colour, alpha = (_ACCENT, 0.85) if line.main else (_FAINT, 0.4)
        axes.fill_between(x, floor, top, color=colour, alpha=alpha, linewidth=0, label=line.label)
        floor = top


def _finish(axes: Axes, chart: Chart) -> None:
    axes.set_xlabel("update")
    axes.xaxis.set_major_locator(MaxNLocator(5, steps=_STEPS, integer=True))
    axes.yaxis.set_major_locator(MaxNLocator(5, steps=_STEPS))
    axes.margins(x=0.01)
    if chart.share:
        axes.set_ylim(-0.02, 1.02)
        axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0, symbol=" %"))
    if chart.level:
        label, value = chart.level
        axes.axhline(value, color=_FAINT, linewidth=1, linestyle="--", label=label)
    if any(line.label and line.curve for line in chart.lines):
        axes.legend(
            loc="lower left", bbox_to_anchor=(-0.02, 1.0), ncols=3, borderaxespad=0.2, handlelength=1.6
        )


def _inline(svg: str) -> str:
    """The drawing as a part of a page: no prolog, no links, no fixed size, no ids but those it refers to."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r' xmlns(:\w+)?="[^"]*"', "", svg)
    svg = re.sub(r'(<svg[^>]*?) height="[^"]*"', r"\1", svg)
    svg = re.sub(r'(<svg[^>]*?) width="[^"]*"', r"\1", svg)
    svg = re.sub(r'<g id="[^"]*"', "<g", svg)
    svg = svg.replace("xlink:href", "href").replace("<svg", '<svg aria-hidden="true"', 1)
    for colour, variable in _VARIABLES.items():
        svg = svg.replace(colour, f"var({variable})")
    return svg
