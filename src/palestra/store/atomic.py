"""Files and folders that appear whole or not at all.

Everything the store keeps, and every checkpoint, is written here: to a temporary name beside the target,
synced to the disk, renamed. The one surprising choice: the writer's process id is part of the temporary name,
so that opening a run clears what a crash left behind and never what a living process is writing.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

from palestra.errors import StoreError

_LEFTOVER = re.compile(r"(?P<target>.+)\.(?P<kind>tmp|old)-(?P<pid>\d+)-[0-9a-f]{8}")


def write_atomic(path: str | Path, data: bytes | str) -> None:
    """Replace the file ``path`` by ``data``; text is written as UTF-8 with its newlines as they are.

    Raises:
        StoreError: if it cannot be written, such as on a full disk. The old file is then untouched.
    """
    target = Path(path)
    unfinished = _beside(target, "tmp")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with open(unfinished, "xb") as file:
            file.write(data.encode("utf-8") if isinstance(data, str) else data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(unfinished, target)
        _sync_folder(target.parent)
    except OSError as error:
        raise StoreError(f"cannot write {target}: {error.strerror or error}") from error
    finally:
        with suppress(OSError):
            unfinished.unlink()


def write_folder(path: str | Path, fill: Callable[[Path], None]) -> None:
    """Replace the folder ``path`` by what ``fill`` writes into the empty folder it is given.

    Whatever ``fill`` raises leaves the folder that was there before as it was.

    Raises:
        StoreError: if the folder cannot be written.
    """
    target = Path(path)
    unfinished = _beside(target, "tmp")
    try:
        unfinished.mkdir(parents=True)
        fill(unfinished)
        for file in _tree(unfinished):
            _sync(file)
        _swap(unfinished, target)
        _sync_folder(target.parent)
    except StoreError:
        raise
    except OSError as error:
        raise StoreError(f"cannot write {target}: {error.strerror or error}") from error
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def clear_leftovers(root: Path) -> None:
    """Remove what dead writers left unfinished under ``root``; put back a folder they had set aside."""
    for path in list(_tree(root)):
        match = _LEFTOVER.fullmatch(path.name)
        if match is None or not path.exists() or _is_alive(int(match["pid"])):
            continue
        target = path.with_name(match["target"])
        if match["kind"] == "old" and not target.exists():
            path.rename(target)
        elif path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def is_leftover(path: Path) -> bool:
    """Whether ``path`` is something unfinished, which no reader should look at."""
    return _LEFTOVER.fullmatch(path.name) is not None


def _beside(target: Path, kind: str) -> Path:
    return target.with_name(f"{target.name}.{kind}-{os.getpid()}-{secrets.token_hex(4)}")


def _swap(new: Path, target: Path) -> None:
    """Put ``new`` in the place of ``target``, which a folder cannot do in one rename if it is not empty."""
    if not target.exists():
        os.rename(new, target)
        return
    old = _beside(target, "old")
    os.rename(target, old)
    try:
        os.rename(new, target)
    except OSError:
        os.rename(old, target)
        raise
    shutil.rmtree(old, ignore_errors=True)


def _tree(root: Path) -> Iterator[Path]:
    """Everything under ``root``, inner entries first, ``root`` last."""
    for folder, _, files in os.walk(root, topdown=False):
        yield from (Path(folder, name) for name in files)
        yield Path(folder)


def _sync(path: Path) -> None:
    if path.is_dir():
        _sync_folder(path)
        return
    with open(path, "rb") as file:
        os.fsync(file.fileno())


def _sync_folder(path: Path) -> None:
    if os.name != "posix":  # elsewhere a folder cannot be opened, and a rename needs no sync of its own
        return
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _is_alive(pid: int) -> bool:
    if os.name != "posix":  # elsewhere signal 0 is no question but a signal: nothing is cleared there
        return True
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True
