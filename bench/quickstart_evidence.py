"""The learning evidence: the quickstart over worlds and seeds, written to ``docs/evidence/quickstart.md``.

    python bench/quickstart_evidence.py                          # three worlds, three seeds; about 1.5 hours
    python bench/quickstart_evidence.py --jobs 2                 # new runs two at a time, one thread each
    python bench/quickstart_evidence.py --worlds orders --seeds 0
    python bench/quickstart_evidence.py --quick                  # one tiny run, under a minute, writes nothing

A run that is finished already is not repeated, so the script can be stopped and started again. It ends
with one line of JSON: the mean success over seeds after RL (ours) and after SFT (peer) in the first world.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import mean
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "evidence" / "quickstart.md"
NOTES = "## Notes"
STAGES = ("teacher", "sft", "rl", "oracle")
QUICK = (
    "collect.tasks=12",
    "collect.demonstrations=12",
    "sft.epochs=1",
    "gate.tasks=2",
    "gate.min_format_compliance=0",
)


def run(world: str, seed: int, folder: Path, changes: tuple[str, ...] = ()) -> dict[str, Any]:
    """Train (or go on with) one run and return its report."""
    path = folder / f"{world}-{seed}"
    folder.mkdir(parents=True, exist_ok=True)
    base = [sys.executable, "-m", "palestra.cli"]
    if (path / "manifest.json").exists():
        command = [*base, "train", str(path), "--resume"]
    else:
        command = [*base, "train", "quickstart", "--seed", str(seed), "--out", str(path)]
        for change in (f"world.name={world}", *changes):
            command += ["--set", change]
    print("$", " ".join(["palestra", *command[3:]]), flush=True)
    with (folder / f"{world}-{seed}.log").open("w") as log:
        subprocess.run(command, check=True, stdout=log, stderr=subprocess.STDOUT)
    report = subprocess.run(
        [*base, "report", str(path), "--json"], check=True, capture_output=True, text=True
    )
    parsed: dict[str, Any] = json.loads(report.stdout)
    resolved = yaml.safe_load((path / "resolved.yaml").read_text(encoding="utf-8"))
    parsed["threads"] = resolved["policy"]["threads"]
    for stage in ("sft", "rl"):
        sampled = json.loads((path / "eval" / f"{stage}-sampled.json").read_text(encoding="utf-8"))
        parsed[stage]["sampled"] = sampled["success"]
    print("\n".join(rows(world, seed, parsed)), flush=True)
    return parsed


def rows(world: str, seed: int, report: dict[str, Any]) -> list[str]:
    """One table row per stage of a run."""
    made = []
    for stage in STAGES:
        values = report.get(stage)
        if values is None:
            continue
        low, high = values["success_ci95"]
        made.append(
            f"| {world} | {seed} | {stage} | {values['success']:.1%} ({low:.0%}–{high:.0%}) | "
            f"{_share(values.get('sampled'))} | "
            f"{values['turns']:.2f} | {values['invalid_actions']:.2f} | {values['format_compliance']:.1%} | "
            f"{_share(values['step_efficiency'])} | {values['episodes']} |"
        )
    return made


def _slowest(reports: list[dict[str, Any]]) -> str:
    """Minutes of the slowest run that had the machine to itself."""
    alone = [report["seconds"] / 60 for report in reports if report["threads"] > 1]
    return f"{max(alone):.1f}" if alone else "–"


def _share(value: float | None) -> str:
    return "–" if value is None else f"{value:.1%}"


def summary(reports: dict[tuple[str, int], dict[str, Any]]) -> list[str]:
    """One line a world: means over seeds, and what its worst seed came to."""
    lines = []
    for world in dict.fromkeys(world for world, _ in reports):
        mine = [report for (name, _), report in reports.items() if name == world]
        gains = [r["rl"]["success"] - r["sft"]["success"] for r in mine]
        lines.append(
            f"| {world} | {len(mine)} | {mean(r['teacher']['success'] for r in mine):.1%} | "
            f"{mean(r['sft']['success'] for r in mine):.1%} | {mean(r['rl']['success'] for r in mine):.1%} | "
            f"{min(r['rl']['success'] for r in mine):.1%} | {min(gains) * 100:+.0f} | {mean(r['rl']['turns'] / r['oracle']['turns'] for r in mine):.2f} | "
            f"{min(r['rl']['format_compliance'] for r in mine):.1%} | "
            f"{_slowest(mine)} | "
            f"{max(r['peak_memory_mb'] for r in mine):.0f} |"
        )
    return lines


def page(reports: dict[tuple[str, int], dict[str, Any]], notes: str) -> str:
    """The evidence page, ``notes`` at its end."""
    table = [line for (world, seed), report in reports.items() for line in rows(world, seed, report)]
    return "\n".join(
        [
            "# Evidence: the quickstart",
            "",
            "Command: `python bench/quickstart_evidence.py`. Each run is `palestra train quickstart` with the world's",
            "name and the seed changed and nothing else. Success is on held-out test tasks, greedy for policies,",
            "with a 95 % Wilson interval; `sampled` is success at temperature 1. The teacher is imperfect on purpose: it skips a step, repeats itself and",
            "picks a wrong value, each in 6 % of its turns. Of its 300 attempts at most 120 that succeed in up to 1.67 times the shortest way",
            "are imitated; turns that were refused or repeated are read and not learned.",
            f"Machine: 2 cores of {platform.processor() or platform.machine()}, no GPU, shared with others. Runs with one",
            "thread went two at a time, so their minutes say nothing and are left out.",
            "",
            "## By world (means over seeds)",
            "",
            "| world | seeds | teacher | SFT | RL | lowest RL | smallest gain, points | turns RL / oracle | lowest format compliance | slowest run alone, minutes | peak memory, MB |",
            "|---|---|---|---|---|---|---|---|---|---|---|",
            *summary(reports),
            "",
            "## By run",
            "",
            "| world | seed | stage | success (95 %) | sampled | turns | invalid actions | format | step efficiency | episodes |",
            "|---|---|---|---|---|---|---|---|---|---|",
            *table,
            "",
            notes,
        ]
    )


def written_notes() -> str:
    """The page's last section, which is written by hand and kept."""
    text = PAGE.read_text(encoding="utf-8") if PAGE.exists() else ""
    return text[text.index(NOTES) :] if NOTES in text else ""


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--worlds", nargs="+", default=["orders", "meeting_room", "alerts"])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--folder", type=Path, default=ROOT / "runs" / "evidence")
    parser.add_argument("--jobs", type=int, choices=(1, 2), default=1, help="runs at a time")
    parser.add_argument("--quick", action="store_true")
    arguments = parser.parse_args()
    changes: tuple[str, ...] = ()
    if arguments.quick:
        arguments.worlds, arguments.seeds = ["orders"], [0]
        arguments.folder = ROOT / "runs" / "evidence-quick"
        shutil.rmtree(arguments.folder, ignore_errors=True)
        changes = (
            *QUICK,
            "rollout.max_turns=4",
            "gate.min_success_at_group=0",
            "rl.updates=1",
            "mine.rounds=0",
            "evaluation.tasks=8",
            "rl.validation_tasks=4",
        )
    elif arguments.jobs > 1:
        changes = ("policy.threads=1",)
    plan = [(world, seed) for seed in arguments.seeds for world in arguments.worlds]
    reports: dict[tuple[str, int], dict[str, Any]] = {}
    with ThreadPoolExecutor(arguments.jobs) as pool:
        made = pool.map(lambda each: run(*each, arguments.folder, changes), plan)
        for each, report in zip(plan, made, strict=True):
            reports[each] = report
            if not arguments.quick:
                PAGE.parent.mkdir(parents=True, exist_ok=True)
                PAGE.write_text(page(dict(sorted(reports.items())), written_notes()), encoding="utf-8")
    first = [report for (world, _), report in reports.items() if world == arguments.worlds[0]]
    ours, peer = (mean(report[stage]["success"] for report in first) for stage in ("rl", "sft"))
    result = {
        "name": "quickstart",
        "ratio": ours / peer if peer else None,
        "ours": ours,
        "peer": peer,
        "unit": "held-out success",
        "checks": {"format_compliance": min(report["rl"]["format_compliance"] for report in first)},
        "machine": {"cpus": os.cpu_count(), "platform": platform.platform()},
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
