"""One trajectory in the terminal, turn by turn.

The ``Trajectory`` comes from the store; the command line prints what this returns. The one surprising choice:
escape characters in a world's or a model's text are shown, not sent, so that no episode can drive a terminal.
"""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.rule import Rule
from rich.text import Text

from palestra.types import Trajectory, Turn
from palestra.viewer.episodes import badges, outcome
from palestra.viewer.words import number

_STYLES = {"good": "green", "bad": "red", "note": "yellow", "plain": "dim"}


def trajectory_text(trajectory: Trajectory) -> RenderableType:
    """What to print to see this episode: task, every turn, how it ended, what it earned."""
    verdict, tone = outcome(trajectory)
    lines: list[RenderableType] = [
        Rule(Text.assemble(_text(trajectory.id), "  ", (verdict, f"bold {_STYLES[tone]}"))),
        _text(trajectory.task.prompt),
    ]
    for at, turn in enumerate(trajectory.turns, start=1):
        lines += _turn(at, turn)
    lines += [Text(), _ending(trajectory)]
    if trajectory.error and trajectory.retries and trajectory.success is not None:
        lines.append(_text(f"\n{trajectory.retries} earlier worlds failed, the last so:"))
    if trajectory.error:
        lines.append(_text(trajectory.error, "red"))
    return Group(*lines)


def _turn(at: int, turn: Turn) -> list[RenderableType]:
    head = Text.assemble("\n", (f"turn {at}", "bold"))
    for words, tone in badges(turn):
        head.append_text(Text.assemble("  ", (visible(words), _STYLES[tone])))
    return [
        head,
        Padding(_text(turn.action, "cyan"), (0, 0, 0, 2)),
        Padding(_text(turn.observation), (0, 0, 0, 2)),
    ]


def _ending(trajectory: Trajectory) -> Text:
    parts = [f"ended: {trajectory.stop_reason.value}", f"reward: {number(trajectory.reward)}"]
    parts += [f"{name} {number(value)}" for name, value in trajectory.reward_parts.items()]
    return _text(" · ".join(parts), "dim")


def _text(text: str, style: str = "") -> Text:
    return Text(visible(text), style=style)


def visible(text: str) -> str:
    """``text`` with the control characters a terminal obeys replaced by their pictures."""
    return "".join(chr(0x2400 + ord(char)) if char < " " and char not in "\n\t" else char for char in text)
