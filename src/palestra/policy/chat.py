"""Messages to tokens and back: the only place that knows how a conversation is spelled in ids.

A template renders *new* messages; what was sampled stays as sampled, and nothing decoded is re-encoded unless
the template itself rewrites what was said. Palestra's own format is here, that of a model's own template in
``model_chat``. The surprising choice: text is encoded with ``encode_special_tokens``, so a control token
written inside an observation ("<|end|>") stays plain text and can never end a turn.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from palestra.actions import ActionFormat
from palestra.errors import ConfigError
from palestra.types import Message, Role

PAD, END = "<|pad|>", "<|end|>"
ROLE_TOKENS: dict[Role, str] = {
    "system": "<|system|>",
    "user": "<|user|>",
    "assistant": "<|assistant|>",
    "tool": "<|tool|>",
}
CONTROL_TOKENS = (PAD, END, *ROLE_TOKENS.values())


@dataclass(frozen=True, slots=True)
class SchemaForm:
    """How a template writes an episode whose tools it declares."""

    action_format: ActionFormat
    """The format in which it writes calls, and asks for them."""
    observed_as: Role
    """The role that observations have."""


class ChatTemplate(Protocol):
    """How one model family spells a conversation."""

    @property
    def end_id(self) -> int:
        """The id that the template ends an action with; sampled by the policy, hence trained on."""

    @property
    def end_ids(self) -> tuple[int, ...]:
        """All ids that end an action where they are sampled: ``end_id`` first, then the model's others."""

    @property
    def highest_id(self) -> int:
        """The highest id that text is written with."""

    def schema_form(self) -> SchemaForm:
        """How an episode is written whose first message has ``tools``.

        Raises:
            ConfigError: the template declares no tools, or not so that an agent's episode could be written.
        """

    def render(self, messages: Sequence[Message]) -> list[int]:
        """Ids of a whole conversation followed by the header of the next action."""

    def render_reply(self, history: Sequence[Message], action: str, reply: Message) -> list[int] | None:
        """What comes after an action's text: its end token, the reply and the header of the next action.

        Args:
            history: the messages before the action.
            action: its text.
            reply: what came back, as ``tool`` or as ``user``.

        Returns:
            Ids to append; None for a *prefix break*, where the template spells what was said before
            otherwise once more follows (some drop earlier thinking), so that it must be rendered anew.
        """

    def encode_action(self, history: Sequence[Message], action: str) -> list[int]:
        """Ids of an action's text where it follows ``history``, without an end token."""

    def decode(self, ids: Sequence[int]) -> str:
        """Text of sampled ids, without a closing end token, whichever it is."""

    def same_ids(self, other: Any) -> bool:
        """Whether every id means the same to ``other``, another template."""

    def save(self, folder: Path) -> None:
        """Write what the template is made of into an existing folder."""


class RoleTokenTemplate:
    """One token opens each message and one closes it: ``<|user|> text <|end|> <|assistant|>``.

    Every rendering extends the earlier one, so an episode is always a single segment.
    """

    def __init__(self, tokenizer: Any) -> None:
        """``tokenizer`` is a ``tokenizers.Tokenizer`` that holds every one of ``CONTROL_TOKENS``."""
        self._tokenizer = tokenizer
        self._tokenizer.encode_special_tokens = True
        self._ids: dict[str, int] = {}
        for token in CONTROL_TOKENS:
            token_id = tokenizer.token_to_id(token)
            if token_id is None:
                raise ConfigError(f"The tokenizer has no {token} token; train it with train_tokenizer().")
            self._ids[token] = token_id

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle by making it anew: a pickled tokenizer forgets ``encode_special_tokens``."""
        return type(self), (self._tokenizer,)

    @property
    def pad_id(self) -> int:
        """Fills rows of a batch; masks come from lengths and never from comparing with it."""
        return self._ids[PAD]

    @property
    def end_id(self) -> int:
        """The id of ``<|end|>``."""
        return self._ids[END]

    @property
    def end_ids(self) -> tuple[int, ...]:
        """``<|end|>`` alone."""
        return (self.end_id,)

    @property
    def highest_id(self) -> int:
        """The highest id of the vocabulary."""
        return int(self._tokenizer.get_vocab_size()) - 1

    def schema_form(self) -> SchemaForm:
        """Refused: tools are described as text.

        Raises:
            ConfigError: always.
        """
        raise ConfigError(
            "palestra's own chat template declares no tools. Describe them in the system prompt "
            "(world.tools: text)."
        )

    def render(self, messages: Sequence[Message]) -> list[int]:
        """Ids of ``messages`` followed by the header of the next action."""
        return [*self.render_closed(messages), self._ids[ROLE_TOKENS["assistant"]]]

    def render_closed(self, messages: Sequence[Message]) -> list[int]:
        """Ids of whole messages, each with its header and end token; no header follows."""
        ids: list[int] = []
        for message in messages:
            if message.tools:
                self.schema_form()
            ids.append(self._ids[ROLE_TOKENS[message.role]])
            ids += self.encode(message.content)
            ids.append(self.end_id)
        return ids

    def render_reply(self, history: Sequence[Message], action: str, reply: Message) -> list[int]:
        """End token, reply and header; nothing said before matters to them."""
        return [self.end_id, *self.render([reply])]

    def encode_action(self, history: Sequence[Message], action: str) -> list[int]:
        """Ids of the action's text, whatever came before."""
        return self.encode(action)

    def encode(self, text: str) -> list[int]:
        """Ids of plain text; control tokens written in it stay text."""
        encoded: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return encoded

    def decode(self, ids: Sequence[int]) -> str:
        """Text of sampled ids, without a closing end token; other control tokens stay visible."""
        if ids and ids[-1] == self.end_id:
            ids = ids[:-1]
        text: str = self._tokenizer.decode(list(ids), skip_special_tokens=False)
        return text

    def same_ids(self, other: Any) -> bool:
        """Whether every id means the same to ``other``."""
        if not isinstance(other, RoleTokenTemplate):
            return False
        mine: str = self._tokenizer.to_str()
        return bool(mine == other._tokenizer.to_str())

    def save(self, folder: Path) -> None:
        """Write the tokenizer as ``tokenizer.json``."""
        self._tokenizer.save(str(folder / "tokenizer.json"))
