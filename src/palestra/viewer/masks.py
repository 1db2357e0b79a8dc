"""Token rows in the terminal: what a policy read, what it said, and what each of its tokens was told.

Rows come from the learner's own function, so what is shown is what is trained on. The one surprising choice:
the colour is the sign of the advantage, for a wrong mask shows as an observation in colour.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby

from rich.console import Group, RenderableType
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from palestra.types import Segment
from palestra.viewer.replay import visible

LEGEND = "dim: context, not trained on · green: advantage above 0 · red: below 0 · yellow: 0"

Piece = Callable[[int], str]
"""The text of one token id."""


def mask_text(rows: Sequence[Segment], piece: Piece) -> RenderableType:
    """Rows as running text, their actions in colour with advantage and mean log-probability behind each."""
    shown: list[RenderableType] = []
    for number, row in enumerate(rows, start=1):
        shown.append(_head(row, number, len(rows)))
        shown.append(_flow(row, piece))
    return Group(*shown, Text(LEGEND, style="dim italic"))


def mask_table(rows: Sequence[Segment], piece: Piece) -> RenderableType:
    """Rows as tables, a line a token."""
    shown: list[RenderableType] = []
    for number, row in enumerate(rows, start=1):
        table = Table("at", "id", "token", "trained", "logprob", "advantage")
        for at, token in enumerate(row.ids):
            trained = row.action_mask[at]
            numbers = (
                [f"{row.sampled_logprobs[at]:.4f}", f"{row.advantages[at]:+.4f}"] if trained else ["", ""]
            )
            text = Text(visible(repr(piece(token))[1:-1]), style=_style(row, at))
            table.add_row(str(at), str(token), text, "yes" if trained else "", *numbers)
        shown += [_head(row, number, len(rows)), table]
    return Group(*shown)


def _head(row: Segment, number: int, count: int) -> Rule:
    trained = sum(row.action_mask)
    parts = [row.trajectory_id, f"row {number} of {count}"] if count > 1 else [row.trajectory_id]
    share = trained / len(row.ids)
    return Rule(" · ".join([*parts, f"{len(row.ids)} tokens, {trained} trained on ({share:.0%})"]))


def _flow(row: Segment, piece: Piece) -> Text:
    text = Text()
    for trained, group in groupby(range(len(row.ids)), lambda at: row.action_mask[at]):
        span = list(group)
        for at in span:
            text.append(visible(piece(row.ids[at])), style=_style(row, at))
        if trained:
            logprob = sum(row.sampled_logprobs[at] for at in span) / len(span)
            low, high = (pick(row.advantages[at] for at in span) for pick in (min, max))
            advantage = f"{low:+.2f}" if low == high else f"{low:+.2f} to {high:+.2f}"
            text.append(f" ⟨{advantage}, logprob {logprob:.2f}⟩", style="bold")
    return text


def _style(row: Segment, at: int) -> str:
    if not row.action_mask[at]:
        return "dim"
    advantage = row.advantages[at]
    return "yellow" if advantage == 0 else "green" if advantage > 0 else "red"
