"""A conversation's tokens as they grow, and what of a long one is still shown.

Rollout and imitation build their rows here, so a demonstration has the ids that a policy would have had. Ids
are appended as long as they fit; then older turns are shortened, the conversation is rendered anew, and a new
row begins. The surprising choice: it is shortened to the last few turns at once and not by one turn each
time, for every rewriting costs a row and reading it all again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from palestra.policy.chat import ChatTemplate
from palestra.types import Facts, Message

ContextMode = Literal["full", "window", "summary"]
_SHORT = 64
"""Tokens of a reply that is never cut."""
_LINE = 120
"""Most characters of a shortened turn."""
_CHARACTERS_A_TOKEN, _TOKENS_A_CHARACTER = 16, 4
"""No text has more on average: what is surely too long is cut before it is encoded, and a short one never."""


@dataclass(frozen=True, slots=True)
class ContextWindow:
    """How much of a conversation is shown."""

    tokens: int | None = None
    """Most tokens before an action; None for no limit."""
    mode: ContextMode = "full"
    """What becomes of older turns that no longer fit: ``full`` keeps them, and the episode ends; ``window``
    drops them; ``summary`` keeps a line of each, the call with what came of it or the key records."""
    raw_turns: int = 2
    """Latest turns that are shown as they were, where older ones are shortened."""


@dataclass(frozen=True, slots=True)
class _Past:
    """A turn as it is shown."""

    action: str
    observation: str
    line: str
    """What stands for it once it is shortened."""
    has_records: bool
    """Whether the world marked something in it as worth keeping."""


class Transcript:
    """One conversation; see the module's docstring."""

    def __init__(self, template: ChatTemplate, window: ContextWindow, prompt: Sequence[Message]) -> None:
        """Render the prompt."""
        self._template, self._window, self._prompt = template, window, tuple(prompt)
        self._turns: list[_Past] = []
        self._shortened = self._kept_lines = 0
        self.ids = list(template.render(prompt))
        """All that is shown now."""
        self.anew: tuple[int, ...] = ()
        """The whole context, if it was rendered anew since the last action; else empty."""

    def act(self, ids: Sequence[int]) -> tuple[int, ...]:
        """Append an action.

        Returns:
            The whole context it was taken in, if that was rendered anew since the last one; else nothing.
        """
        anew, self.anew = self.anew, ()
        self.ids += ids
        return anew

    def encode_action(self, action: str) -> tuple[int, ...]:
        """Ids of an action that nobody sampled, with its end token."""
        return (*self._template.encode_action(self._messages(), action), self._template.end_id)

    def observe(self, action: str, observation: str, facts: Facts) -> tuple[int, ...]:
        """Append the reply to the last action, whose end token is added if it was cut short.

        Args:
            action: the last action's text.
            observation: what the world answered; over a third of the window is cut in the middle.
            facts: what happened, for the line that may stand for the turn later.

        Returns:
            The ids that were appended; none where the conversation was rendered anew.
        """
        history = self._messages()
        shown = self._cut(history, action, observation)
        added = self._template.render_reply(history, action, Message("tool", shown))
        self._turns.append(_Past(action, shown, _line(facts, observation), bool(facts.key_records)))
        if added is not None and self.ids[-1] in self._template.end_ids:
            added = added[1:]
        if added is None or (self._window.mode != "full" and not self._fits(len(self.ids) + len(added))):
            self.ids = self._render_anew()
            self.anew = tuple(self.ids)
            return ()
        self.ids += added
        return tuple(added)

    def _render_anew(self) -> list[int]:
        """The whole conversation, as much of it as fits: first the oldest lines go, then the latest turns."""
        ids = self._template.render(self._messages())
        if self._window.mode == "full" or self._fits(len(ids)):
            return ids
        for raw in range(min(self._window.raw_turns, len(self._turns)), -1, -1):
            self._shortened = self._kept_lines = len(self._turns) - raw
            ids = self._template.render(self._messages())
            while self._window.mode == "summary" and self._kept_lines and not self._fits(len(ids)):
                self._kept_lines //= 2
                ids = self._template.render(self._messages())
            if self._fits(len(ids)):
                break
        return ids

    def _fits(self, tokens: int) -> bool:
        return self._window.tokens is None or tokens <= self._window.tokens

    def _messages(self) -> list[Message]:
        """What is shown: the prompt, a line for what was shortened, the turns since."""
        *before, asked = self._prompt
        if self._shortened:
            asked = replace(asked, content=f"{asked.content}\n\n{self._shortened_text()}")
        messages = [*before, asked]
        for turn in self._turns[self._shortened :]:
            messages += [Message("assistant", turn.action), Message("tool", turn.observation)]
        return messages

    def _shortened_text(self) -> str:
        if self._window.mode == "window":
            return f"({self._shortened} earlier turns are not shown.)"
        turns = list({turn.line: turn for turn in self._turns[: self._shortened]}.values())
        by_worth = sorted(range(len(turns)), key=lambda at: (turns[at].has_records, at))
        kept = sorted(by_worth[max(0, len(turns) - self._kept_lines) :])
        left_out = len(turns) - len(kept)
        title = f"Earlier turns, shortened{f' ({left_out} left out)' if left_out else ''}:"
        return "\n".join([title, *(turns[at].line for at in kept)])

    def _cut(self, history: Sequence[Message], action: str, observation: str) -> str:
        """The observation, with its middle left out if it is too long."""
        if self._window.tokens is None:
            return observation
        limit = max(self._window.tokens // 3, _SHORT)
        if len(observation) * _TOKENS_A_CHARACTER <= limit:
            return observation
        keep = min(len(observation), limit * _CHARACTERS_A_TOKEN)
        while True:
            shown = without_middle(observation, keep)
            ids = self._template.render_reply(
                history, action, Message("tool", shown)
            ) or self._template.render([Message("user", shown)])
            if len(ids) <= limit or keep <= 1:
                return shown
            keep = min(keep - 1, keep * limit // len(ids))


def without_middle(text: str, keep: int) -> str:
    """``keep`` characters of the text, half of them from its end, and what is missing between them."""
    if keep >= len(text):
        return text
    head, tail = text[: keep - keep // 2], text[len(text) - keep // 2 :]
    return f"{head}\n[{len(text) - keep:,} of {len(text):,} characters left out]\n{tail}"


def _line(facts: Facts, observation: str) -> str:
    """A turn in one line: what was called, and what is worth keeping of the reply."""
    if facts.tool_name is None:
        return f"an action that was no call: {facts.error or 'not understood'}"
    parameters = ", ".join(f"{name}={value}" for name, value in (facts.parameters or {}).items())
    outcome = "; ".join(facts.key_records) or " ".join(observation.split())
    if not facts.valid:
        outcome = f"refused, {facts.error}"
    line = f"{facts.tool_name}({parameters}): {outcome}"
    return line if len(line) <= _LINE else f"{line[: _LINE - 3]}..."
