"""What training with faults changes: recovery under each kind, and clean success, ``docs/evidence/faults.md``.

    python bench/faults.py                  # three seeds; about 45 minutes on two quiet cores
    python bench/faults.py --seeds 0
    python bench/faults.py --quick          # one tiny run of each, writes no page

Of each seed one policy is trained in a world where nothing goes wrong. From it two more are trained alike, one in the
same world, one where tools fail now and then. Both are evaluated on the same 200 held-out tasks, without faults and
with one fault of each kind. Runs go two at a time, one thread each. One that is finished is not repeated. It ends with
one line of JSON: mean recovery with faults in the second training (ours) and without (peer).
"""

from __future__ import annotations

import argparse
import json
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from branching import palestra

from palestra.envs import FAULT_KINDS

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "evidence" / "faults.md"
RESULTS = ROOT / "bench" / "results" / "faults.json"
TRAINED = ("delay", "timeout", "transient_error", "illegal_input")
"""What making the call again gets over, which the teacher shows. (It never asks again for what a reply lost.)"""
SETTINGS = (
    "policy.threads=1",
    "mine.rounds=0",
    "rl.updates=15",
    "rl.tasks_per_update=32",
    "rl.group_size=4",
    "rl.validate_every=3",
    "credit.batch_share=0.5",
    "evaluation.sampled=false",
)
FAULTS = f"world.faults={{kinds: [{', '.join(TRAINED)}], rate: 0.2, most: 2}}"
WAYS = {"clean": (), "faults": (FAULTS,)}
QUICK = (
    "collect.tasks=24",
    "sft.epochs=1",
    "gate.min_format_compliance=0",
    "gate.min_success_at_group=0",
    "rl.updates=1",
)


def measured(job: tuple[str, int, Path, tuple[str, ...], int]) -> dict[str, Any]:
    """Train one policy, unless that was done, and evaluate it."""
    way, seed, folder, settings, tasks = job
    path = folder / f"{way}-{seed}"
    log = path.with_suffix(".log")
    if (path / "manifest.json").exists():
        palestra("train", path, "--resume", log=log)
    else:
        changes = [part for change in (*settings, *WAYS[way]) for part in ("--set", change)]
        palestra("train", "quickstart", "--seed", seed, "--out", path, *changes, log=log)
    palestra("eval", path, "--faults", "--tasks", tasks, log=log)
    found = json.loads((path / "eval" / "cli-rl-greedy-test-orders.json").read_text(encoding="utf-8"))
    print(f"{path.name}: clean {found['success']:.1%}, recovery {recovery(found):.1%}", flush=True)
    return {"success": found["success"], "ci95": found["success_ci95"], "faults": found["faults"]}


def recovery(found: dict[str, Any]) -> float:
    """Mean over the kinds that training has, of success where the fault was seen."""
    return mean(each["recovery"] for each in found["faults"] if each["kind"] in TRAINED and each["landed"])


def known() -> dict[str, Any]:
    return json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {}


def interval(values: list[float]) -> str:
    """Mean over seeds with a Student interval of 95 %."""
    if len(values) < 2:
        return f"{mean(values):.0%}"
    half = {2: 12.71, 3: 4.30, 4: 3.18, 5: 2.78}[len(values)] * stdev(values) / len(values) ** 0.5
    return f"{mean(values):.0%} (± {half:.0%})"


def page(results: dict[str, dict[str, Any]]) -> str:
    seeds = sorted({int(name.split("-")[1]) for name in results})
    both = [seed for seed in seeds if all(f"{way}-{seed}" in results for way in WAYS)]
    lines = [
        "# Evidence: faults",
        "",
        f"Command: `python bench/faults.py`. The quickstart's world and policy ({', '.join(f'`{each}`' for each in SETTINGS)}), seeds",
        f"{', '.join(map(str, both))}, trained without faults and with `{FAULTS}`. Each policy plays 200 held-out tasks, greedy, without",
        "faults and with one fault of each kind. Success is where the fault was seen before the end; intervals are of the mean over seeds (Student, 95 %).",
        "",
        "| | trained without | trained with | difference |",
        "|---|---|---|---|",
    ]

    def row(name: str, value: Any) -> str:
        clean, faulty = ([value(results[f"{way}-{seed}"]) for seed in both] for way in WAYS)
        pairs = [(a, b) for a, b in zip(clean, faulty, strict=True) if a is not None and b is not None]
        if not pairs:
            return f"| {name} | – | – | – |"
        ours, theirs = [b for _, b in pairs], [a for a, _ in pairs]
        gain = interval([b - a for a, b in pairs])
        return f"| {name} | {interval(theirs)} | {interval(ours)} | {gain} |"

    lines.append(row("no fault", lambda found: found["success"]))
    lines.append(row("**mean of the trained kinds**", recovery))
    for kind in FAULT_KINDS:
        lines.append(
            row(
                f"`{kind}`",
                lambda found, kind=kind: {f["kind"]: f["recovery"] for f in found["faults"]}[kind],
            )
        )
    each = ", ".join(
        f"seed {seed}: {results[f'clean-{seed}']['success']:.1%} and {results[f'faults-{seed}']['success']:.1%}"
        for seed in both
    )
    lines += ["", f"Clean success of each pair (without, with): {each}.", ""]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--folder", type=Path, default=ROOT / "runs" / "faults")
    parser.add_argument("--quick", action="store_true")
    asked = parser.parse_args()
    settings, tasks = SETTINGS, 200
    if asked.quick:
        asked.seeds, asked.folder = [0], ROOT / "runs" / "faults-quick"
        settings, tasks = (*SETTINGS, *QUICK), 8
        shutil.rmtree(asked.folder, ignore_errors=True)
    asked.folder.mkdir(parents=True, exist_ok=True)
    results = {} if asked.quick else known()
    left = [
        (w, s, asked.folder, settings, tasks) for s in asked.seeds for w in WAYS if f"{w}-{s}" not in results
    ]
    with ThreadPoolExecutor(2) as pool:
        for job, found in zip(left, pool.map(measured, left), strict=True):
            results[f"{job[0]}-{job[1]}"] = found
            if not asked.quick:
                RESULTS.write_text(json.dumps(results, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    if not asked.quick:
        PAGE.write_text(page(results), encoding="utf-8")
    ours, peer = (
        mean(recovery(found) for name, found in results.items() if name.startswith(way))
        for way in ("faults", "clean")
    )
    print(json.dumps({"name": "faults", "ours": ours, "peer": peer, "unit": "recovery"}))


if __name__ == "__main__":
    main()
