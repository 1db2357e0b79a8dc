"""Refusals written for the model: which name, type or value is wrong, and what would be right.

Used by ``schema``. The surprising choice: messages repeat only what the tool specs declare, and names the
model wrote where these are short and printable, so that no observation can carry markup or a hidden answer.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Sequence
from typing import Any

from jsonschema.exceptions import ValidationError

from palestra.errors import ActionError
from palestra.types import ToolSpec

_MAX_LISTED = 30
_PRINTABLE = re.compile(r"[\w.\- ]{1,40}")


def shown(name: str) -> str:
    """A name the model wrote, quoted for a message; long or odd ones are not repeated."""
    return f'"{name}"' if _PRINTABLE.fullmatch(name) else "(a name not repeated here)"


def _listed(names: Sequence[str]) -> str:
    more = f", and {len(names) - _MAX_LISTED} more" if len(names) > _MAX_LISTED else ""
    return ", ".join(names[:_MAX_LISTED]) + more


def _nearest(name: str, names: Sequence[str]) -> str:
    close = difflib.get_close_matches(name[:64].lower(), [known.lower() for known in names], n=1, cutoff=0.6)
    return next((f" Did you mean {known}?" for known in names if close and known.lower() == close[0]), "")


def missing_name() -> ActionError:
    """No tool is named at all, not even with only one to choose from."""
    return ActionError("missing_name", "The action names no tool: say which tool to use.")


def unknown_tool(name: str, tools: Sequence[ToolSpec]) -> ActionError:
    """No tool is called ``name``: suggests the nearest and lists all."""
    names = [tool.name for tool in tools]
    message = f"There is no tool {shown(name)}.{_nearest(name, names)} The tools are: {_listed(names)}."
    return ActionError("unknown_tool", message)


def unexpected_parameter(key: str, tool: ToolSpec, names: Sequence[str]) -> ActionError:
    """``key`` is none of the declared ``names``: suggests the nearest and lists all."""
    declared = f"Its parameters are: {_listed(names)}." if names else "It takes no parameters."
    message = f"{tool.name} has no parameter {shown(key)}.{_nearest(key, names)} {declared}"
    return ActionError("unexpected_parameter", message)


def explained(error: ValidationError, tool: ToolSpec) -> ActionError:
    """A schema violation in words, under the name that fits it."""
    subject = f"{tool.name}{_place(error)}"
    kind, types = error.validator, _types(error)
    rule: Any = error.validator_value
    instance: Any = error.instance
    if kind == "required":
        missing = [key for key in rule if key not in instance]
        return ActionError("missing_parameter", f"{subject} misses the required: {_listed(missing)}.")
    if kind == "additionalProperties":
        schema = error.schema if isinstance(error.schema, dict) else {}
        names = list(schema.get("properties", {}))
        unknown = next((key for key in instance if key not in names), "")
        return unexpected_parameter(unknown, tool, names)
    if types:
        return ActionError("type_mismatch", f"{subject} must be {' or '.join(types)}.")
    if kind in ("enum", "const"):
        allowed = rule if kind == "enum" else [rule]
        values = _listed([json.dumps(value, ensure_ascii=False) for value in allowed])
        return ActionError("invalid_value", f"{subject} must be one of: {values}.")
    return ActionError("invalid_value", f"{subject} breaks its rule {kind}: {json.dumps(rule)[:80]}.")


def _types(error: ValidationError) -> list[str]:
    """The types an error asks for, if it is about types and nothing else."""
    alternatives = error.context if error.validator in ("anyOf", "oneOf") else [error]
    if not alternatives or any(part.validator != "type" for part in alternatives):
        return []
    rules: list[Any] = [part.validator_value for part in alternatives]
    return [str(name) for rule in rules for name in ([rule] if isinstance(rule, str) else rule)]


def _place(error: ValidationError) -> str:
    """The parameter an error is about, such as `` parameter tags[0]``; empty for all of them."""
    parts = [
        f"[{part}]" if isinstance(part, int) else "." + shown(part).strip('"') for part in error.absolute_path
    ]
    return " parameter " + "".join(parts).lstrip(".") if parts else ""
