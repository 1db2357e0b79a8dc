"""A raw call against the declared tools: name, parameter names, types and values.

The last station before a ``ToolCall`` exists. Names resolve exactly or by a unique match that ignores case;
aliases are applied; text becomes a number, a boolean or a list only where the schema allows no string;
then the ``jsonschema`` library judges. Every refusal is written for the model that reads it.

The surprising choice: an undeclared parameter is an error unless the schema opens itself with an explicit
``additionalProperties``, because dropping it would silently change the action.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import islice
from typing import Any

import jsonschema
from jsonschema.exceptions import SchemaError, ValidationError
from jsonschema.protocols import Validator

from palestra.actions.candidate import RawCall
from palestra.actions.coerce import coerce
from palestra.actions.refusals import explained, missing_name, shown, unexpected_parameter, unknown_tool
from palestra.errors import ActionError, WorldError
from palestra.types import ToolCall, ToolSpec

_MAX_ERRORS = 50
_ORDER = {"additionalProperties": 0, "required": 1, "type": 2}
"""Which of several errors is told first; all other rules come last."""


def find_tool(name: str, tools: Sequence[ToolSpec]) -> ToolSpec | None:
    """The tool of that name, or the only one that differs by case alone."""
    for tool in tools:
        if tool.name == name:
            return tool
    folded = name.casefold()
    matches = [tool for tool in tools if tool.name.casefold() == folded]
    return matches[0] if len(matches) == 1 else None


def build_call(raw: RawCall, tools: Sequence[ToolSpec]) -> tuple[ToolCall, tuple[str, ...]]:
    """The validated call and the notes on what was changed to get there. Raises ``ActionError``."""
    if raw.duplicate is not None:
        raise ActionError("duplicate_key", f"{shown(raw.duplicate)} is given twice with different values.")
    if not raw.name:
        raise missing_name()
    tool = find_tool(raw.name, tools)
    if tool is None:
        raise unknown_tool(raw.name, tools)
    notes = list(raw.notes)
    if tool.name != raw.name:
        notes.append(f"read {shown(raw.name)} as {tool.name}")
    parameters = _without_aliases(raw.parameters, tool, notes)
    _refuse_undeclared(parameters, raw, tool)
    try:
        parameters = {key: _coerced(key, value, raw, tool, notes) for key, value in parameters.items()}
        _validate(parameters, tool)
    except RecursionError:
        raise ActionError("malformed", "The parameters are nested too deeply.") from None
    _refuse_stray(raw, tool)
    return ToolCall(tool.name, parameters, raw.reasoning), tuple(dict.fromkeys(notes))


def _properties(tool: ToolSpec) -> Mapping[str, Any]:
    properties: Mapping[str, Any] = tool.parameters.get("properties") or {}
    return properties


def _without_aliases(written: Mapping[str, Any], tool: ToolSpec, notes: list[str]) -> dict[str, Any]:
    """Declared spellings only. The canonical one wins over an alias, the first alias over the next."""
    parameters = {key: value for key, value in written.items() if key not in tool.aliases}
    for key, value in written.items():
        if key in tool.aliases:
            canonical = tool.aliases[key]
            notes.append(f"read parameter {key} as {canonical}")
            parameters.setdefault(canonical, value)
    return parameters


def _refuse_undeclared(parameters: Mapping[str, Any], raw: RawCall, tool: ToolSpec) -> None:
    opened = tool.parameters.get("additionalProperties", False) or tool.parameters.get("patternProperties")
    names = list(_properties(tool))
    unknown = next((key for key in parameters if key not in names), None)
    if unknown is not None and not opened:
        raise unexpected_parameter(unknown, tool, names)


def _refuse_stray(raw: RawCall, tool: ToolSpec) -> None:
    """Parameters written beside, instead of inside, the parameters object would otherwise be lost."""
    for key in raw.stray:
        if not raw.has_parameters or key in _properties(tool):
            message = f'{shown(key)} stands beside the parameters; write all parameters inside "parameters".'
            raise ActionError("unexpected_parameter", message)


def _coerced(key: str, value: Any, raw: RawCall, tool: ToolSpec, notes: list[str]) -> Any:
    schema = _properties(tool).get(key, True)
    coerced, more_notes = coerce(value, schema, tool.parameters)
    if more_notes and not raw.textual:
        notes.append(f"converted parameter {key} to its declared type")
    notes.extend(note for note in more_notes if note)
    return coerced


def _validate(parameters: dict[str, Any], tool: ToolSpec) -> None:
    validator = _validator(tool)
    errors = list(islice(validator.iter_errors(parameters), _MAX_ERRORS))
    if errors:
        raise explained(min(errors, key=lambda error: _ORDER.get(str(error.validator), 3)), tool)


def _validator(tool: ToolSpec) -> Validator:
    try:
        return _compiled(json.dumps(dict(tool.parameters), sort_keys=True))
    except (SchemaError, TypeError, ValueError) as problem:
        raise WorldError(f"tool {tool.name}: its parameters are no valid JSON Schema: {problem}") from problem


@lru_cache(maxsize=1024)
def _compiled(schema_text: str) -> Validator:
    schema = json.loads(schema_text)
    kind = jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator)
    kind.check_schema(schema)
    extend: Callable[..., type[Validator]] = jsonschema.validators.extend
    return extend(kind, {"uniqueItems": _unique_items})(schema)


def _unique_items(_validator: Any, unique: Any, items: Any, _schema: Any) -> Iterator[ValidationError]:
    """In linear time; the library's own check compares every pair when the items cannot be sorted."""
    if (
        unique
        and isinstance(items, list)
        and len({json.dumps(item, sort_keys=True) for item in items}) < len(items)
    ):
        yield ValidationError("items repeat")
