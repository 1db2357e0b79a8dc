"""Runs killed with SIGKILL at random moments against one that was left alone, bit for bit: ``docs/evidence/resume.md``.

    python bench/kill_campaign.py               # 50 kills, 10 damaged checkpoints; 33 minutes beside other work
    python bench/kill_campaign.py --kills 200
    python bench/kill_campaign.py --quick       # 2 kills of one algorithm, writes no page

A run is started, killed with its players after a random time, resumed, killed again, ten times at most, and then left
to end. Every third kill waits on from its moment until a file is being written. After every fifth the newest checkpoint of the
stage is damaged as well; the resumed run must say so, and is not killed before it has. Half of the runs have a critic. All have
a horizon that grows, controls that move and a hard-example round. It ends with one line of JSON: runs that equal the
uninterrupted one (ours), runs compared (peer).
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import Any

from palestra.pipeline.run import STAGES
from palestra.store import RunFolder
from palestra.training import checkpoints

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "evidence" / "resume.md"
FOLDER = ROOT / "runs" / "kill-campaign"
CONFIG = f"""
world: {{name: "{ROOT / "tests" / "pipeline" / "echo_world.py"}:EchoWorld"}}
policy: {{threads: 2, action_tokens: 24}}
rollout: {{max_turns: 3, max_invalid: 9, max_repeats: 9}}
collect: {{tasks: 8, attempts: 2, demonstrations: 8}}
sft: {{epochs: 2, rows_per_update: 4, learning_rate: 0.001}}
gate: {{tasks: 4, min_format_compliance: 0, min_success_at_group: 0}}
rl: {{updates: 8, tasks_per_update: 4, group_size: 4, minibatches: 2, learning_rate: 0.0002,
  final_learning_rate: 0.0002, validate_every: 2, validation_tasks: 4}}
