"""How far what was learned reaches: seen tasks, new ones, other words, other kinds; ``docs/evidence/tiers.md``.

    python bench/tiers.py                   # three runs; about 20 minutes on two quiet cores
    python bench/tiers.py --quick           # one tiny run, writes no page

Each run learns ``orders`` without one kind of ticket and is then evaluated with ``palestra eval --tiers``. Runs go two at
a time, one thread each. One that is finished is not repeated. It ends with one line of JSON: mean success on new tasks
(ours) and on tasks of the kind that was held out (peer).
"""

from __future__ import annotations

import argparse
import json
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import mean
from typing import Any

from branching import QUICK_TRAINING, SHORT_TRAINING, palestra

from palestra.store import RunFolder

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "evidence" / "tiers.md"
HELD_OUT = {0: "broken", 1: "wrong_item", 2: "changed_mind"}
"""The kind that each seed's run never trains on."""
EVALUATION = "cli-rl-greedy-test-orders"


def measured(job: tuple[int, Path, tuple[str, ...], int]) -> dict[str, dict[str, Any]]:
    """Train one policy, unless that was done, and evaluate it: tier by tier."""
    seed, folder, settings, tasks = job
    path = folder / f"orders-{seed}"
    log = path.with_suffix(".log")
    if (path / "manifest.json").exists():
        palestra("train", path, "--resume", log=log)
    else:
        wanted = (*settings, f"world.hold_out=[{HELD_OUT[seed]}]")
        changes = [part for change in wanted for part in ("--set", change)]
        palestra("train", "quickstart", "--seed", seed, "--out", path, *changes, log=log)
    if EVALUATION not in RunFolder.open(path).read_evals():
        palestra("eval", path, "--tiers", "--tasks", tasks, log=log)
    tiers = RunFolder.open(path).read_evals()[EVALUATION]["tiers"]
    print(f"{path.name}: " + ", ".join(f"{each['tier']} {each['success']:.1%}" for each in tiers), flush=True)
    return {each["tier"]: each for each in tiers}


def page(results: dict[int, dict[str, dict[str, Any]]]) -> str:
    lines = [
        "# Evidence: tiers of generalisation",
        "",
        "Command: `python bench/tiers.py`. The quickstart's world and policy",
        f"({', '.join(f'`{each}`' for each in SHORT_TRAINING)}),",
        "each run without one kind of ticket in collection, learning and validation; then `palestra eval RUN --tiers --tasks 200`, greedy.",
        "Success with its Wilson interval of 95 %.",
        "",
        f"| tier | {' | '.join(f'seed {seed}, without `{HELD_OUT[seed]}`' for seed in results)} | mean |",
        f"|---|{'---|' * (len(results) + 1)}",
    ]
    for tier in next(iter(results.values())):
        cells = [found[tier] for found in results.values()]
        shown = [f"{c['success']:.0%} ({c['ci95'][0]:.0%}–{c['ci95'][1]:.0%})" for c in cells]
        lines.append(f"| {tier} | {' | '.join(shown)} | {mean(c['success'] for c in cells):.0%} |")
    formats = [found["3 kinds held out"]["format_compliance"] for found in results.values()]
    lines += [
        "",
        f"Of the actions in tasks of a kind held out, {', '.join(f'{each:.1%}' for each in formats)} were calls of a declared tool with",
        "its parameters.",
        "",
    ]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--folder", type=Path, default=ROOT / "runs" / "tiers")
    parser.add_argument("--quick", action="store_true")
    asked = parser.parse_args()
    settings, tasks, seeds, folder = SHORT_TRAINING, 200, list(HELD_OUT), asked.folder.resolve()
    if asked.quick:
        settings, tasks, seeds = (*SHORT_TRAINING, *QUICK_TRAINING), 8, [0]
        folder = ROOT / "runs" / "tiers-quick"
        shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor(2) as pool:
        jobs = [(seed, folder, settings, tasks) for seed in seeds]
        results = dict(zip(seeds, pool.map(measured, jobs), strict=True))
    if not asked.quick:
        PAGE.write_text(page(results), encoding="utf-8")
    ours, peer = (
        mean(found[tier]["success"] for found in results.values())
        for tier in ("1 new tasks", "3 kinds held out")
    )
    print(json.dumps({"name": "tiers", "ours": ours, "peer": peer, "unit": "success"}))


if __name__ == "__main__":
    main()
