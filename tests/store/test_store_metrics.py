"""JSON lines: a crash loses the torn record and no other."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from palestra.errors import StoreError
from palestra.store import RunFolder


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    return RunFolder.create(tmp_path / "run", config_text="", resolved={}, command="")


def test_rows_come_back_in_order(run: RunFolder) -> None:
    assert run.read_metrics() == ([], [])
    for update in range(3):
        run.append_metrics({"update": update, "parts": {"outcome": 0.5}})
    assert run.read_metrics() == ([{"update": n, "parts": {"outcome": 0.5}} for n in range(3)], [])


def test_numpy_numbers_become_plain_and_what_is_no_number_null(run: RunFolder) -> None:
    row = {
        "a": np.float32(0.5),
        "b": np.int64(3),
        "c": np.bool_(True),
        "d": np.array([1.0, np.nan]),
        "e": 1e999,
    }
    run.append_metrics(row)
    expected = {"a": 0.5, "b": 3, "c": True, "d": [1.0, None], "e": None}
    assert json.loads((run.path / "metrics.jsonl").read_text()) == expected


def test_a_value_that_is_no_data_is_refused_and_writes_nothing(run: RunFolder) -> None:
    with pytest.raises(StoreError, match="object"):
        run.append_metrics({"loss": object()})
    assert run.read_metrics() == ([], [])


def test_after_a_torn_line_only_the_torn_record_is_lost(run: RunFolder) -> None:
    run.append_metrics({"update": 0})
    with open(run.path / "metrics.jsonl", "ab") as file:
        file.write(b'{"update": 1, "lo')
    run.append_metrics({"update": 2})
    run.append_metrics({"update": 3})
    rows, torn = run.read_metrics()
    assert [row["update"] for row in rows] == [0, 2, 3]
    assert torn == [2]


def test_a_row_that_lost_only_its_newline_is_kept(run: RunFolder) -> None:
    (run.path / "metrics.jsonl").write_bytes(b'{"update": 0}')
    run.append_metrics({"update": 1})
    assert run.read_metrics() == ([{"update": 0}, {"update": 1}], [])


def test_lines_of_rubbish_are_torn_lines(run: RunFolder) -> None:
    (run.path / "metrics.jsonl").write_bytes(b'\xff\xfe\n[1]\n{"update": 0}\n\0\0\0')
    assert run.read_metrics() == ([{"update": 0}], [1, 2, 4])


def test_a_resumed_run_drops_the_rows_past_its_checkpoint(run: RunFolder) -> None:
    for update in range(5):
        run.append_metrics({"update": update})
        run.append_alarm({"update": update, "name": "collapse"})
        run.append_change({"update": update, "setting": "rl.learning_rate"})
    run.keep_metrics(lambda row: row["update"] <= 2)
    run.keep_notes(lambda row: row["update"] <= 1)
    run.append_metrics({"update": 3})
    assert [row["update"] for row in run.read_metrics()[0]] == [0, 1, 2, 3]
    assert [row["update"] for row in run.read_alarms()[0]] == [0, 1]
    assert [row["update"] for row in run.read_changes()[0]] == [0, 1]


def test_half_a_surrogate_pair_in_a_text_comes_back(run: RunFolder) -> None:
    run.append_metrics({"note": "\ud83d è"})
    assert run.read_metrics() == ([{"note": "\ud83d è"}], [])