loss: {{kl_target: 0.01, entropy_floor: 0.2}}
curriculum: {{max_turns: [1, 2, 3], after: 3}}
mine: {{rounds: 1, tasks: 16, attempts: 2, updates: 4}}
evaluation: {{tasks: 12}}
"""
TIMED = ("time/", "tokens_per_second/")
KILLS_OF_A_RUN = 10
LONGEST = 900
"""Seconds after which a process that nobody kills hangs, which ends the campaign."""


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def flip_first(path: Path) -> None:
    path.write_bytes(bytes([path.read_bytes()[0] ^ 0xFF]) + path.read_bytes()[1:])


def flip_bit(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) * 2 // 3] ^= 1
    path.write_bytes(data)


DAMAGES: tuple[tuple[str, str, Callable[[Path], None]], ...] = (
    ("one bit in the tensors", "model.safetensors", flip_bit),
    ("cut in half", "optimizer.safetensors", truncate),
    ("no JSON", "state.json", flip_first),
    ("missing", "model.safetensors", Path.unlink),
    ("one bit in the tensors", "critic.safetensors", flip_bit),
    ("cut in half", "model.safetensors", truncate),
    ("missing", "state.json", Path.unlink),
    ("one bit in the tensors", "optimizer.safetensors", flip_bit),
    ("cut in half", "critic.safetensors", truncate),
    ("missing", "hashes.json", Path.unlink),
)


@dataclass
class Broken:
    """What was done to one run, and what came of it."""

    path: Path
    algorithm: str
    places: list[str] = field(default_factory=list)
    """Where each kill fell."""
    writing: int = 0
    """Kills that left an unfinished file."""
    damages: list[str] = field(default_factory=list)
    differences: list[str] = field(default_factory=list)


class Process:
    """One ``palestra train``, in a group of its own, with its own log."""

    def __init__(self, path: Path, algorithm: str, log: Path) -> None:
        """Start a run, or go on with it."""
        resumed = (path / "manifest.json").exists()
        if not resumed:  # a folder without a manifest is no run yet
            shutil.rmtree(path, ignore_errors=True)
        source = [path, "--resume"] if resumed else [FOLDER / f"{algorithm}.yaml", "--out", path]
        self.run, self.log = path, log
        with log.open("w") as file:
            self.popen = subprocess.Popen(
                [sys.executable, "-m", "palestra.cli", "train", *map(str, source)],
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env={**os.environ, "GOMP_SPINCOUNT": "0"},
            )

    def said(self) -> str:
        """Its output so far."""
        return self.log.read_text(encoding="utf-8", errors="replace")

    def says(self, text: str) -> bool:
        """Wait until it says something; whether it did."""
        while text not in self.said() and not self.ends_within(0.01):
            pass
        return text in self.said()

    def ends_within(self, seconds: float) -> bool:
        """Wait for its end so long; whether it came."""
        with suppress(subprocess.TimeoutExpired):
            self.popen.wait(seconds)
        return self.popen.returncode is not None

    def is_writing(self) -> bool:
        """Whether there is a file that it has not finished."""
        names = (name for _, *found in os.walk(self.run) for some in found for name in some)
        return any(f"-{self.popen.pid}-" in name for name in names)

    def kill(self) -> str:
        """End it and its players at once; the stage that it was in."""
        os.killpg(self.popen.pid, signal.SIGKILL)
        self.popen.wait()
        if "Run: " not in self.said():
            return "starting"
        return next(
            (name for name in STAGES if not (self.run / "stages" / f"{name}.json").exists()), "report"
        )


def left_alone(algorithm: str) -> float:
    """The run that the others must equal; the seconds it took."""
    settings = f"rl: {{algorithm: {algorithm}, "
    (FOLDER / f"{algorithm}.yaml").write_text(CONFIG.replace("rl: {", settings), encoding="utf-8")
    started = time.monotonic()
    process = Process(FOLDER / algorithm, algorithm, FOLDER / f"{algorithm}.log")
    if process.popen.wait() != 0:
        raise SystemExit(process.log.read_text(encoding="utf-8"))
    return time.monotonic() - started


def broken(run: Broken, seconds: float, rng: Random, plan: Plan) -> None:
    """Kill and resume one run until it has ended, or no more kills are due, and compare it."""
    told: str | None = None
    while True:
        process = Process(run.path, run.algorithm, FOLDER / f"{run.path.name}-{len(run.places)}.log")
        if told is not None and not process.says(told):
            run.differences.append(f"never said: {told}")
        moment = rng.random() ** 2 * seconds  # early ones more often: start-up and resuming
        if len(run.places) == KILLS_OF_A_RUN or not plan.kills:
            process.popen.wait(LONGEST)
        ended = process.ends_within(moment)
        while plan.kills % 3 == 0 and not (ended or process.is_writing()):
            ended = process.ends_within(0.001)
        if ended:
            break
        run.places.append(process.kill())
        run.writing += process.is_writing()
        plan.kills -= 1
        told = damage(run, plan)
        words = f", damaged {run.damages[-1]}" if told else ""
        print(f"{run.path.name}: killed in {run.places[-1]} after {moment:.1f} s{words}", flush=True)
    if process.popen.returncode == 0:
        run.differences += differences(FOLDER / run.algorithm, run.path)
    else:
        run.differences.append(f"stopped: {process.said().strip().splitlines()[-1]}")
    print(f"{run.path.name}: {'; '.join(run.differences) or 'equal'}", flush=True)


@dataclass
class Plan:
    """What is still to be done to runs."""

    kills: int
    damages: int

    def due(self) -> bool:
        """Whether damage is due: one for five kills."""
        return self.damages * 5 > self.kills


def damage(run: Broken, plan: Plan) -> str | None:
    """Damage the newest checkpoint of the stage that was killed, if that is due and there is one; its name."""
    stages = run.path / "stages"
    stage = "mine1" if (stages / "rl.json").exists() else "rl"
    found = checkpoints(run.path / "checkpoints" / stage)
    if not plan.due() or not found or (stages / "mine.json").exists():
        return None
    words, name, harm = DAMAGES[plan.damages % len(DAMAGES)]
    if not (found[0] / name).exists():
        name = "optimizer.safetensors"  # of an algorithm without a critic
    harm(found[0] / name)
    plan.damages -= 1
    run.damages.append(f"{stage}/{found[0].name}/{name}: {words}")
    return f"skipped: checkpoint {found[0]} "


def differences(calm: Path, other: Path) -> list[str]:
    """What of two finished runs is not the same."""
    first, second = contents(calm), contents(other)
    return [name for name in sorted(first.keys() | second.keys()) if first.get(name) != second.get(name)]


def contents(path: Path) -> dict[str, Any]:
    """Everything in a run that must not depend on when it ran."""
    run = RunFolder.open(path)
    files = [file.relative_to(path) for file in sorted(path.rglob("*")) if file.is_file()]
    rows, torn = run.read_metrics()
    untimed = [{k: v for k, v in row.items() if not k.startswith(TIMED)} for row in rows]
    results = {name: dict(run.stage_result(name) or {}) for name in STAGES}
    for result in results.values():
        del result["seconds"], result["peak_memory_mb"]
    made: dict[str, Any] = {"files": files, "metrics": (untimed, torn), "alarms": run.read_alarms()}
    made |= {"stage results": results, "evaluations": run.read_evals()}
    for file in files:
        if file.parts[0] == "checkpoints":
            made[str(file)] = hashlib.sha256((path / file).read_bytes()).hexdigest()
        if file.parts[0] == "trajectories":
            made[str(file)] = [
                (group.id, [replace(trajectory, seconds=0.0) for trajectory in group.trajectories])
                for group in run.read_groups(file.parts[1], file.stem)
            ]
    return made


def tells_apart() -> bool:
    """Whether runs of two algorithms are found to differ in what two algorithms must differ in."""
    found = differences(FOLDER / "grpo", FOLDER / "ppo")
    return {"metrics", "alarms", ".safetensors", ".parquet"} <= {
        *found,
        *(Path(name).suffix for name in found),
    }


def page(runs: list[Broken], seconds: float) -> str:
    """The evidence page."""
    kills, damages = sum(len(run.places) for run in runs), [each for run in runs for each in run.damages]
    equal = sum(not run.differences for run in runs)
    compared = contents(FOLDER / runs[0].algorithm)
    kinds = Counter(Path(name).suffix for name in compared)
    places = Counter(place for run in runs for place in run.places)
    lines = [
        "# Evidence: resuming",
        "",
        f"Command: `python bench/kill_campaign.py --kills {kills}` ({seconds / 60:.0f} minutes on {os.cpu_count()} cores that other work shared).",
        "",
        f"**{equal} of {len(runs)} runs, killed {kills} times with SIGKILL, equal the run that was left alone, bit for bit.** Compared are",
        f"{kinds['.safetensors']} files of weights and optimiser (and more with a critic), {kinds['.parquet']} files of trajectories with tokens and",
        "log-probabilities, every row of metrics, alarms, stage results, evaluations and the list of files; wall times,",
        "speeds and peak memory are left out. A run of another algorithm is told apart by weights, trajectories, metrics and alarms.",
        "",
        "A kill takes the players along and comes at a random moment of a process's life, early ones more often; every third waits on",
        "until a file is being written. The world is the tests' echo world, the policy the nano base; runs have a turn limit that grows, a",
        "KL weight and an entropy bonus that move, a hard-example round, and with `ppo` a critic.",
        "",
        "| killed in | times |",
        "|---|---|",
        *(f"| {name} | {places[name]} |" for name in ("starting", *STAGES, "report") if places[name]),
        f"| *of these, leaving an unfinished file* | {sum(run.writing for run in runs)} |",
        "",
        "`tests/pipeline/test_resume.py` kills a run inside every stage; `collect` and `sft` take about a second each here.",
        "",
        f"{len(damages)} resumes found the newest checkpoint of their stage damaged, said so and went on from the one before it, or from the",
        "start of the stage where there was none:",
        "",
        "| file | damage |",
        "|---|---|",
        *(f"| `{each.split(': ')[0]}` | {each.split(': ')[1]} |" for each in damages),
        "",
        "| run | kills | damaged checkpoints | differs in |",
        "|---|---|---|---|",
        *(
            f"| {run.path.name} | {len(run.places)} | {len(run.damages)} | {', '.join(run.differences) or 'nothing'} |"
            for run in runs
        ),
        "",
    ]
    return "\n".join(lines)


def campaign(kills: int, algorithms: list[str]) -> Iterator[Broken]:
    """Broken runs of each algorithm in turn until all kills are made."""
    seconds = {algorithm: left_alone(algorithm) for algorithm in algorithms}
    plan, rng = Plan(kills, max(kills // 5, 1)), Random("kills")
    number = 0
    while plan.kills:
        algorithm = algorithms[number % len(algorithms)]
        number += 1
        run = Broken(FOLDER / f"{algorithm}-{number}", algorithm)
        broken(run, seconds[algorithm], rng, plan)
        yield run


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--quick", action="store_true")
    asked = parser.parse_args()
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir(parents=True)
    started = time.monotonic()
    algorithms = ["grpo"] if asked.quick else ["grpo", "ppo"]
    runs = list(campaign(2 if asked.quick else asked.kills, algorithms))
    if not asked.quick:
        PAGE.write_text(page(runs, time.monotonic() - started), encoding="utf-8")
    equal = sum(not run.differences for run in runs)
    result = {
        "name": "kill_campaign",
        "ratio": equal / len(runs),
        "ours": equal,
        "peer": len(runs),
        "unit": "runs equal to the uninterrupted one",
        "checks": {
            "kills": sum(len(run.places) for run in runs),
            "kills_while_writing": sum(run.writing for run in runs),
            "damaged_checkpoints": sum(len(run.damages) for run in runs),
            "another_run_is_told_apart": None if asked.quick else tells_apart(),
        },
        "machine": {"cpus": os.cpu_count(), "platform": platform.platform()},
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
