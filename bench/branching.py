"""Many runs from one SFT policy: shared by the benchmarks that compare settings of reinforcement learning."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

SHORT_TRAINING = (
    "policy.threads=1",
    "mine.rounds=0",
    "rl.updates=15",
    "rl.tasks_per_update=32",
    "rl.group_size=4",
    "rl.validate_every=3",
    "credit.batch_share=0.5",
    "evaluation.sampled=false",
)
"""Settings of a quickstart in one thread, with 15 updates of 128 episodes."""
QUICK_TRAINING = (
    "collect.tasks=24",
    "sft.epochs=1",
    "gate.min_format_compliance=0",
    "gate.min_success_at_group=0",
    "rl.updates=1",
)
"""On top of these for a run that only shows that the script works."""


def palestra(*arguments: object, log: Path) -> None:
    """Run the command; its output goes to a log."""
    command = [sys.executable, "-m", "palestra.cli", *map(str, arguments)]
    print("$", " ".join(["palestra", *command[3:]]), flush=True)
    with log.open("a") as file:
        subprocess.run(command, check=True, stdout=file, stderr=subprocess.STDOUT)


def branch(base: Path, path: Path, create: Callable[[Path], object]) -> None:
    """A run at ``path`` that starts where the run ``base`` has imitated; ``create`` makes its folder.

    It is made aside and renamed, so what is at ``path`` is whole.
    """
    aside = path.with_name(f".{path.name}")
    shutil.rmtree(aside, ignore_errors=True)
    create(aside)
    for part in ("trajectories", "checkpoints", "stages"):
        shutil.copytree(base / part, aside / part)
    shutil.copy(base / "metrics.jsonl", aside)
    aside.rename(path)
