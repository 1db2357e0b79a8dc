"""How a model's chat template spells conversations, found out by trying it on small ones.

``model_chat`` appends turns with what is found out here, once for conversations without tools and, where a
world leaves it to the template, once more for those with tools: many a template writes the two in different
ways. The surprising choice: what a template says it takes is not believed. That it shows a message, a role, a
tool or a call is read off a text that it wrote.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, get_args

from jinja2 import TemplateError

from palestra.actions import ActionFormat, render_call
from palestra.errors import ConfigError
from palestra.types import Message, ToolCall, ToolSpec

_ZERO_WIDTH_SPACE = "\u200b"
_DATE = "26 Jul 2024"
"""What templates are told that ask for today's date, or a prompt would change at midnight."""
_DATE_MACRO = "{%- macro strftime_now(format) -%}" + _DATE + "{%- endmacro -%}"
_NO_WORDS = "\u200b"
"""Said in place of an action without words where a template refuses an empty one."""
_SYSTEM, _ASKED, _SAID, _SEEN = "Srules", "Uasked", "Asaid", "Oseen"
"""Contents of a conversation that a template is tried out with."""
_TOOL = ToolSpec(
    "Tname",
    "Tdescribed",
    {"type": "object", "properties": {"Tkey": {"type": "string"}}, "required": ["Tkey"]},
)
_CALL = ToolCall(_TOOL.name, {"Tkey": "Tvalue"})
_CALL_ID = "call00001"
"""Nine letters and digits, as some templates insist."""
_TEXT_INSTEAD = "Describe them in the system prompt (world.tools: text)."


