"""Whole or not at all: a full disk, a killed writer and a failing callback leave what was there before."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from palestra.errors import StoreError
from palestra.store import RunFolder, write_atomic, write_folder

WRITER = """
import sys
from pathlib import Path
from palestra.store import write_atomic, write_folder
def fill(folder):
    for name in "ab":
        (folder / name).write_text(str(number) * 20000)
number = 0
while True:
    number += 1
    write_atomic(Path(sys.argv[1]) / "file", str(number) * 200000)
    write_folder(Path(sys.argv[1]) / "folder", fill)
    print(number, flush=True)
"""
FULL_DISK = """
import resource, sys
from palestra.errors import StoreError
from palestra.store import write_atomic, write_folder
from palestra.store.metrics import append_row
from pathlib import Path
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
here = Path(sys.argv[1])
for use in (
    lambda: write_atomic(here / "file", "x" * 5000),
    lambda: write_folder(here / "folder", lambda folder: (folder / "a").write_text("x" * 5000)),
    lambda: append_row(here / "rows.jsonl", {"text": "x" * 5000}),
):
    try:
        use()
    except StoreError as error:
        print(error)
"""


def test_newlines_are_written_as_they_are(tmp_path: Path) -> None:
    write_atomic(tmp_path / "file", "a\r\nb\nè")
    assert (tmp_path / "file").read_bytes() == b"a\r\nb\n\xc3\xa8"


def test_a_full_disk_leaves_the_old_files_and_no_litter(tmp_path: Path) -> None:
    write_atomic(tmp_path / "file", "old")
    write_folder(tmp_path / "folder", lambda folder: write_atomic(folder / "a", "old"))
    (tmp_path / "rows.jsonl").write_text('{"a": 1}\n')
    done = subprocess.run(
        [sys.executable, "-c", FULL_DISK, str(tmp_path)], check=True, capture_output=True, text=True
    )
    messages = done.stdout.splitlines()
    assert len(messages) == 3
    for name, message in zip(("file", "folder", "rows.jsonl"), messages, strict=True):
        assert str(tmp_path / name) in message
        assert "large" in message
    assert (tmp_path / "file").read_text() == "old"
    assert (tmp_path / "folder" / "a").read_text() == "old"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "folder", "rows.jsonl"]


def test_a_callback_that_fails_leaves_the_previous_folder(tmp_path: Path) -> None:
    def fail(folder: Path) -> None:
        (folder / "a").write_text("half")
        raise RuntimeError("no weights")

    write_folder(tmp_path / "step-1", lambda folder: write_atomic(folder / "a", "whole"))
    with pytest.raises(RuntimeError, match="no weights"):
        write_folder(tmp_path / "step-1", fail)
    assert (tmp_path / "step-1" / "a").read_text() == "whole"
    assert [path.name for path in tmp_path.iterdir()] == ["step-1"]


def test_a_folder_is_replaced_by_the_new_one(tmp_path: Path) -> None:
    write_folder(tmp_path / "step-1", lambda folder: write_atomic(folder / "old", ""))
    write_folder(tmp_path / "step-1", lambda folder: write_atomic(folder / "new", ""))
    assert [path.name for path in (tmp_path / "step-1").iterdir()] == ["new"]
    assert [path.name for path in tmp_path.iterdir()] == ["step-1"]


def test_a_folder_under_a_file_is_a_store_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match=str(tmp_path / "file" / "x")):
        write_atomic(tmp_path / "file" / "x", "")
    with pytest.raises(StoreError, match=str(tmp_path / "file" / "x")):
        write_folder(tmp_path / "file" / "x", lambda folder: None)


@pytest.mark.skipif(os.name != "posix", reason="needs SIGKILL")
def test_a_writer_killed_at_any_moment_leaves_only_whole_files(tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path / "run", config_text="", resolved={}, command="")
    for attempt in range(6):
        writer = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(run.path)], stdout=subprocess.PIPE, text=True
        )
        assert writer.stdout is not None
        assert writer.stdout.readline()
        time.sleep(0.003 * attempt)
        writer.send_signal(signal.SIGKILL)
        writer.communicate()
        RunFolder.open(run.path)
        text = (run.path / "file").read_text()
        number = text[: len(text) // 200000]
        assert text == number * 200000
        a, b = ((run.path / "folder" / name).read_text() for name in "ab")
        assert a == b
        assert len(a) == len(str(int(a[: len(a) // 20000]))) * 20000
        names = sorted(path.name for path in run.path.iterdir())
        assert names == ["config.yaml", "file", "folder", "manifest.json", "resolved.yaml"]


def test_a_crash_between_setting_aside_and_replacing_is_healed_at_open(tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path, config_text="", resolved={}, command="")
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    aside = tmp_path / "checkpoints" / f"step-3.old-{dead.pid}-00000000"
    write_atomic(aside / "weights", "whole")
    write_atomic(tmp_path / "checkpoints" / f"step-3.tmp-{dead.pid}-00000000" / "weights", "half")
    RunFolder.open(run.path)
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["step-3"]
    assert (tmp_path / "checkpoints" / "step-3" / "weights").read_text() == "whole"


def test_opening_a_run_leaves_alone_what_a_living_process_is_writing(tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path, config_text="", resolved={}, command="")

    def fill(folder: Path) -> None:
        (folder / "weights").write_text("new")
        RunFolder.open(run.path)

    write_folder(tmp_path / "checkpoints" / "step-1", fill)
    assert (tmp_path / "checkpoints" / "step-1" / "weights").read_text() == "new"
