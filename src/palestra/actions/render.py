"""The canonical text of a call in each format, and of an error: what the parser reads back unchanged.

Used for demonstrations, SFT data and prompts. Reading the text of a rendered call gives the same call, at
tier strict, for parameters of declared simple types.

The surprising choice: where a value cannot be told from markup, the xml format falls back to a JSON object
inside the function tag, which every reader of that format also takes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

from palestra.actions.formats import ActionFormat
from palestra.errors import ActionError
from palestra.types import ToolCall

_UNSAFE_VALUE = re.compile(r"</?(?:parameter|param|function|invoke)\b|\r\Z")
_SAFE_KEY = re.compile(r"[\w.\-]{1,200}")
_IDENTIFIER = re.compile(r"[^\W\d]\w*")
_MARKUP = re.compile(r"<(/?\w+)>")


def render_call(call: ToolCall, format: ActionFormat = "json") -> str:
    """The canonical text of ``call``.

    In json, hermes, qwen and llama the reasoning is a key and exact; in the other formats it is prose before
    the call, with white space at its ends dropped and tags defused.
    """
    return _RENDERERS[format](call)


def error_observation(error: ActionError) -> str:
    """What the model sees of an error: one line of JSON with the error's name and its message."""
    return _dump({"error": error.name, "message": str(error)})


def _dump(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _json(call: ToolCall, name: str = "tool_name", parameters: str = "parameters") -> str:
    reasoning = {} if call.reasoning is None else {"reasoning": call.reasoning}
    return _dump({**reasoning, name: call.tool_name, parameters: dict(call.parameters)})


def _hermes(call: ToolCall) -> str:
    return f"<tool_call>\n{_json(call)}\n</tool_call>"


def _qwen(call: ToolCall) -> str:
    return f"<tool_call>\n{_json(call, 'name', 'arguments')}\n</tool_call>"


def _llama(call: ToolCall) -> str:
    return _json(call, "name")


def _xml(call: ToolCall) -> str:
    values = {
        key: value if isinstance(value, str) else _dump(value) for key, value in call.parameters.items()
    }
    safe = all(_SAFE_KEY.fullmatch(key) and not _UNSAFE_VALUE.search(value) for key, value in values.items())
    if safe:
        lines = [f"<parameter={key}>\n{value}\n</parameter>" for key, value in values.items()]
    else:
        lines = [_dump(dict(call.parameters))]
    body = "\n".join((f"<function={call.tool_name}>", *lines, "</function>"))
    return f"{_think(call)}<tool_call>\n{body}\n</tool_call>"


def _react(call: ToolCall) -> str:
    thought = " ".join(_defused(call).split())
    lines = [f"Thought: {thought}"] if thought else []
    lines += [f"Action: {call.tool_name}", f"Action Input: {_dump(dict(call.parameters))}"]
    return "\n".join(lines)


def _pythonic(call: ToolCall) -> str:
    if all(_IDENTIFIER.fullmatch(key) for key in call.parameters):
        arguments = ", ".join(f"{key}={_python(value)}" for key, value in call.parameters.items())
    else:
        arguments = f"**{_python(dict(call.parameters))}"
    return f"{_think(call)}[{call.tool_name}({arguments})]"


def _python(value: Any) -> str:
    """A Python literal; strings in JSON's spelling, which is also Python's."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_dump(key)}: {_python(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_python(item) for item in value) + "]"
    return _dump(value) if isinstance(value, str) else repr(value)


def _defused(call: ToolCall) -> str:
    """The reasoning with its tags in round brackets, so that none of them ends it early."""
    return _MARKUP.sub(r"(\1)", call.reasoning or "")


def _think(call: ToolCall) -> str:
    reasoning = _defused(call).strip()
    return f"<think>\n{reasoning}\n</think>\n" if reasoning else ""


_RENDERERS: dict[ActionFormat, Callable[[ToolCall], str]] = {
    "json": _json,
    "hermes": _hermes,
    "xml": _xml,
    "react": _react,
    "pythonic": _pythonic,
    "qwen": _qwen,
    "llama": _llama,
}
