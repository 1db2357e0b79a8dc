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

from branching import QUICK_TRAINING, SHORT_TRAINING, palestra

from palestra.envs import FAULT_KINDS
from palestra.evaluation import PairedDifference, paired_difference, task_success
from palestra.store import RunFolder
from palestra.training import best_checkpoint

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "evidence" / "faults.md"
RESULTS = ROOT / "bench" / "results" / "faults.json"
TRAINED = ("delay", "timeout", "transient_error", "illegal_input")
"""What making the call again gets over, which the teacher shows. (It never asks again for what a reply lost.)"""
SECOND = (*SHORT_TRAINING, "sft.epochs=2")
FAULTS = f"world.faults={{kinds: [{', '.join(TRAINED)}], rate: 0.2, most: 1}}"
WAYS = {"without": (), "with": (FAULTS,)}
QUICK = (*QUICK_TRAINING, "rl.validate_every=1")


def trained(path: Path, seed: int, settings: tuple[str, ...]) -> Path:
    """The best checkpoint of a run, which is made or gone on with as needed."""
    log = path.with_suffix(".log")
    if (path / "manifest.json").exists():
        palestra("train", path, "--resume", log=log)
    else:
        changes = [part for change in settings for part in ("--set", change)]
        palestra("train", "quickstart", "--seed", seed, "--out", path, *changes, log=log)
    found = best_checkpoint(path / "checkpoints" / "rl")
    assert found is not None, f"{path} has no checkpoint"
    return found


def hardened(job: tuple[str, int, Path, Path, tuple[str, ...], int]) -> dict[str, Any]:
    """Train one policy further, and evaluate it."""
    way, seed, path, start, settings, tasks = job
    trained(path, seed, (*settings, *WAYS[way], f"policy.model={start}"))
    name = "cli-rl-greedy-test-orders"
    if name not in RunFolder.open(path).read_evals():
        palestra("eval", path, "--faults", "--tasks", tasks, log=path.with_suffix(".log"))
    found = RunFolder.open(path).read_evals()[name]
    print(f"{path.name}: clean {found['success']:.1%}, recovery {recovery(found):.1%}", flush=True)
    return {"success": found["success"], "faults": found["faults"], "tasks": clean_tasks(path)}


def clean_tasks(path: Path) -> dict[str, float | None]:
    """Success on each held-out task, without faults."""
    groups = RunFolder.open(path).read_groups("eval-cli-rl", "greedy-test-orders")
    return task_success(each for group in groups for each in group.trajectories)


def recovery(found: dict[str, Any]) -> float:
    """Mean over the kinds that training has, of success where the fault was seen."""
    return mean(each["recovery"] for each in found["faults"] if each["kind"] in TRAINED and each["landed"])


def interval(values: list[float]) -> str:
    """Mean over seeds with a Student interval of 95 %."""
    if len(values) < 2:
        return f"{mean(values):.0%}"
    half = {2: 12.71, 3: 4.30, 4: 3.18, 5: 2.78}[len(values)] * stdev(values) / len(values) ** 0.5
    return f"{mean(values):.0%} (± {half:.0%})"


def clean_difference(results: dict[str, dict[str, Any]], seeds: list[int]) -> PairedDifference:
    """Clean success with faults in training minus without, over the tasks of all seeds."""
    without, with_faults = (
        {
            f"{seed} {task}": value
            for seed in seeds
            for task, value in results[f"{way}-{seed}"]["tasks"].items()
        }
        for way in WAYS
    )
    return paired_difference(without, with_faults, seed=0)


def page(results: dict[str, dict[str, Any]]) -> str:
    seeds = sorted({int(name.split("-")[1]) for name in results})
    both = [seed for seed in seeds if all(f"{way}-{seed}" in results for way in WAYS)]
    lines = [
        "# Evidence: faults",
        "",
        "Command: `python bench/faults.py`. Of each seed one policy learns the quickstart's world without faults",
        f"({', '.join(f'`{each}`' for each in SHORT_TRAINING)}). Two go on from it for as many updates again, after two epochs of imitation: one",
        f"without faults, one with `{FAULTS}`. Each plays the same 200 held-out tasks, greedy, without faults and with one fault",
        f"of each kind. A kind's row is success where the fault was seen before the end. Intervals are of the mean over seeds {', '.join(map(str, both))}",
        "(Student, 95 %).",
        "",
        "| | gone on without | gone on with | difference |",
        "|---|---|---|---|",
    ]

    def row(name: str, value: Any) -> str:
        without, with_faults = ([value(results[f"{way}-{seed}"]) for seed in both] for way in WAYS)
        pairs = [(a, b) for a, b in zip(without, with_faults, strict=True) if None not in (a, b)]
        if not pairs:
            return f"| {name} | – | – | – |"
        cells = ([a for a, _ in pairs], [b for _, b in pairs], [b - a for a, b in pairs])
        return f"| {name} | {' | '.join(map(interval, cells))} |"

    def of_kind(kind: str) -> Any:
        return lambda found: {each["kind"]: each["recovery"] for each in found["faults"]}.get(kind)

    lines.append(row("no fault", lambda found: found["success"]))
    lines.append(row("**mean of the trained kinds**", recovery))
    lines += [row(f"`{kind}`", of_kind(kind)) for kind in FAULT_KINDS]
    each = ", ".join(
        f"seed {seed}: {results[f'without-{seed}']['success']:.1%} and {results[f'with-{seed}']['success']:.1%}"
        for seed in both
    )
    clean = clean_difference(results, both)
    assert clean.difference is not None
    assert clean.interval is not None
    low, high = clean.interval
    lines += [
        "",
        f"Clean success of each pair (without, with): {each}. Task by task over all {clean.tasks}: {100 * clean.difference:+.1f} points",
        f"({100 * low:+.1f} to {100 * high:+.1f}, bootstrap over tasks; p = {clean.p:.2g}).",
        "",
    ]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--folder", type=Path, default=ROOT / "runs" / "faults")
    parser.add_argument("--quick", action="store_true")
    asked = parser.parse_args()
    first, second, tasks, folder = SHORT_TRAINING, SECOND, 200, asked.folder.resolve()
    if asked.quick:
        asked.seeds, folder = [0], ROOT / "runs" / "faults-quick"
        first, second, tasks = (*SHORT_TRAINING, *QUICK), (*SECOND, *QUICK), 8
        shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor(2) as pool:
        starts = list(pool.map(lambda seed: trained(folder / f"clean-{seed}", seed, first), asked.seeds))
        jobs = [
            (way, seed, folder / f"{way}-{seed}", start, second, tasks)
            for seed, start in zip(asked.seeds, starts, strict=True)
            for way in WAYS
        ]
        results = {
            f"{job[0]}-{job[1]}": found for job, found in zip(jobs, pool.map(hardened, jobs), strict=True)
        }
    if not asked.quick:
        RESULTS.write_text(json.dumps(results, indent=1, sort_keys=True) + "\n", encoding="utf-8")
        PAGE.write_text(page(results), encoding="utf-8")
    ours, peer = (
        mean(recovery(found) for name, found in results.items() if name.startswith(f"{way}-"))
        for way in ("with", "without")
    )
    print(json.dumps({"name": "faults", "ours": ours, "peer": peer, "unit": "recovery"}))


if __name__ == "__main__":
    main()
