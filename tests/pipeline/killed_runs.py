"""Runs in processes of their own that are killed with SIGKILL at a chosen point."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from palestra.store import RunFolder

UNREPRODUCIBLE = ("time/", "tokens_per_second/")


def start(*arguments: str) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-m", "palestra.cli", "train", *arguments],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env={**os.environ, "GOMP_SPINCOUNT": "0"},
    )


def stage_reached(run: Path, stage: str, update: int) -> bool:
    """Whether the run is inside a stage, past one of its updates."""
    if stage == "collect":
        return (run / "manifest.json").exists()
    if stage == "gate":
        return (run / "stages" / "sft.json").exists()
    if stage == "evaluate":
        return (run / "stages" / "mine.json").exists()
    lines = (run / "metrics.jsonl").read_text().splitlines() if (run / "metrics.jsonl").exists() else []
    rows = [json.loads(line) for line in lines if line.endswith("}")]
    return any(row["stage"] == stage and row["update"] >= update for row in rows)


def kill_inside(run: Path, stage: str, update: int, *arguments: str) -> None:
    process = start(*arguments)
    deadline = time.monotonic() + 90
    while not stage_reached(run, stage, update):
        assert process.poll() is None, process.stderr.read().decode()
        assert time.monotonic() < deadline, f"never reached {stage}"
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()


def finish(*arguments: str) -> None:
    process = start(*arguments)
    _, errors = process.communicate(timeout=180)
    assert process.returncode == 0, errors.decode()


def metrics(run: Path) -> list[dict]:
    rows, torn = RunFolder.open(run).read_metrics()
    assert torn == []
    return [{k: v for k, v in row.items() if not k.startswith(UNREPRODUCIBLE)} for row in rows]
