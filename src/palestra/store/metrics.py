"""JSON lines: the append-only files of a run (metrics, alarms, changes).

The training loop appends a row an update; the viewer and the report read them while the run goes on. The
one surprising choice: a line that a crash tore is not repaired. The next row starts on a line of its own, so
exactly the torn record is lost, and readers are told which line it was.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from palestra.errors import StoreError
from palestra.store.atomic import write_atomic
from palestra.store.codec import to_json


def append_row(path: Path, row: Mapping[str, Any]) -> None:
    """Add one row and flush it. NumPy scalars become numbers, NaN and infinity null.

    Raises:
        StoreError: if the row is not plain data or cannot be written.
    """
    line = to_json(row) + "\n"
    try:
        with open(path, "a+b") as file:
            if file.seek(0, os.SEEK_END) > 0:
                file.seek(-1, os.SEEK_END)
                line = line if file.read(1) == b"\n" else "\n" + line
            file.write(line.encode("utf-8"))
    except OSError as error:
        raise StoreError(f"cannot append to {path}: {error.strerror or error}") from error


def read_rows(path: Path) -> tuple[list[dict[str, Any]], list[int]]:
    """All whole rows in order, and the numbers (from 1) of the lines that are torn. A missing file has none.

    Raises:
        StoreError: if the file cannot be read.
    """
    rows: list[dict[str, Any]] = []
    torn: list[int] = []
    try:
        lines = path.read_bytes().split(b"\n") if path.exists() else []
    except OSError as error:
        raise StoreError(f"cannot read {path}: {error.strerror or error}") from error
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        row = _parse(line)
        if row is None:
            torn.append(number)
        else:
            rows.append(row)
    return rows, torn


def keep_rows(path: Path, predicate: Callable[[Mapping[str, Any]], bool]) -> None:
    """Rewrite the file with the rows that satisfy ``predicate``; torn lines go too.

    Raises:
        StoreError: if it cannot be written; the file is then as before.
    """
    if path.exists():
        rows, _ = read_rows(path)
        write_atomic(path, "".join(to_json(row) + "\n" for row in rows if predicate(row)))


def _parse(line: bytes) -> dict[str, Any] | None:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return row if isinstance(row, dict) else None
