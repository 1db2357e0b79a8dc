"""Groups of trajectories in Parquet: one file a write, one row a trajectory, tokens encoded.

The rollout's groups come in; the viewer, SFT and the hard-example rounds read them back. Ids are int32 lists,
logprobs float32 lists (bit for bit what an engine sampled), texts are stored once. The one surprising choice:
facts, reward parts, tools and the task are JSON text inside the row, because a Parquet struct gives every row
every key and a tool call would come back with arguments the model never wrote.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from palestra.errors import StoreError
from palestra.store.atomic import write_atomic
from palestra.store.codec import readable, to_json, trajectory_from_dict, trajectory_to_dict
from palestra.types import TrajectoryGroup

_IDS = pa.list_(pa.int32())
_TURN = pa.struct(
    {
        "action": pa.string(),
        "observation": pa.string(),
        "facts": pa.string(),
        "finish_reason": pa.string(),
        "env_reward": pa.float64(),
        "reward": pa.float64(),
        "action_ids": _IDS,
        "sampled_logprobs": pa.list_(pa.float32()),
        "observation_ids": _IDS,
        "prompt_ids": _IDS,
    }
)
_SCHEMA = pa.schema(
    {
        "group_id": pa.string(),
        "id": pa.string(),
        "task_id": pa.string(),
        "task": pa.string(),
        "prompt": pa.list_(pa.struct({"role": pa.string(), "content": pa.string(), "tools": pa.string()})),
        "turns": pa.list_(_TURN),
        "stop_reason": pa.string(),
        "success": pa.bool_(),
        "policy": pa.string(),
        "policy_version": pa.int64(),
        "prompt_ids": _IDS,
        "next_prompt_ids": _IDS,
        "milestones": pa.list_(pa.string()),
        "reward": pa.float64(),
        "reward_parts": pa.string(),
        "error": pa.string(),
        "retries": pa.int64(),
        "seconds": pa.float64(),
    }
)


def write_trajectory_file(path: str | Path, groups: Sequence[TrajectoryGroup]) -> None:
    """Write the groups to one Parquet file, whole or not at all. Half surrogate pairs in texts become U+FFFD.

    Raises:
        StoreError: if an id comes twice, a group is empty or mixes tasks, a value does not fit, or the file
            cannot be written.
    """
    _check(groups)
    rows = [_row(group, attempt) for group in groups for attempt in range(len(group.trajectories))]
    try:
        table = pa.Table.from_pylist(rows, schema=_SCHEMA)
    except (pa.ArrowException, OverflowError) as error:
        raise StoreError(f"cannot store these trajectories in {path}: {error}") from error
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, compression="zstd", write_statistics=False, write_page_checksum=True)
    write_atomic(path, sink.getvalue().to_pybytes())


def read_trajectory_file(path: str | Path) -> list[TrajectoryGroup]:
    """The groups of one file, in the order they were written.

    Raises:
        StoreError: if the file is missing, torn or not of this form.
    """
    return decode_groups(read_shard(path), path)


def read_shard(path: str | Path) -> bytes:
    """A trajectory file as it lies on the disk, for ``decode_groups``.

    Raises:
        StoreError: if it is missing or cannot be read.
    """
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise StoreError(f"cannot read trajectories from {path}: {error}") from error


def decode_groups(data: bytes, path: str | Path) -> list[TrajectoryGroup]:
    """The groups in the bytes of a trajectory file; ``path`` says in errors where they are from.

    Raises:
        StoreError: if the bytes are torn or not of this form.
    """
    try:
        with pq.ParquetFile(pa.BufferReader(data), page_checksum_verification=True) as file:
            rows = file.read().to_pylist()
        return [_group(key, list(attempts)) for key, attempts in groupby(rows, lambda row: row["group_id"])]
    except (pa.ArrowException, OSError, KeyError, TypeError, ValueError) as error:
        raise StoreError(f"cannot read trajectories from {path}: {error}") from error


def read_whole_files(paths: Sequence[Path]) -> Iterator[TrajectoryGroup]:
    """The groups of several files; one that cannot be read is named in a warning and skipped."""
    for path in paths:
        try:
            groups = read_trajectory_file(path)
        except StoreError as error:
            warnings.warn(f"skipped: {error}", stacklevel=2)
            continue
        yield from groups


def _check(groups: Sequence[TrajectoryGroup]) -> None:
    seen: set[str] = set()
    for group in groups:
        if group.id in seen or not group.trajectories:
            raise StoreError(
                f"group {group.id!r} {'comes twice' if group.id in seen else 'has no trajectory'}"
            )
        seen.add(group.id)
    seen.clear()
    for group in groups:
        for trajectory in group.trajectories:
            if trajectory.id in seen:
                raise StoreError(f"trajectory id {trajectory.id!r} comes twice: ids are unique in a run")
            if trajectory.task != group.task:
                raise StoreError(
                    f"trajectory {trajectory.id!r} is of another task than its group {group.id!r}"
                )
            seen.add(trajectory.id)


def _row(group: TrajectoryGroup, attempt: int) -> dict[str, Any]:
    trajectory = group.trajectories[attempt]
    row = trajectory_to_dict(trajectory)
    for turn in row["turns"]:
        turn["facts"] = to_json(turn["facts"])
    for message in row["prompt"]:
        if "tools" in message:
            message["tools"] = to_json(message["tools"])
    row["reward_parts"] = to_json(row["reward_parts"])
    row["task"] = to_json(row["task"])
    encodable: dict[str, Any] = _encodable({**row, "group_id": group.id, "task_id": trajectory.task.id})
    return encodable


def _group(group_id: str, rows: list[dict[str, Any]]) -> TrajectoryGroup:
    trajectories = []
    for row in rows:
        record = {key: value for key, value in row.items() if key not in ("group_id", "task_id")}
        record["task"] = json.loads(row["task"])
        record["reward_parts"] = json.loads(row["reward_parts"])
        record["prompt"] = [
            {**each, "tools": json.loads(each.get("tools") or "[]")} for each in row["prompt"]
        ]
        record["turns"] = [{**turn, "facts": json.loads(turn["facts"])} for turn in row["turns"]]
        trajectories.append(trajectory_from_dict(record))
    return TrajectoryGroup(group_id, trajectories[0].task, tuple(trajectories))


def _encodable(value: Any) -> Any:
    """``value`` with half surrogate pairs replaced; lists of numbers pass untouched."""
    if isinstance(value, str):
        return readable(value)
    if isinstance(value, dict):
        return {key: _encodable(item) for key, item in value.items()}
    if isinstance(value, list) and value and isinstance(value[0], str | dict):
        return [_encodable(item) for item in value]
    return value
