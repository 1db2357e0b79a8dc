"""Tasks in a file: one JSON object a line, with the fields of ``Task``.

For tasks that were collected rather than generated, and to freeze an evaluation set. The one surprising
choice: a record that cannot be read is named in a warning and left out; one torn line must not cost a file.
"""

from __future__ import annotations

import json
import random
import warnings
from collections.abc import Collection, Iterable, Mapping
from dataclasses import MISSING, asdict, fields
from pathlib import Path
from typing import Any, get_args

from palestra.errors import ConfigError
from palestra.types import Split, Task

_FIELDS = {f.name for f in fields(Task)}
_REQUIRED = {f.name for f in fields(Task) if f.default is MISSING and f.default_factory is MISSING}
_TYPES: Mapping[str, type | tuple[type, ...]] = {
    "id": str,
    "env": str,
    "split": str,
    "seed": int,
    "prompt": str,
    "data": dict,
    "tools": list,
    "optimal_turns": (int, type(None)),
    "content_hash": str,
}


class JsonlTasks:
    """Tasks read from a JSONL file, in the order of the file."""

    def __init__(self, path: str | Path) -> None:
        """Read all tasks of ``path``; a record that cannot be read is skipped with a warning.

        Raises:
            ConfigError: if the file is missing or holds no task.
        """
        self.path = Path(path)
        if not self.path.is_file():
            raise ConfigError(f"no task file {self.path}: give the path of a JSONL file")
        self.tasks: dict[Split, list[Task]] = {}
        seen: set[str] = set()
        for number, line in enumerate(self.path.read_bytes().splitlines(), start=1):
            if not line.strip():
                continue
            try:
                task = task_from_json(line.decode("utf-8"))
                if task.id in seen:
                    raise ValueError(f"id {task.id!r} came before")
            except ValueError as error:
                warnings.warn(f"{self.path}:{number}: task skipped: {error}", stacklevel=2)
                continue
            seen.add(task.id)
            self.tasks.setdefault(task.split, []).append(task)
        if not seen:
            raise ConfigError(
                f"{self.path} holds no task: each line must be a JSON object with {sorted(_REQUIRED)}"
            )

    def take(self, split: Split, n: int, *, exclude: Collection[str] = ()) -> list[Task]:
        """The first ``n`` tasks of a split whose content hash is not in ``exclude``.

        Raises:
            ConfigError: if there are fewer.
        """
        tasks = [task for task in self._split(split) if task.content_hash not in exclude]
        if n > len(tasks):
            raise ConfigError(f"{self.path} has {len(tasks)} {split} tasks to take, fewer than {n}")
        return tasks[:n]

    def sample(self, split: Split, n: int, rng: random.Random) -> list[Task]:
        """``n`` different tasks of a split, drawn with ``rng``.

        Raises:
            ConfigError: if there are fewer.
        """
        tasks = self._split(split)
        if n > len(tasks):
            raise ConfigError(f"{self.path} has {len(tasks)} {split} tasks, fewer than {n}")
        return rng.sample(tasks, n)

    def _split(self, split: Split) -> list[Task]:
        if split not in self.tasks:
            raise ConfigError(f"{self.path} has no {split} tasks; it has {', '.join(sorted(self.tasks))}")
        return self.tasks[split]


def task_to_json(task: Task) -> str:
    """A task as one line of JSON."""
    return json.dumps(asdict(task), ensure_ascii=False, sort_keys=True)


def task_from_json(line: str) -> Task:
    """A task from one line of JSON.

    Raises:
        ValueError: if it is no JSON object, lacks a field, has an unknown one, or one of a wrong type.
    """
    record: Any = json.loads(line)
    if not isinstance(record, dict):
        raise ValueError(f"a task is a JSON object, not a {type(record).__name__}")
    missing, unknown = _REQUIRED - record.keys(), record.keys() - _FIELDS
    if missing or unknown:
        raise ValueError(f"missing fields {sorted(missing)}, unknown fields {sorted(unknown)}")
    for name, value in record.items():
        if not isinstance(value, _TYPES[name]) or isinstance(value, bool):
            raise ValueError(f"field {name!r} cannot be {value!r}")
    if record["split"] not in get_args(Split):
        raise ValueError(f"split {record['split']!r} is none of {get_args(Split)}")
    return Task(**{**record, "tools": tuple(record.get("tools", ()))})


def write_tasks(path: str | Path, tasks: Iterable[Task]) -> None:
    """Write tasks to a JSONL file that ``JsonlTasks`` reads back equal; it appears whole or not at all."""
    target = Path(path)
    unfinished = target.with_name(target.name + ".part")
    unfinished.write_text("".join(task_to_json(task) + "\n" for task in tasks), encoding="utf-8")
    unfinished.replace(target)
