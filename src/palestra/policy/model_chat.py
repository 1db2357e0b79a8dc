"""A model's own chat template, followed turn by turn: what Hugging Face tokenizers bring with their models.

Each reply is the text that the template adds behind the action, encoded for itself. It begins with the token
that ends an action, where every tokenizer begins anew, so the ids are those of the whole conversation. Where
the template spells an earlier message otherwise once more follows (dropped thinking, a moved system prompt)
nothing can be appended, and that is said. The surprising choice: a control token written inside a message is
broken up by an invisible character, since a template's text mixes its own control tokens with what was said.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from palestra.errors import ConfigError
from palestra.policy.chat import SchemaForm
from palestra.policy.spelling import Spelling
from palestra.types import Message, Role

GENERATION_FILE = "generation_config.json"
"""Where a model's folder says which ids end what it generates."""


class ModelTemplate:
    """The chat template of a transformers tokenizer; see the module's docstring.

    Observations take the template's ``tool`` role if it has one, else the user's. A system prompt opens the
    first user message where the template has no ``system`` role, or moves its text as the conversation grows.
    """

    def __init__(self, tokenizer: Any, model_ends: Collection[int] = ()) -> None:
        """Try ``tokenizer``, a fast transformers tokenizer, on a small conversation.

        Args:
            tokenizer: of the model.
            model_ends: ids that end what the model generates, as its folder says. Those count that are
                control tokens and have no part in the opening of a message.

        Raises:
            ConfigError: it has no chat template, or one that drops messages or does not end an action with a
                token of its own.
        """
        if not getattr(tokenizer, "is_fast", False) or not tokenizer.chat_template:
            raise ConfigError(
                "The model's tokenizer has no chat template or no tokenizer.json, so nothing says how a "
                "conversation is written. Take the model's instruct or chat version."
            )
        self._tokenizer, self._model_ends = tokenizer, tuple(model_ends)
        tokenizer.backend_tokenizer.no_truncation()  # a tokenizer.json may hold both
        tokenizer.backend_tokenizer.no_padding()
        self._plain = Spelling(tokenizer)
        self.end_id = self._plain.end_id
        special = {key for key, token in tokenizer.added_tokens_decoder.items() if token.special}
        others = (set(model_ends) & special) - {self.end_id, *self._plain.header_ids}
        self.end_ids = (self.end_id, *sorted(others))

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the tokenizer; what was found out about its template is found out again."""
        return type(self), (self._tokenizer, self._model_ends)

    @property
    def highest_id(self) -> int:
        """The highest id but for control tokens, of which some stand for images and are never written."""
        known: dict[str, int] = self._tokenizer.get_vocab()
        control = self._plain.control
        return max([self.end_id, *(i for token, i in known.items() if not control.fullmatch(token))])

    def schema_form(self) -> SchemaForm:
        """How an episode is written whose tools the template declares.

        Raises:
            ConfigError: it shows none, or moves them, or writes calls in no action format.
        """
        observed_as: Role = "tool" if self._declaring.has_tool else "user"
        return SchemaForm(self._declaring.action_format(), observed_as)

    def render(self, messages: Sequence[Message]) -> list[int]:
        """Ids of a whole conversation followed by the header of the next action."""
        spelling = self._of(messages)
        return spelling.ids(spelling.text(messages))

    def render_reply(self, history: Sequence[Message], action: str, reply: Message) -> list[int] | None:
        """What the template adds behind an action; None where it rewrites what came before."""
        spelling = self._of(history)
        before = spelling.text(history)
        after = spelling.text([*history, Message("assistant", action), reply])
        tail = _behind(after[len(before) :], spelling.said(action)) if after.startswith(before) else None
        if tail is None:
            return None
        ids = spelling.ids(tail)
        return ids if ids[:1] == [self.end_id] else None

    def encode_action(self, history: Sequence[Message], action: str) -> list[int]:
        """Ids of an action's text as they follow the header of ``history``."""
        spelling = self._of(history)
        before, said = spelling.text(history), spelling.gap + spelling.said(action)
        header = spelling.ids(before)
        whole = spelling.ids(before + said)
        return whole[len(header) :] if whole[: len(header)] == header else spelling.ids(said)

    def decode(self, ids: Sequence[int]) -> str:
        """Text of sampled ids, without a closing end token; other control tokens stay visible."""
        if ids and ids[-1] in self.end_ids:
            ids = ids[:-1]
        text: str = self._tokenizer.decode(
            list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False
        )
        return text

    def same_ids(self, other: Any) -> bool:
        """Whether every id means the same to ``other``."""
        if not isinstance(other, ModelTemplate):
            return False
        mine: str = self._tokenizer.backend_tokenizer.to_str()
        return bool(mine == other._tokenizer.backend_tokenizer.to_str())

    def save(self, folder: Path) -> None:
        """Write the tokenizer with its chat template, and which ids end an action where there are several."""
        self._tokenizer.save_pretrained(folder)
        if len(self.end_ids) > 1:
            text = json.dumps({"eos_token_id": list(self.end_ids)}) + "\n"
            (folder / GENERATION_FILE).write_text(text, encoding="utf-8")

    @cached_property
    def _declaring(self) -> Spelling:
        """How conversations with tools are written; tried out when there is one."""
        found = Spelling(self._tokenizer, declares=True)
        if found.end_id != self.end_id:
            raise ConfigError(
                "The model's chat template ends an action otherwise where it declares tools. Describe them "
                "in the system prompt (world.tools: text)."
            )
        return found

    def _of(self, messages: Sequence[Message]) -> Spelling:
        return self._declaring if any(message.tools for message in messages) else self._plain


def _behind(text: str, said: str) -> str | None:
    """What follows ``said`` in ``text``, but for white space around it; None if something comes before."""
    start = text.find(said.strip())
    if start < 0 or text[:start].strip():
        return None
    return text[start + len(said.strip()) :].lstrip()
