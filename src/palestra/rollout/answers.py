"""What a world answered, read with suspicion: a value of the wrong kind must not become a reward.

A world of somebody else's, or one in trouble, can answer anything. The surprising choice: nothing is mended
but half surrogate pairs; a number that is no number, or a fact of the wrong type, fails the episode, where
it is seen, instead of the statistics.
"""

from __future__ import annotations

import dataclasses
import math
import numbers
from collections.abc import Mapping
from dataclasses import dataclass
from types import NoneType
from typing import Any, get_args

import numpy as np

from palestra.errors import StoreError
from palestra.store import readable
from palestra.store.codec import plain
from palestra.types import Facts, Message, ParseTier, ToolSpec

_FACTS = tuple(field.name for field in dataclasses.fields(Facts))
_FLAGS = ("valid", "state_changed", "repeated", "success")
_TEXTS = ("error", "tool_name", "fault")


@dataclass(frozen=True, slots=True)
class Step:
    """A step's answer."""

    observation: str
    facts: Facts
    reward: float
    terminated: bool
    truncated: bool


def read_reset(answer: Any, world: Any) -> tuple[Message, ...]:
    """The messages before the first action, from what ``reset`` gave and the world's system prompt.

    A world may have ``schema_tools``, which the model's chat template is to declare with the system prompt.

    Raises:
        TypeError: it is no pair with a text, the system prompt is none, or ``schema_tools`` are no tools.
        ValueError: it is a tuple of another length.
    """
    prompt, _ = answer
    said = _text(world.system_prompt, "system_prompt"), _text(prompt, "the first observation")
    return Message("system", said[0], _tools(getattr(world, "schema_tools", ()))), Message("user", said[1])


def read_step(answer: Any) -> Step:
    """The five values that ``step`` gave, checked; a world that reports no success has its reward at the end.

    Raises:
        TypeError: a value is of the wrong type.
        ValueError: there are not five values, or the reward is not finite.
    """
    observation, reward, terminated, truncated, info = answer
    if not _is_number(reward):
        raise TypeError(f"the reward is {reward!r:.80}, not a number")
    if not math.isfinite(reward):
        raise ValueError(f"the reward is {reward!r}, which is not finite")
    if not isinstance(info, Mapping):
        raise TypeError(f"info is {info!r:.80}, not a mapping")
    over = _flag(terminated, "terminated")
    known = {name: _fact(name, info[name]) for name in _FACTS if name in info}
    known.setdefault("success", over and float(reward) > 0)
    text = _text(observation, "the observation")
    return Step(text, Facts(**known), float(reward), over, _flag(truncated, "truncated"))


def _text(value: Any, what: str) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{what} is {value!r:.80}, not a text")
    return readable(value)


def _tools(value: Any) -> tuple[ToolSpec, ...]:
    if not isinstance(value, tuple | list) or not all(isinstance(each, ToolSpec) for each in value):
        raise TypeError(f"schema_tools are {value!r:.80}, not a tuple of ToolSpec")
    for spec in value:
        _refuse_unstorable(spec.parameters, f"the parameters of tool {spec.name!r:.80}")
    return tuple(value)


def _flag(value: Any, what: str) -> bool:
    if not isinstance(value, bool | np.bool_):
        raise TypeError(f"{what} is {value!r:.80}, not True or False")
    return bool(value)


def _fact(name: str, value: Any) -> Any:
    """A fact as ``Facts`` has it."""
    if name in _FLAGS:
        return _flag(value, name)
    if name == "parameters" and value is not None:
        _refuse_unstorable(value, "the fact 'parameters'")
    right = {
        **dict.fromkeys(_TEXTS, isinstance(value, str | NoneType)),
        "parse_tier": isinstance(value, str) and value in get_args(ParseTier),
        "parameters": isinstance(value, Mapping | NoneType),
        "state_hash": isinstance(value, str),
        "cost": _is_number(value) and math.isfinite(value),
        "new_milestones": _is_texts(value),
        "key_records": _is_texts(value),
    }
    if not right[name]:
        raise TypeError(f"the fact {name!r} is {value!r:.80}")
    return tuple(value) if _is_texts(value) else value


def _refuse_unstorable(parameters: Any, what: str) -> None:
    """Found only when it is stored, such a value would cost the whole batch."""
    try:
        plain(parameters)
    except StoreError as error:
        raise TypeError(f"{what}: {error}") from None


def _is_number(value: Any) -> bool:
    return isinstance(value, numbers.Real | np.number)


def _is_texts(value: Any) -> bool:
    return isinstance(value, tuple | list) and all(isinstance(each, str) for each in value)
