"""World-agnostic text for the nano base: copying, look-up and rules over random schemas.

The base must know how a tool dialogue is written and how to copy a value it has read into the right
parameter, and nothing about any world. So every episode here invents its own tools, keys and values,
and which tool to call is always *said* somewhere in the context (named outright, or by a rule such as
"if status is red use X"), so that the next action can be computed from the text. The surprising choice:
the first updates see plain repetition only, because there attention learns to copy soonest.
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from importlib.resources import files

from palestra.types import Message

WORDS: tuple[str, ...] = tuple(files("palestra.recipes").joinpath("words.txt").read_text("utf-8").split())

_SYLLABLES = ("ba", "ke", "lo", "mi", "nu", "ra", "si", "to", "ve", "zu", "an", "er", "ol", "ist", "und")
_SEPARATORS = (" ", ": ", " = ", " is ", "=")
_ACTION_RULES = (
    'Answer with one action: {"tool_name": "...", "parameters": {...}}',
    'Reply with JSON only: {"tool_name": "...", "parameters": {...}}',
)

Schema = dict[str, tuple[str, ...]]
Record = dict[str, str]


def pseudo_word(rng: random.Random) -> str:
    """A word nobody has seen, of two to four syllables."""
    return "".join(rng.choice(_SYLLABLES) for _ in range(rng.randint(2, 4)))


def word(rng: random.Random) -> str:
    """A common word, or one time in six an invented one."""
    return pseudo_word(rng) if rng.random() < 0.17 else rng.choice(WORDS)


def value(rng: random.Random) -> str:
    """A value worth copying: digits, an id, a word, two words, a time."""
    kind = rng.random()
    if kind < 0.45:
        return "".join(rng.choice("0123456789") for _ in range(rng.choice((1, 2, 2, 3, 4, 5, 5, 6, 7))))
    if kind < 0.65:
        digits = "".join(rng.choice("0123456789") for _ in range(rng.randint(2, 5)))
        return rng.choice("ABCDEFGHKLMPRSTW") + rng.choice(("", "", "-")) + digits
    if kind < 0.8:
        return word(rng)
    if kind < 0.93:
        return f"{word(rng)} {word(rng)}"
    return f"{rng.randint(0, 23)}:{rng.choice(('00', '15', '30', '45'))}"


def identifier(rng: random.Random) -> str:
    """A key or tool name: one or two words."""
    return word(rng) if rng.random() < 0.5 else f"{word(rng)}_{word(rng)}"


def record_text(rng: random.Random, record: Record) -> str:
    """The record as one line, in one of several styles, with filler words between."""
    if rng.random() < 0.15:
        return json.dumps(record)
    separator = rng.choice(_SEPARATORS)
    joiner = rng.choice((", ", "; ", ". ", "\n"))
    parts = [f"{key.replace('_', ' ')}{separator}{text}" for key, text in record.items()]
    if rng.random() < 0.4:
        parts.insert(rng.randrange(len(parts) + 1), filler(rng))
    return joiner.join(parts)


def filler(rng: random.Random) -> str:
    """A few words that mean nothing."""
    return " ".join(word(rng) for _ in range(rng.randint(2, 7)))


def make_schema(rng: random.Random, keys: Sequence[str]) -> Schema:
    """Three to six tools, each taking up to three of ``keys``."""
    count = rng.randint(3, 6)
    return {identifier(rng): tuple(rng.sample(keys, rng.choice((0, 1, 1, 2, 2, 3)))) for _ in range(count)}


def system_text(rng: random.Random, schema: Schema) -> str:
    """A system prompt in the shape worlds use: an instruction, the tools, the action's form."""
    lines = [filler(rng)] if rng.random() < 0.3 else []
    lines.append(rng.choice(("Tools:", "You may call:", "Use these tools:")))
    for name, parameters in schema.items():
        about = f": {filler(rng)}" if rng.random() < 0.15 else ""
        lines.append(f"- {name}({', '.join(parameters)}){about}")
    if rng.random() < 0.5:
        lines.append(rng.choice(_ACTION_RULES))
    return "\n".join(lines)


def action_text(name: str, parameters: Record, numeric: frozenset[str] = frozenset()) -> str:
    """The canonical JSON action; parameters in ``numeric`` are written as numbers where they can be."""
    typed = {
        key: int(text) if key in numeric and text.isdigit() and not text.startswith("0") else text
        for key, text in parameters.items()
    }
    return json.dumps({"tool_name": name, "parameters": typed})


def _choose(rng: random.Random, schema: Schema, record: Record) -> tuple[str, str]:
    """A tool, and text from which a reader can tell that it is the one to call."""
    name = rng.choice(list(schema))
    if rng.random() < 0.8:
        return name, rng.choice(("next {}", "use {}", "now call {}", "then {}")).format(name)
    key = rng.choice(list(record))
    other_name, other_value = rng.choice(list(schema)), value(rng)
    rules = [f"if {key} is {record[key]} use {name}", f"if {key} is {other_value} use {other_name}"]
    if other_value == record[key]:
        rules = rules[:1]
    rng.shuffle(rules)
    return name, "; ".join(rules)


def dialogue(rng: random.Random) -> tuple[Message, ...]:
    """One tool dialogue of three to eight turns whose every action follows from the text before it."""
    keys = list({identifier(rng) for _ in range(rng.randint(4, 7))})
    schema = make_schema(rng, keys)
    numeric = frozenset(rng.sample(keys, 2))
    known: Record = {key: value(rng) for key in rng.sample(keys, rng.randint(2, 4))}
    name, hint = _choose(rng, schema, known)
    texts = [record_text(rng, known), hint]
    rng.shuffle(texts)
    messages = [Message("system", system_text(rng, schema)), Message("user", ". ".join(texts))]
    for _ in range(rng.randint(3, 8)):
        missing = [key for key in schema[name] if key not in known]
        for key in missing:
            known[key] = value(rng)
        if missing:
            update = record_text(rng, {key: known[key] for key in missing})
            last = messages.pop()
            messages.append(Message(last.role, f"{last.content}. {update}"))
        values = {key: known[key] for key in schema[name]}
        messages.append(Message("assistant", action_text(name, values, numeric)))
        fresh = {key: value(rng) for key in rng.sample(keys, rng.choice((1, 1, 2)))}
        known.update(fresh)
        name, hint = _choose(rng, schema, fresh)
        messages.append(Message("tool", f"{record_text(rng, fresh)}. {hint}"))
    return tuple(messages[:-1])


def repetition(rng: random.Random, length: int, vocabulary: Sequence[int]) -> list[int]:
    """A random span of ``vocabulary`` repeated to ``length``, its period drawn anew each time."""
    span = [rng.choice(vocabulary) for _ in range(rng.randint(3, 40))]
    return (span * (length // len(span) + 1))[:length]
