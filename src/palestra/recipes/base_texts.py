"""Lines of text for the nano base: records, lists, prompts and actions, in many styles."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence

from palestra.recipes.base_words import Key, Value, digits, filler, word

_SEPARATORS = (" ", ": ", " = ", " is ", "=")
_ACTION_RULES = (
    'Answer with one action: {"tool_name": "...", "parameters": {...}}',
    'Reply with one call: {"tool_name": "NAME", "parameters": {"KEY": "VALUE"}}',
)


def record_text(rng: random.Random, record: Mapping[Key, Value]) -> str:
    """The record as one line, in one of several styles, with filler words between."""
    if rng.random() < 0.1:
        return json.dumps({key.name: said for key, said in record.items()})
    separator = rng.choice(_SEPARATORS)
    parts = [f"{key.label}{separator}{said}" for key, said in record.items()]
    if rng.random() < 0.3:
        parts.insert(rng.randrange(len(parts) + 1), filler(rng))
    return rng.choice((", ", ", ", "; ", ". ", "\n")).join(parts)


def list_text(rng: random.Random, rows: Sequence[tuple[Value, Value]]) -> str:
    """Named values, the name before its value or behind it throughout."""
    separator, turned = rng.choice((" ", " ", ": ", " is ", "=")), rng.random() < 0.2
    parts = [separator.join(str(part) for part in (row[::-1] if turned else row)) for row in rows]
    return rng.choice((", ", ", ", "; ", "\n")).join(parts)


def shared_lists(rng: random.Random, key: Key, name: str) -> tuple[Value, str]:
    """A value, and two lists of which it is the only common entry."""
    lengths = rng.choice(((1, 2), (2,), (2,), (3,), (5,)))
    count = rng.randint(3, 7)
    drawn = [digits(rng, *lengths) if key.integer or rng.random() < 0.6 else word(rng) for _ in range(count)]
    entries = list(dict.fromkeys(drawn))
    common, split = entries[0], rng.randint(0, len(entries))
    lists = [[common, *entries[1:split]], [common, *entries[max(split, 1) :]]]
    for one in lists:
        rng.shuffle(one)
    joiner = rng.choice((" ", " ", ", "))
    texts = [f"{label}: {joiner.join(one)}" for label, one in zip((name, word(rng)), lists, strict=True)]
    return int(common) if key.integer else common, rng.choice(("; ", ". ", "\n")).join(texts)


def system_text(rng: random.Random, rules: str, schema: Mapping[str, Sequence[Key]]) -> str:
    """A system prompt in the shape worlds use: instructions, the tools, the action's form."""
    lines = [rules] if rules else []
    if rng.random() < 0.2:
        lines.insert(0, filler(rng))
    lines.append(rng.choice(("Tools:", "You may call:", "Use these tools:")))
    for name, keys in schema.items():
        about = f": {filler(rng)}" if rng.random() < 0.3 else ""
        lines.append(f"- {name}({', '.join(key.declared() for key in keys)}){about}")
    if rng.random() < 0.7:
        lines.append(rng.choice(_ACTION_RULES))
    return "\n".join(lines)


def action_text(name: str, parameters: Mapping[str, Value]) -> str:
    """The canonical JSON action."""
    return json.dumps({"tool_name": name, "parameters": parameters})


def repetition(rng: random.Random, length: int, vocabulary: Sequence[int]) -> list[int]:
    """A random span of ``vocabulary`` repeated to ``length``, its period drawn anew each time."""
    span = [rng.choice(vocabulary) for _ in range(rng.randint(3, 40))]
    return (span * (length // len(span) + 1))[:length]
