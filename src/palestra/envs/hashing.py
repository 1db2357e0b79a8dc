"""One hash for a world's state, the same in every process.

The toolkit compares states by this hash: to see whether an action changed anything, to recognise an action
repeated from one state, and to tell equal tasks from different ones. The one surprising choice: sets are
sorted before hashing, so the order in which an agent learned things does not make two states different.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any

from palestra.errors import WorldError


def plain(value: Any) -> Any:
    """``value`` as JSON types: dataclasses and mappings become objects, sets sorted lists.

    Raises:
        WorldError: for a value of a type that has no canonical form.
    """
    if value is None or isinstance(value, bool | int | float | str):
        return value.value if isinstance(value, Enum) else value
    if is_dataclass(value) and not isinstance(value, type):
        return {f.name: plain(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, set | frozenset):
        items = [plain(item) for item in value]
        try:
            return sorted(items)
        except TypeError:  # mixed or unordered members; slower, but always defined
            return sorted(items, key=canonical_json)
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, Enum):
        return value.value
    raise WorldError(
        f"a state holds a {type(value).__name__}, which has no canonical form: "
        "use dataclasses, mappings, lists, sets, numbers, text or None"
    )


def canonical_json(value: Any) -> str:
    """The one JSON text of ``value``: sorted keys, no spaces, Unicode kept."""
    return json.dumps(plain(value), sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def state_hash(state: Any) -> str:
    """SHA-256 of the canonical JSON of ``state``, in hex (64 characters)."""
    return hashlib.sha256(canonical_json(state).encode("utf-8", "surrogatepass")).hexdigest()
