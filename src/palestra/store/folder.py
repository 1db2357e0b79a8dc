"""The run folder: one folder that holds everything about a run.

The pipeline creates it, every stage writes into it, the viewer and a resumed run read it::

    config.yaml resolved.yaml manifest.json    what was asked, what that meant, with which versions
    metrics.jsonl alarms.jsonl changes.jsonl   what happened, a row at a time
    trajectories/<stage>/<name>.parquet        every episode
    checkpoints/<stage>/step-N/                weights and optimiser to resume from
    stages/<stage>.json                        finished stages, which are not repeated
    eval/<name>.json report.html               what came out

The one surprising choice: at creation the manifest is written last, so what has a manifest is a whole run.
"""

from __future__ import annotations

import hashlib
import json
import platform
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import yaml

from palestra.errors import StoreError
from palestra.store.atomic import clear_leftovers, is_leftover, write_atomic
from palestra.store.codec import plain, to_json
from palestra.store.metrics import append_row, keep_rows, read_rows
from palestra.store.trajectories import read_whole_files, write_trajectory_file
from palestra.types import TrajectoryGroup

FORMAT_VERSION = 1
"""Of the files in a run folder. A newer folder is refused, never guessed at."""

_LIBRARIES = (
    "gymnasium",
    "numpy",
    "pyarrow",
    "pydantic",
    "safetensors",
    "tokenizers",
    "torch",
    "transformers",
)
_NAME = re.compile(r"\w[\w.+=-]{0,99}", re.ASCII)


@dataclass(frozen=True)
class RunFolder:
    """A run on disk. Make one with ``RunFolder.create`` or ``RunFolder.open``."""

    path: Path
    """The folder."""
    manifest: Mapping[str, Any]
    """``manifest.json`` as read."""

    @classmethod
    def create(
        cls, path: str | Path, *, config_text: str, resolved: Mapping[str, Any], command: str
    ) -> RunFolder:
        """Start a run: its configuration as written and as resolved, and the command that started it.

        Raises:
            StoreError: if ``path`` is a file, holds a run already or anything else, or cannot be written.
        """
        folder = Path(path)
        check_free(folder)
        write_atomic(folder / "config.yaml", config_text)
        text = yaml.safe_dump(plain(resolved), sort_keys=False, allow_unicode=True)
        write_atomic(folder / "resolved.yaml", text)
        manifest = _new_manifest(config_text, command)
        write_atomic(folder / "manifest.json", to_json(manifest, indent=2) + "\n")
        return cls(folder, manifest)

    @classmethod
    def open(cls, path: str | Path) -> RunFolder:
        """Open a run and clear what a crash left unfinished in it.

        Raises:
            StoreError: if there is no run at ``path``, its manifest is torn, or a newer palestra wrote it.
        """
        folder = Path(path)
        if not folder.is_dir():
            raise StoreError(f"no run folder {folder}")
        if not (folder / "manifest.json").is_file():
            raise StoreError(f"{folder} is not a run: it has no manifest.json")
        manifest = _read_json(folder / "manifest.json")
        found = manifest.get("format_version")
        if not isinstance(found, int):
            raise StoreError(f"{folder / 'manifest.json'} is not the manifest of a run: no format_version")
        if found > FORMAT_VERSION:
            raise StoreError(
                f"{folder} has run format {found}, written by palestra {manifest.get('palestra')}; this "
                f"palestra reads formats up to {FORMAT_VERSION}: upgrade palestra"
            )
        clear_leftovers(folder)
        return cls(folder, manifest)

    def config_text(self) -> str:
        """``config.yaml`` as it was written by the user."""
        return _read_text(self.path / "config.yaml")

    def resolved(self) -> dict[str, Any]:
        """``resolved.yaml``: the whole configuration with defaults and overrides applied."""
        path = self.path / "resolved.yaml"
        try:
            return dict(yaml.safe_load(_read_text(path)))
        except (yaml.YAMLError, TypeError) as error:
            raise StoreError(f"{path} is torn: {error}") from error

    def append_metrics(self, row: Mapping[str, Any]) -> None:
        """Add a row to ``metrics.jsonl``; NaN and infinity become null."""
        append_row(self.path / "metrics.jsonl", row)

    def read_metrics(self) -> tuple[list[dict[str, Any]], list[int]]:
        """The rows of ``metrics.jsonl`` and the numbers (from 1) of torn lines, which are not among them."""
        return read_rows(self.path / "metrics.jsonl")

    def keep_metrics(self, predicate: Callable[[Mapping[str, Any]], bool]) -> None:
        """Keep the rows that satisfy ``predicate``: a resumed run drops those past its checkpoint."""
        keep_rows(self.path / "metrics.jsonl", predicate)

    def append_alarm(self, alarm: Mapping[str, Any]) -> None:
        """Add an alarm to ``alarms.jsonl``."""
        append_row(self.path / "alarms.jsonl", alarm)

    def read_alarms(self) -> tuple[list[dict[str, Any]], list[int]]:
        """The alarms and the numbers of torn lines."""
        return read_rows(self.path / "alarms.jsonl")

    def append_change(self, change: Mapping[str, Any]) -> None:
        """Add to ``changes.jsonl`` a setting that training changed by itself, and why."""
        append_row(self.path / "changes.jsonl", change)

    def read_changes(self) -> tuple[list[dict[str, Any]], list[int]]:
        """The changes and the numbers of torn lines."""
        return read_rows(self.path / "changes.jsonl")

    def keep_notes(self, predicate: Callable[[Mapping[str, Any]], bool]) -> None:
        """Keep the alarms and changes that satisfy ``predicate``."""
        for name in ("alarms.jsonl", "changes.jsonl"):
            keep_rows(self.path / name, predicate)

    def write_groups(self, stage: str, name: str, groups: Sequence[TrajectoryGroup]) -> None:
        """Write ``trajectories/<stage>/<name>.parquet``, whole or not at all.

        A file is never edited; a resumed stage that collects again under the same name replaces it whole.

        Raises:
            StoreError: as ``write_trajectory_file``, or if ``stage`` or ``name`` is no plain name.
        """
        write_trajectory_file(self.trajectory_file(stage, name), groups)

    def read_groups(self, stage: str, name: str | None = None) -> Iterator[TrajectoryGroup]:
        """The groups of a stage, file by file in natural order, or those of one of its files.

        A file that cannot be read is named in a warning and skipped.
        """
        if name is None:
            return read_whole_files(self.trajectory_files(stage))
        return read_whole_files([self.trajectory_file(stage, name)])

    def trajectory_file(self, stage: str, name: str) -> Path:
        """Where ``write_groups`` puts what it is given.

        Raises:
            StoreError: if ``stage`` or ``name`` is no plain name.
        """
        return self.path / "trajectories" / _name(stage) / f"{_name(name)}.parquet"

    def trajectory_stages(self) -> list[str]:
        """The stages that have trajectories, in natural order."""
        folders = [path for path in (self.path / "trajectories").glob("*") if path.is_dir()]
        return [path.name for path in sorted(folders, key=_natural)]

    def stage_of(self, episode_id: str) -> str | None:
        """The stage that has an episode, by the beginning of its id: the longest name that fits.

        Example: ``rl/12/3/0`` is in ``rl``, ``eval-rl-greedy/3/0`` in ``eval-rl``.
        """
        first = episode_id.split("/", 1)[0]
        fitting = [name for name in self.trajectory_stages() if f"{first}-".startswith(f"{name}-")]
        return max(fitting, key=len, default=None)

    def trajectory_files(self, stage: str) -> list[Path]:
        """The Parquet files of a stage, ``update-2`` before ``update-10``. None is no error."""
        return sorted((self.path / "trajectories" / _name(stage)).glob("*.parquet"), key=_natural)

    def finish_stage(self, name: str, result: Mapping[str, Any]) -> None:
        """Mark a stage as finished, with its small result."""
        write_atomic(self.path / "stages" / f"{_name(name)}.json", to_json(result, indent=2) + "\n")

    def stage_result(self, name: str) -> dict[str, Any] | None:
        """The result of a finished stage; None if it has not finished."""
        path = self.path / "stages" / f"{_name(name)}.json"
        return _read_json(path) if path.exists() else None

    def write_eval(self, name: str, values: Mapping[str, Any]) -> None:
        """Write ``eval/<name>.json``."""
        write_atomic(self.path / "eval" / f"{_name(name)}.json", to_json(values, indent=2) + "\n")

    def read_evals(self) -> dict[str, dict[str, Any]]:
        """All evaluations by name, in natural order; an unreadable one is named in a warning and skipped."""
        evals = {}
        for path in sorted((self.path / "eval").glob("*.json"), key=_natural):
            try:
                evals[path.stem] = _read_json(path)
            except StoreError as error:
                warnings.warn(f"skipped: {error}", stacklevel=2)
        return evals


