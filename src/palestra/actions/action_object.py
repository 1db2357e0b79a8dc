"""A decoded JSON value as action objects: which keys name the tool, the parameters and the reasoning.

Stands between ``json_text`` and the format readers. It knows the spellings in use (ours, OpenAI's,
Anthropic's, Llama's, LangChain's) and lists of calls, and looks at no schema.

The surprising choice: two spellings of one thing in one object are fine when they agree and an error when
they do not, because a checker and an executor might each believe another one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from palestra.actions.candidate import RawCall
from palestra.actions.json_text import Reader, Unreadable, same
from palestra.actions.refusals import missing_name
from palestra.actions.schema import find_tool
from palestra.errors import ActionError
from palestra.types import ToolSpec

NAME_KEYS = ("tool_name", "name", "tool", "function", "action")
PARAMETER_KEYS = ("parameters", "arguments", "args", "input", "action_input")
REASONING_KEYS = ("reasoning", "thought")

_ENVELOPES = ("tool_calls", "tool_call", "function_call", "function", "action")
_IGNORED = frozenset(
    {"id", "type", "index", "call_id", "tool_call_id", "status", "role", "content", "caller"}
)
_MAX_ENCODINGS = 3
_MAX_ENVELOPES = 4


def calls_in(
    value: Any, notes: tuple[str, ...] = (), duplicate: str | None = None
) -> list[RawCall | ActionError]:
    """Every call in a decoded value: an object, an envelope or a list of these. Errors stay in place."""
    calls: list[RawCall | ActionError] = []
    for item in _unwrapped(value):
        try:
            calls.append(_call(item, notes, duplicate))
        except ActionError as error:
            calls.append(error)
    return calls


def names_a_declared_tool(value: Any, tools: Sequence[ToolSpec]) -> bool:
    """Whether a decoded value is a call of declared tools only, and no echo of a declaration.

    This is what makes unmarked JSON a call instead of sample text.
    """
    objects = _unwrapped(value)
    return bool(objects) and all(_is_addressed(item, tools) for item in objects)


def uses_our_key(value: Any) -> bool:
    """Whether a decoded value says ``tool_name``, which sample text in the wild does not."""
    return isinstance(value, Mapping) and isinstance(value.get("tool_name"), str)


def _is_addressed(item: Any, tools: Sequence[ToolSpec]) -> bool:
    if not isinstance(item, Mapping) or any(_is_schema(item.get(key)) for key in PARAMETER_KEYS):
        return False
    names = (item.get(key) for key in NAME_KEYS)
    return any(isinstance(name, str) and find_tool(name, tools) for name in names)


def _is_schema(value: Any) -> bool:
    return (
        isinstance(value, Mapping)
        and value.get("type") == "object"
        and isinstance(value.get("properties"), Mapping)
    )


def is_placeholder(call: RawCall | ActionError) -> bool:
    """Whether a call is the format's own example, such as ``{"name": "<function-name>", ...}``."""
    return isinstance(call, RawCall) and call.name.startswith("<") and call.name.endswith(">")


def _unwrapped(value: Any) -> list[Any]:
    """The action objects in lists and envelopes, in order."""
    found: list[Any] = []
    waiting: list[tuple[Any, int]] = [(value, 0)]
    while waiting:
        item, depth = waiting.pop()
        inner = _envelope(item)
        if depth < _MAX_ENVELOPES and isinstance(item, list):
            waiting.extend((element, depth + 1) for element in reversed(item))
        elif depth < _MAX_ENVELOPES and inner is not None:
            waiting.append((inner, depth + 1))
        else:
            found.append(item)
    return found


def _envelope(item: Any) -> Any:
    if not isinstance(item, Mapping) or any(isinstance(item.get(key), str) for key in NAME_KEYS):
        return None
    return next((item[key] for key in _ENVELOPES if isinstance(item.get(key), dict | list)), None)


def _call(item: Any, notes: tuple[str, ...], duplicate: str | None) -> RawCall:
    if not isinstance(item, Mapping):
        raise ActionError("malformed", "An action is a JSON object with a tool name and parameters.")
    name, second_name = _agreed(item, NAME_KEYS)
    written, second_parameters = _agreed(item, PARAMETER_KEYS)
    reasoning, _ = _agreed(item, REASONING_KEYS)
    duplicate = duplicate or second_name or second_parameters
    if duplicate is None and not (isinstance(name, str) and name):
        raise missing_name()
    parameters, more_notes, inner_duplicate = decoded_parameters(written)
    known = {*NAME_KEYS, *PARAMETER_KEYS, *REASONING_KEYS, *_IGNORED}
    return RawCall(
        name=name if isinstance(name, str) else "",
        parameters=parameters,
        reasoning=reasoning if isinstance(reasoning, str) else None,
        notes=(*notes, *more_notes),
        stray=tuple(key for key in item if key not in known),
        has_parameters=any(key in item for key in PARAMETER_KEYS),
        duplicate=duplicate or inner_duplicate,
    )


def _agreed(item: Mapping[str, Any], keys: tuple[str, ...]) -> tuple[Any, str | None]:
    """The value under any of ``keys``, and the key that contradicts it, if one does."""
    given = [(key, item[key]) for key in keys if item.get(key) is not None]
    if not given:
        return None, None
    first = given[0][1]
    return first, next((key for key, value in given[1:] if not same(first, value)), None)


def decoded_parameters(written: Any) -> tuple[dict[str, Any], tuple[str, ...], str | None]:
    """Parameters as an object: itself, null, nothing, or an object encoded as a JSON string.

    Returns the object, notes and the first contradicted key. Raises ``ActionError``.
    """
    notes: dict[str, None] = {}
    duplicate: str | None = None
    for _ in range(_MAX_ENCODINGS):
        if written is None or (isinstance(written, str) and not written.strip()):
            return {}, tuple(notes), duplicate
        if not isinstance(written, str):
            break
        written, more_notes, duplicate = _decoded(written)
        notes.update(dict.fromkeys(("decoded parameters from a string", *more_notes)))
    if not isinstance(written, dict):
        raise ActionError("type_mismatch", "The parameters must be a JSON object.")
    return written, tuple(notes), duplicate


def _decoded(text: str) -> tuple[Any, tuple[str, ...], str | None]:
    reader = Reader(text)
    try:
        read = reader.read(0)
    except Unreadable as problem:
        raise ActionError("malformed", f"The parameters are no readable JSON. {problem.message}") from None
    if reader.skip_space(read.end) < len(text):
        raise ActionError("malformed", "The parameters have text after their JSON object.")
    return read.value, read.notes, read.duplicate
