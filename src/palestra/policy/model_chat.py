"""A model's own chat template, followed turn by turn: what Hugging Face tokenizers bring with their models.

Each reply is the text that the template adds behind the action, encoded for itself. It begins with the token
that ends an action, where every tokenizer begins anew, so the ids are those of the whole conversation. Where
the template spells an earlier message otherwise once more follows (dropped thinking, a moved system prompt)
nothing can be appended, and that is said. The surprising choice: a control token written inside a message is
broken up by an invisible character, since a template's text mixes its own control tokens with what was said.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jinja2 import TemplateError

from palestra.errors import ConfigError
from palestra.types import Message

_ZERO_WIDTH_SPACE = "\u200b"
_DATE = "26 Jul 2024"
"""What templates are told that ask for today's date, or a prompt would change at midnight."""
_DATE_MACRO = "{%- macro strftime_now(format) -%}" + _DATE + "{%- endmacro -%}"
_NO_WORDS = "\u200b"
"""Said in place of an action without words where a template refuses an empty one."""
_SYSTEM, _ASKED, _SAID, _SEEN = "Srules", "Uasked", "Asaid", "Oseen"
"""Contents of a conversation that a template is tried out with."""


class ModelTemplate:
    """The chat template of a transformers tokenizer; see the module's docstring.

    Observations take the template's ``tool`` role if it has one, else the user's. A system prompt opens the
    first user message where the template has no ``system`` role, or moves its text as the conversation grows.
    """

    def __init__(self, tokenizer: Any) -> None:
        """Try ``tokenizer``, a fast transformers tokenizer, on a small conversation.

        Raises:
            ConfigError: it has no chat template, or one that drops messages or does not end an action with a
                token of its own.
        """
        if not getattr(tokenizer, "is_fast", False) or not tokenizer.chat_template:
            raise ConfigError(
                "The model's tokenizer has no chat template or no tokenizer.json, so nothing says how a "
                "conversation is written. Take the model's instruct or chat version."
            )
        self._tokenizer = tokenizer
        self._source = _source_of(tokenizer)
        tokenizer.backend_tokenizer.no_truncation()  # a tokenizer.json may hold both
        tokenizer.backend_tokenizer.no_padding()
        added = tokenizer.added_tokens_decoder.values()
        self._control = _any_of([token.content for token in added if token.special])
        self._spelled = _any_of(
            [t.content for t in added if t.special or (t.content.strip() and t.content in self._source)]
        )
        self._empty = ""
        self._has_system = self._shows(["system", "user"], [_SYSTEM, _ASKED])
        speaks_of_tools = re.search(r"""['"](tool|ipython)['"]""", self._source)
        roles, contents = ["user", "assistant", "tool"], [_ASKED, _SAID, _SEEN]
        self._has_tool = bool(speaks_of_tools) and self._shows(roles, contents)
        if not self._has_tool and not self._shows(["user", "assistant", "user"], contents):
            raise ConfigError(
                "The model's chat template drops a message, or refuses a user's message after the "
                "assistant's: an agent's observations cannot be written in it. Take another model."
            )
        self._has_system = self._has_system and self._keeps_system()
        if not self._shows(["user", "assistant", "user"], [_ASKED, "", _SEEN]):
            self._empty = _NO_WORDS
        self._gap, self.end_id = self._after_header()

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the tokenizer; what was found out about its template is found out again."""
        return type(self), (self._tokenizer,)

    @property
    def highest_id(self) -> int:
        """The highest id but for control tokens, of which some stand for images and are never written."""
        known: dict[str, int] = self._tokenizer.get_vocab()
        return max([self.end_id, *(i for token, i in known.items() if not self._control.fullmatch(token))])

    def render(self, messages: Sequence[Message]) -> list[int]:
        """Ids of a whole conversation followed by the header of the next action."""
        return self._ids(self._text(messages))

    def render_reply(self, history: Sequence[Message], action: str, reply: Message) -> list[int] | None:
        """What the template adds behind an action; None where it rewrites what came before."""
        before = self._text(history)
        after = self._text([*history, Message("assistant", action), reply])
        tail = _behind(after[len(before) :], self._said(action)) if after.startswith(before) else None
        if tail is None:
            return None
        ids = self._ids(tail)
        return ids if ids[:1] == [self.end_id] else None

    def encode_action(self, history: Sequence[Message], action: str) -> list[int]:
        """Ids of an action's text as they follow the header of ``history``."""
        before = self._text(history)
        header = self._ids(before)
        whole = self._ids(before + self._gap + self._said(action))
        if whole[: len(header)] == header:
            return whole[len(header) :]
        return self._ids(self._gap + self._said(action))

    def decode(self, ids: Sequence[int]) -> str:
        """Text of sampled ids, without a closing end token; other control tokens stay visible."""
        if ids and ids[-1] == self.end_id:
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
        """Write the tokenizer with its chat template."""
        self._tokenizer.save_pretrained(folder)

    def _after_header(self) -> tuple[str, int]:
        """What the template puts between an action's header and its text, and the id that ends an action."""
        asked, said = Message("user", _ASKED), Message("assistant", _SAID)
        before, after = self._text([asked]), self._text([asked, said, Message("tool", _SEEN)])
        gap, _, tail = after[len(before) :].partition(_SAID)
        ids = self._ids(tail.lstrip())
        special = {key for key, token in self._tokenizer.added_tokens_decoder.items() if token.special}
        closed = self._apply(
            [{"role": "user", "content": _ASKED}, {"role": "assistant", "content": _SAID}], prompt=False
        )
        ends = self._ids(closed.partition(_SAID)[2].lstrip())[:1] == ids[:1]
        if not after.startswith(before) or gap.strip() or ids[0] not in special or not ends:
            raise ConfigError(
                "The model's chat template does not write an assistant's message as its generation prompt "
                "begins it, or ends it without a control token, so no action could be told from the rest: "
                f"{before[-60:]!r} and then {after[len(before) :][:60]!r}"
            )
        return gap, ids[0]

    def _keeps_system(self) -> bool:
        """Whether a system prompt stays where it is once more follows; some move it to the last message."""
        opening = [Message("system", _SYSTEM), Message("user", _ASKED)]
        more = [*opening, Message("assistant", _SAID), Message("tool", _SEEN)]
        try:
            return self._text(more).startswith(self._text(opening))
        except Exception:  # as below
            return False

    def _shows(self, roles: Sequence[str], contents: Sequence[str]) -> bool:
        """Whether the template writes all these messages."""
        said = [{"role": role, "content": text} for role, text in zip(roles, contents, strict=True)]
        try:
            text = self._apply(said)
        except Exception:  # templates raise on purpose, and trip over roles they do not know
            return False
        return all(content in text for content in contents)

    def _text(self, messages: Sequence[Message]) -> str:
        """The conversation as the template writes it, up to the header of the next action."""
        said: list[dict[str, str]] = []
        system = ""
        for message in messages:
            acted = message.role == "assistant"
            content = self._said(message.content) if acted else _broken_up(self._spelled, message.content)
            if message.role == "system" and not self._has_system:
                system = content + "\n\n"
                continue
            role = "user" if message.role == "tool" and not self._has_tool else message.role
            said.append({"role": role, "content": system + content})
            system = ""
        return self._apply(said)

    def _apply(self, said: Sequence[dict[str, str]], *, prompt: bool = True) -> str:
        try:
            text: str = self._tokenizer.apply_chat_template(
                list(said),
                tokenize=False,
                add_generation_prompt=prompt,
                chat_template=self._source,
                date_string=_DATE,
            )
        except TemplateError as error:
            roles = ", ".join(message["role"] for message in said)
            raise ConfigError(
                f"The model's chat template refuses a conversation of {roles}: {error}"
            ) from error
        return text

    def _ids(self, text: str) -> list[int]:
        ids: list[int] = self._tokenizer.backend_tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    def _said(self, action: str) -> str:
        """An action's text as it is given to the template, which may know its own tags of thinking."""
        return _broken_up(self._control, action) if action.strip() or not self._empty else self._empty


def _source_of(tokenizer: Any) -> str:
    """The text of the template that conversations without tools are written with."""
    try:
        return _DATE_MACRO + str(tokenizer.get_chat_template())
    except ValueError as error:
        raise ConfigError(f"The model's tokenizer has no chat template to choose: {error}") from error


def _any_of(tokens: Sequence[str]) -> re.Pattern[str]:
    longest_first = sorted(filter(None, tokens), key=len, reverse=True)
    return re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")


def _broken_up(control: re.Pattern[str], text: str) -> str:
    """The text with its control tokens broken up, so that they end and open nothing."""
    return control.sub(lambda found: found[0][:1] + _ZERO_WIDTH_SPACE + found[0][1:], text)


def _behind(text: str, said: str) -> str | None:
    """What follows ``said`` in ``text``, but for white space around it; None if something comes before."""
    start = text.find(said.strip())
    if start < 0 or text[:start].strip():
        return None
    return text[start + len(said.strip()) :].lstrip()