def check_free(folder: Path) -> None:
    """Refuse a place where something is.

    Raises:
        StoreError: a file, a run, or a folder with something else in it; or no path at all.
    """
    if "\0" in str(folder):
        raise StoreError(f"{str(folder)!r} is no path: it holds a character of code 0")
    if folder.exists() and not folder.is_dir():
        raise StoreError(f"{folder} is a file: give the path of a folder")
    if (folder / "manifest.json").exists():
        raise StoreError(
            f"{folder} already holds a run: use --resume to go on with it, or choose another folder"
        )
    if folder.is_dir() and any(not is_leftover(path) for path in folder.iterdir()):
        raise StoreError(f"{folder} is not empty and is not a run: choose another folder")


def _new_manifest(config_text: str, command: str) -> dict[str, Any]:
    return {
        "format_version": FORMAT_VERSION,
        "palestra": _version("palestra"),
        "python": platform.python_version(),
        "libraries": {name: _version(name) for name in _LIBRARIES},
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": command,
        "config_sha256": hashlib.sha256(config_text.encode("utf-8")).hexdigest(),
    }


def _version(library: str) -> str | None:
    try:
        return version(library)
    except PackageNotFoundError:
        return None


def _name(name: str) -> str:
    """``name`` if it can only mean a file of its own inside the run.

    Raises:
        StoreError: if it could reach elsewhere or is no name at all.
    """
    if not _NAME.fullmatch(name):
        raise StoreError(f"{name!r} is no name for a part of a run: use ASCII letters, digits and . _ + = -")
    return name


def _natural(path: Path) -> list[tuple[int, str]]:
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", path.name)]


def _read_text(path: Path) -> str:
    try:
        return path.read_bytes().decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise StoreError(f"cannot read {path}: {error}") from error


def _read_json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(_read_text(path))
    except ValueError as error:
        raise StoreError(f"{path} is torn: {error}") from error
    if not isinstance(value, dict):
        raise StoreError(f"{path} is torn: it holds no JSON object")
    return value