class Spelling:
    """How conversations are written, all with tools or all without; see the module's docstring."""

    def __init__(self, tokenizer: Any, *, declares: bool = False) -> None:
        """Try the template of ``tokenizer``, a fast transformers tokenizer, on a small conversation.

        Args:
            tokenizer: has a chat template.
            declares: whether conversations have tools that the template is to declare.

        Raises:
            ConfigError: it drops messages or tools, or does not end an action with a token of its own.
        """
        self._tokenizer = tokenizer
        self._tools = (_TOOL,) if declares else ()
        self._source = _source_of(tokenizer, declares)
        added = tokenizer.added_tokens_decoder.values()
        self._control = any_of([token.content for token in added if token.special])
        self._spelled = any_of(
            [t.content for t in added if t.special or (t.content.strip() and t.content in self._source)]
        )
        self._empty, self._refusal = "", ""
        if declares:
            self._check_declares()
        self.has_system = self._shows(["system", "user"], [_SYSTEM, _ASKED])
        speaks_of_tools = re.search(r"""['"](tool|ipython)['"]""", self._source)
        contents = [_ASKED, _SAID, _SEEN]
        twice = [*contents, f"{_SAID} again", f"{_SEEN} again"]
        self.has_tool = bool(speaks_of_tools) and self._shows(["user", *["assistant", "tool"] * 2], twice)
        if not self.has_tool and not self._shows(["user", "assistant", "user"], contents):
            raise ConfigError(
                "The model's chat template drops a message, or refuses a user's message after the "
                f"assistant's{self._refusal}: an agent's observations cannot be written in it. Take another "
                "model, or give its tokenizer another chat template."
            )
        self.has_system = self.has_system and self._keeps_system()
        if declares:
            self._check_stays()
        if not self._shows(["user", "assistant", "user"], [_ASKED, "", _SEEN]):
            self._empty = _NO_WORDS
        self.gap, self._tail = self._after_header()

    @property
    def end_id(self) -> int:
        """The id that the template ends an action with."""
        return self._tail[0]

    @property
    def header_ids(self) -> list[int]:
        """Ids between an action's end and the next action: none of them can end one."""
        return self._tail[1:]

    @property
    def control(self) -> re.Pattern[str]:
        """The tokenizer's control tokens."""
        return self._control

    def text(self, messages: Sequence[Message]) -> str:
        """The conversation as the template writes it, up to the header of the next action."""
        said: list[dict[str, Any]] = []
        system = ""
        for message in messages:
            acted = message.role == "assistant"
            content = self.said(message.content) if acted else broken_up(self._spelled, message.content)
            if message.role == "system" and not self.has_system:
                system = content and content + "\n\n"
                continue
            role = "user" if message.role == "tool" and not self.has_tool else message.role
            said.append({"role": role, "content": system + content})
            system = ""
        return self._apply(said, tools=[spec for message in messages for spec in message.tools])

    def said(self, action: str) -> str:
        """An action's text as it is given to the template, which may know its own tags of thinking."""
        return broken_up(self._control, action) if action.strip() or not self._empty else self._empty

    def ids(self, text: str) -> list[int]:
        """Ids of a text whose control tokens are the template's."""
        ids: list[int] = self._tokenizer.backend_tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    def action_format(self) -> ActionFormat:
        """The format in which the template writes the call of a tool.

        Raises:
            ConfigError: it is none of palestra's.
        """
        written = self._written_call()
        for name in get_args(ActionFormat):
            found: ActionFormat = name
            if _squeezed(render_call(_CALL, found)) == _squeezed(written):
                return found
        raise ConfigError(
            f"The model's chat template declares tools, and writes a call as {written[:200]!r}, which is no "
            f"action format. {_TEXT_INSTEAD}"
        )

    def _check_declares(self) -> None:
        """Refuse a template that takes tools and does not show them."""
        asked = [{"role": "user", "content": _ASKED}]
        try:
            text = self._apply(asked)
        except Exception as error:  # templates raise on purpose, and trip over what they do not know
            raise ConfigError(f"The model's chat template refuses tools: {error}. {_TEXT_INSTEAD}") from error
        missing = [word for word in (_TOOL.name, _TOOL.description, "Tkey", _ASKED) if word not in text]
        if missing:
            raise ConfigError(f"The model's chat template does not show tools. {_TEXT_INSTEAD}")

    def _check_stays(self) -> None:
        """Refuse a template that says the tools again with every message of the user."""
        opening = [Message("user", _ASKED, self._tools)]
        if self._text_of(*opening, Message("assistant", _SAID), Message("tool", _SEEN)).startswith(
            self._text_of(*opening)
        ):
            return
        raise ConfigError(
            "The model's chat template moves its tools to the latest message, so that no turn could be "
            f"appended to what was said. {_TEXT_INSTEAD}"
        )

    def _text_of(self, *messages: Message) -> str:
        return self.text(messages)

    def _written_call(self) -> str:
        """A call as the template writes one that it is given in its own form; empty if it writes none."""
        function = {"name": _CALL.tool_name, "arguments": dict(_CALL.parameters)}
        call = {"id": _CALL_ID, "type": "function", "function": function}
        asked = {"role": "user", "content": _ASKED}
        acted = {"role": "assistant", "content": "", "tool_calls": [call]}
        seen = {"role": "tool" if self.has_tool else "user", "content": _SEEN, "tool_call_id": _CALL_ID}
        try:
            before, after = self._apply([asked]), self._apply([asked, acted, seen])
        except Exception:  # as above
            return ""
        end = self._tokenizer.decode([self.end_id])
        return after[len(before) :].partition(end)[0].strip() if after.startswith(before) else ""

    def _after_header(self) -> tuple[str, list[int]]:
        """What the template puts between an action's header and its text, and the ids behind an action."""
        asked, said = Message("user", _ASKED, self._tools), Message("assistant", _SAID)
        before, after = self._text_of(asked), self._text_of(asked, said, Message("tool", _SEEN))
        gap, _, tail = after[len(before) :].partition(_SAID)
        ids = self.ids(tail.lstrip())
        special = {key for key, token in self._tokenizer.added_tokens_decoder.items() if token.special}
        closed = self._apply(
            [{"role": "user", "content": _ASKED}, {"role": "assistant", "content": _SAID}], prompt=False
        )
        ends = self.ids(closed.partition(_SAID)[2].lstrip())[:1] == ids[:1]
        if not after.startswith(before) or gap.strip() or ids[0] not in special or not ends:
            raise ConfigError(
                "The model's chat template does not write an assistant's message as its generation prompt "
                "begins it, or ends it without a control token, so no action could be told from the rest: "
                f"{before[-60:]!r} and then {after[len(before) :][:60]!r}. Take another model, or give its "
                "tokenizer another chat template."
            )
        return gap, ids

    def _keeps_system(self) -> bool:
        """Whether a system prompt stays where it is once more follows; some move it to the last message."""
        opening = [Message("system", _SYSTEM, self._tools), Message("user", _ASKED)]
        more = [*opening, Message("assistant", _SAID), Message("tool", _SEEN)]
        try:
            return self.text(more).startswith(self.text(opening))
        except Exception:  # as above
            return False

    def _shows(self, roles: Sequence[str], contents: Sequence[str]) -> bool:
        """Whether the template writes all these messages."""
        said = [{"role": role, "content": text} for role, text in zip(roles, contents, strict=True)]
        try:
            text = self._apply(said)
        except Exception as error:  # as above
            self._refusal = f" ({error})"
            return False
        return all(content in text for content in contents)

    def _apply(
        self,
        said: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[ToolSpec] | None = None,
        prompt: bool = True,
    ) -> str:
        """The template's text; ``tools`` are those it is tried out with if None."""
        declared = [self._function(spec) for spec in (self._tools if tools is None else tools)]
        try:
            text: str = self._tokenizer.apply_chat_template(
                list(said),
                tools=declared or None,
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

    def _function(self, spec: ToolSpec) -> dict[str, Any]:
        """A tool in OpenAI's form, as templates take it."""
        about = {"name": spec.name, "description": spec.description, "parameters": spec.parameters}
        plain: dict[str, Any] = self._defused({"type": "function", "function": about})
        return plain

    def _defused(self, value: Any) -> Any:
        """Plain data whose texts hold no control tokens."""
        if isinstance(value, str):
            return broken_up(self._spelled, value)
        if isinstance(value, Mapping):
            return {self._defused(key): self._defused(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self._defused(item) for item in value]
        return value


def _source_of(tokenizer: Any, declares: bool) -> str:
    """The text of the template that conversations are written with: some have another one for tools."""
    try:
        return _DATE_MACRO + str(tokenizer.get_chat_template(tools=[{}] if declares else None))
    except ValueError as error:
        raise ConfigError(
            f"The model's tokenizer has several chat templates and none called default: {error}. Name one so."
        ) from error


def any_of(tokens: Sequence[str]) -> re.Pattern[str]:
    """A pattern of any of the tokens, the longest first; of nothing where there are none."""
    longest_first = sorted(filter(None, tokens), key=len, reverse=True)
    return re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")


def broken_up(control: re.Pattern[str], text: str) -> str:
    """The text with its control tokens broken up, so that they end and open nothing."""
    return control.sub(lambda found: found[0][:1] + _ZERO_WIDTH_SPACE + found[0][1:], text)


def _squeezed(text: str) -> str:
    return "".join(text.split())
