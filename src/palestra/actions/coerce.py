"""Types from the schema: text becomes a number, boolean, null, list or object where no string is allowed.

Used by ``schema`` before it validates. What cannot be converted is left as it is, so that validation
reports a type mismatch. The surprising choice: where the schema allows a string, or says nothing, text
stays text, whatever it looks like.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

from palestra.actions.json_text import MAX_DIGITS, Reader, Unreadable
from palestra.errors import ActionError

_INTEGER = re.compile(r"-?[0-9]+(?:\.0+)?")
_NUMBER = re.compile(r"-?[0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
_BOOLEANS = {"true": True, "false": False}
_NULLS = ("null", "none", "")
_MAX_REFERENCES = 8
_JSON_TYPES: dict[type, str] = {
    str: "string",
    bool: "boolean",
    int: "integer",
    float: "number",
    list: "array",
    dict: "object",
    type(None): "null",
}


def coerce(value: Any, schema: Any, root: Mapping[str, Any]) -> tuple[Any, tuple[str, ...]]:
    """The value in the type its schema asks for, and a note for each conversion (empty: unremarkable).

    ``root`` is the whole schema, where ``$ref`` points into. Raises ``ActionError`` on a contradicted key.
    """
    notes: list[str] = []
    return _coerce(value, _resolved(schema, root), root, notes), tuple(notes)


def _coerce(value: Any, schema: Mapping[str, Any], root: Mapping[str, Any], notes: list[str]) -> Any:
    types = allowed_types(schema, root)
    if isinstance(value, str) and types is not None and "string" not in types:
        value = _from_text(value.strip(), types, notes, value)
    if isinstance(value, float) and types is not None and "integer" in types and value.is_integer():
        return value if "number" in types else int(value)
    if isinstance(value, list) and "items" in schema:
        items = _resolved(schema["items"], root)
        return [_coerce(item, items, root, notes) for item in value]
    if isinstance(value, dict) and "properties" in schema:
        parts = schema["properties"]
        return {
            key: _coerce(item, _resolved(parts.get(key), root), root, notes) for key, item in value.items()
        }
    return value


def allowed_types(schema: Mapping[str, Any], root: Mapping[str, Any]) -> frozenset[str] | None:
    """The JSON types a schema allows, or None when it does not say."""
    declared = schema.get("type")
    if declared is not None:
        return frozenset([declared] if isinstance(declared, str) else declared)
    values = schema.get("enum", [schema["const"]] if "const" in schema else None)
    if values is not None:
        return frozenset(_JSON_TYPES[type(value)] for value in values)
    for key in ("anyOf", "oneOf"):
        if key in schema:
            parts = [allowed_types(_resolved(part, root), root) for part in schema[key]]
            known = [part for part in parts if part is not None]
            return frozenset().union(*known) if len(known) == len(parts) else None
    parts = [allowed_types(_resolved(part, root), root) for part in schema.get("allOf", ())]
    return next((part for part in parts if part is not None), None)


def _resolved(schema: Any, root: Mapping[str, Any]) -> Mapping[str, Any]:
    """The schema behind local references; one that says nothing for anything else."""
    for _ in range(_MAX_REFERENCES):
        if not isinstance(schema, Mapping):
            return {}
        reference = schema.get("$ref")
        if not isinstance(reference, str) or not reference.startswith("#"):
            return schema
        schema = root
        for part in reference.lstrip("#/").split("/"):
            schema = schema.get(part) if isinstance(schema, Mapping) else None
    return {}


def _from_text(text: str, types: frozenset[str], notes: list[str], unchanged: str) -> Any:
    """``text`` as the one type it can be, or ``unchanged``."""
    if types & {"integer", "number"} and len(text) <= MAX_DIGITS:
        if _INTEGER.fullmatch(text) and ("integer" in types or "." not in text):
            notes.append("")
            return int(text.partition(".")[0])
        if "number" in types and _NUMBER.fullmatch(text) and math.isfinite(float(text)):
            notes.append("")
            return float(text)
    if "boolean" in types and text.lower() in _BOOLEANS:
        notes.append("")
        return _BOOLEANS[text.lower()]
    if "null" in types and text.lower() in _NULLS:
        notes.append("")
        return None
    if types & {"array", "object"} and text[:1] in ("[", "{", "("):
        return _container(text, types, notes, unchanged)
    return unchanged


def _container(text: str, types: frozenset[str], notes: list[str], unchanged: str) -> Any:
    reader = Reader(text)
    try:
        read = reader.read(0)
    except Unreadable:
        return unchanged
    if reader.skip_space(read.end) < len(text) or _JSON_TYPES[type(read.value)] not in types:
        return unchanged
    if read.duplicate is not None:
        raise ActionError("duplicate_key", "A key inside a parameter is given twice with different values.")
    notes.extend(("", *read.notes))
    return read.value
