"""Trajectories as plain dicts, and any value as plain JSON: the form in which records leave Python.

Used by the Parquet files of the store and by whoever saves single trajectories as JSON lines. The one
surprising choice: NaN and infinity become None, for JSON has neither and all they can say is "not measured".
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import numpy as np

from palestra.errors import StoreError
from palestra.types import Facts, Message, StopReason, Task, ToolSpec, Trajectory, Turn


def trajectory_to_dict(trajectory: Trajectory) -> dict[str, Any]:
    """The trajectory as dicts, lists and plain values that ``json.dumps`` takes.

    Raises:
        StoreError: if the world put a value into its facts or its task that is no plain data.
    """
    record = _shallow(trajectory)
    record["task"] = plain(_shallow(trajectory.task))
    record["prompt"] = [_message_to_dict(message) for message in trajectory.prompt]
    record["turns"] = [_turn_to_dict(turn) for turn in trajectory.turns]
    record["stop_reason"] = trajectory.stop_reason.value
    record["prompt_ids"] = list(trajectory.prompt_ids)
    record["next_prompt_ids"] = list(trajectory.next_prompt_ids)
    record["milestones"] = list(trajectory.milestones)
    record["reward_parts"] = plain(trajectory.reward_parts)
    record["reward"] = plain(trajectory.reward)
    return record


def trajectory_from_dict(record: Mapping[str, Any]) -> Trajectory:
    """The trajectory that ``trajectory_to_dict`` made a dict of.

    Raises:
        StoreError: if a field is missing, unknown or of another form.
    """
    try:
        return Trajectory(
            **{
                **record,
                "task": task_from_dict(record["task"]),
                "prompt": tuple(_message_from_dict(message) for message in record["prompt"]),
                "turns": tuple(_turn_from_dict(turn) for turn in record["turns"]),
                "stop_reason": StopReason(record["stop_reason"]),
                "prompt_ids": tuple(record["prompt_ids"]),
                "next_prompt_ids": tuple(record.get("next_prompt_ids") or ()),
                "milestones": tuple(record["milestones"]),
            }
        )
    except (KeyError, TypeError, ValueError) as error:
        raise StoreError(f"not the record of a trajectory: {type(error).__name__}: {error}") from error


def task_from_dict(record: Mapping[str, Any]) -> Task:
    """A task from its plain dict."""
    return Task(**{**record, "tools": tuple(record["tools"])})


def plain(value: Any) -> Any:
    """``value`` as JSON can hold it: NumPy values as numbers and lists, NaN and infinity as None.

    Raises:
        StoreError: if it holds anything that is not plain data.
    """
    if isinstance(value, np.generic | np.ndarray):
        value = value.tolist()
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    raise StoreError(
        f"a {type(value).__name__} cannot be stored: use numbers, text, lists and dicts, not {value!r}"
    )


def to_json(value: Any, *, indent: int | None = None) -> str:
    """``value`` as JSON text; characters beyond ASCII stay readable, lone surrogates are escaped."""
    text = json.dumps(plain(value), ensure_ascii=False, indent=indent)
    if has_lone_surrogate(text):
        return json.dumps(plain(value), ensure_ascii=True, indent=indent)
    return text


def has_lone_surrogate(text: str) -> bool:
    """Whether ``text`` holds half of a surrogate pair, which UTF-8 cannot encode."""
    return any("\ud800" <= character <= "\udfff" for character in text) if not text.isascii() else False


def readable(text: str) -> str:
    """The text with half surrogate pairs as U+FFFD, since neither files nor tokenizers take them."""
    if not has_lone_surrogate(text):
        return text
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _message_to_dict(message: Message) -> dict[str, Any]:
    """Without a key for tools where there are none, as in records that know no such key."""
    record = {"role": message.role, "content": message.content}
    tools = [plain(_shallow(spec)) for spec in message.tools]
    return {**record, "tools": tools} if tools else record


def _message_from_dict(record: Mapping[str, Any]) -> Message:
    return Message(**{**record, "tools": tuple(ToolSpec(**spec) for spec in record.get("tools") or ())})


def _turn_to_dict(turn: Turn) -> dict[str, Any]:
    record = _shallow(turn)
    record["action"] = str(turn.action)
    record["facts"] = plain(_shallow(turn.facts))
    record["env_reward"], record["reward"] = plain(turn.env_reward), plain(turn.reward)
    for name in ("action_ids", "sampled_logprobs", "observation_ids", "prompt_ids"):
        record[name] = list(record[name])
    return record


def _turn_from_dict(record: Mapping[str, Any]) -> Turn:
    facts = record["facts"]
    return Turn(
        **{
            **record,
            "facts": Facts(
                **{
                    **facts,
                    "new_milestones": tuple(facts["new_milestones"]),
                    "key_records": tuple(facts.get("key_records", ())),
                }
            ),
            "action_ids": tuple(record["action_ids"]),
            "sampled_logprobs": tuple(record["sampled_logprobs"]),
            "observation_ids": tuple(record["observation_ids"]),
            "prompt_ids": tuple(record.get("prompt_ids", ())),
        }
    )


def _shallow(record: Any) -> dict[str, Any]:
    """The fields of a dataclass; ``dataclasses.asdict`` would copy every token one by one."""
    return {item.name: getattr(record, item.name) for item in fields(record)}
