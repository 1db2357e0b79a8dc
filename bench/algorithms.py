"""Every algorithm from the same SFT policies: success and cost, written to ``docs/evidence/algorithms.md``.

    python bench/algorithms.py                          # all on orders, GRPO and PPO on all worlds; about 2.5 hours
    python bench/algorithms.py --algorithms grpo ppo --worlds orders --seeds 0
    python bench/algorithms.py --finished               # trains nothing, writes the page of what is finished
    python bench/algorithms.py --quick                  # one tiny run of two algorithms, writes no page

Runs go two at a time, one thread each. One whose result is in ``bench/results`` is not repeated and one that was
stopped goes on, so the script can be stopped and started again. The page holds all results there are. It ends with one line of JSON: the mean success of GRPO on
the first world (ours) and of its SFT policies (peer).
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import mean, median
from typing import Any

from branching import branch, palestra

from palestra.pipeline.load import parse_config, read_config_text
from palestra.pipeline.run import create_run
from palestra.store import RunFolder
from palestra.training import ALGORITHMS
from palestra.viewer import run_summary

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "evidence" / "algorithms.md"
RESULTS = ROOT / "bench" / "results" / "algorithms.json"
"""What finished runs came to, with their settings: a run that is there is not repeated on another machine."""
EVERYWHERE = ("grpo", "ppo")
"""Measured on all worlds; the others on the first."""
WORLDS = ("orders", "meeting_room", "alerts")
REACHED = 0.85
SETTINGS = (
    "policy.threads=1",
    "mine.rounds=0",
    "rl.updates=15",
    "rl.validate_every=3",
    "rl.tasks_per_update=32",
    "rl.group_size=4",
)
OWN: dict[str, tuple[str, ...]] = {
    "reinforce": ("rl.minibatches=1",),
    **{
        name: ("credit.batch_share=0.5",)
        for name, algorithm in ALGORITHMS.items()
        if algorithm.batch is not None
    },
}
"""What an algorithm needs differently. Without a ratio only the first step on a batch is right. Groups alone have no
gradient against a first mistake that all their attempts share, so half of their advantage is against the batch."""
ALONE = "grpo-alone"
"""GRPO without that half, for comparison."""
NAMES = (*ALGORITHMS, ALONE)
QUICK = (
    "collect.tasks=24",
    "collect.demonstrations=24",
    "sft.epochs=1",
    "gate.tasks=2",
    "gate.min_format_compliance=0",
    "gate.min_success_at_group=0",
    "rl.updates=2",
    "rl.tasks_per_update=2",
    "rl.validation_tasks=4",
    "evaluation.tasks=8",
    "rollout.max_turns=4",
)


@dataclass(frozen=True)
class Run:
    """One algorithm on one world with one seed."""

    algorithm: str
    world: str
    seed: int
    folder: Path
    settings: tuple[str, ...]

    @property
    def base(self) -> Path:
        """The run whose SFT policy all algorithms start from."""
        return self.folder / f"{self.world}-{self.seed}-sft"

    @property
    def changes(self) -> tuple[str, ...]:
        """All that it changes in the quickstart's configuration."""
        return (*self.settings, *OWN.get(self.algorithm, ()))

    @property
    def path(self) -> Path:
        """This run."""
        return self.folder / f"{self.world}-{self.seed}-{self.algorithm}"


def prepare(run: Run) -> None:
    """Collect, imitate and pass the gate, once a world and seed."""
    changes = [part for change in (f"world.name={run.world}", *run.settings) for part in ("--set", change)]
    if not (run.base / "manifest.json").exists():
        palestra(
            "sft",
            "quickstart",
            "--seed",
            run.seed,
            "--out",
            run.base,
            *changes,
            log=run.base.with_suffix(".log"),
        )
    elif not (run.base / "stages" / "sft.json").exists():
        palestra("sft", run.base, log=run.base.with_suffix(".log"))


def create(run: Run, path: Path) -> None:
    """The run's folder, empty, at ``path``."""
    changes = (
        f"seed={run.seed}",
        f"world.name={run.world}",
        f"rl.algorithm={run.algorithm.removesuffix('-alone')}",
        *run.changes,
    )
    text, folder = read_config_text("quickstart")
    config = parse_config(text, changes, folder=folder)
    create_run(path, text, config, f"bench/algorithms.py {run.path.name}")


def train(run: Run) -> dict[str, Any]:
    """Learn online from the prepared policy and evaluate what came of it."""
    if not run.path.exists():
        branch(run.base, run.path, partial(create, run))
    palestra("train", run.path, "--resume", log=run.path.with_suffix(".log"))
    made = outcome(run)
    print(f"{run.path.name}: {made['sft']:.1%} -> {made['rl']:.1%}", flush=True)
    return made


def outcome(run: Run) -> dict[str, Any]:
    """What a finished run came to, and what it cost."""
    folder = RunFolder.open(run.path)
    summary, rows = run_summary(run.path), [r for r in folder.read_metrics()[0] if r["stage"] == "rl"]
    episodes, tokens, cost = 0.0, 0.0, None
    rl = folder.resolved()["rl"]
    size = rl["tasks_per_update"] * rl["group_size"]
    for row in rows:
        episodes += size
        tokens += size * row["tokens/action_mean"]
        if cost is None and row.get("validation/success", 0.0) >= REACHED:
            cost = (episodes, tokens)
    return {
        "sft": summary["sft"]["success"],
        "rl": summary["rl"]["success"],
        "ci95": summary["rl"]["success_ci95"],
        "format": summary["rl"]["format_compliance"],
        "cost": cost,
        "curve": [(row["update"], row["validation/success"]) for row in rows if "validation/success" in row],
        "update_seconds": mean(row["time/update"] for row in rows),
        "memory": summary["peak_memory_mb"],
    }


def known_results(plan: list[Run]) -> dict[Run, dict[str, Any]]:
    """Stored results of runs with the same settings."""
    stored = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {}
    found = {}
    for run in plan:
        entry = stored.get(run.path.name)
        if entry is not None and entry["settings"] == list(run.changes):
            found[run] = entry["outcome"]
    return found


def store(results: dict[Run, dict[str, Any]]) -> None:
    """Keep results beside those of other runs."""
    stored = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {}
    for run, made in results.items():
        stored[run.path.name] = {"settings": list(run.changes), "outcome": made}
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(stored, indent=1, sort_keys=True) + "\n", encoding="utf-8")


def table(results: dict[Run, dict[str, Any]], world: str) -> list[str]:
    """One line an algorithm."""
    lines = [
        "| algorithm | seeds | SFT | RL | each seed (95 %) | smallest gain | lowest format | reached 85 % | episodes to it | sampled tokens to it | peak memory, MB |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for algorithm in NAMES:
        of_seed = {
            run.seed: r for run, r in results.items() if (run.algorithm, run.world) == (algorithm, world)
        }
        if not of_seed:
            continue
        mine = list(of_seed.values())
        costs = [r["cost"] for r in mine if r["cost"] is not None]
        each = ", ".join(
            f"{seed}: {r['rl']:.1%} ({r['ci95'][0]:.0%}–{r['ci95'][1]:.0%})"
            for seed, r in sorted(of_seed.items())
        )
        lines.append(
            f"| `{algorithm}` | {len(mine)} | {mean(r['sft'] for r in mine):.1%} | {mean(r['rl'] for r in mine):.1%} | {each} | "
            f"{100 * min(r['rl'] - r['sft'] for r in mine):+.0f} | {min(r['format'] for r in mine):.1%} | "
            f"{len(costs)} of {len(mine)} | "
            f"{_median(costs, 0)} | {_median(costs, 1)} | {max(r['memory'] for r in mine):.0f} |"
        )
    return lines


def _median(costs: list[tuple[float, float]], part: int) -> str:
    return f"{median(cost[part] for cost in costs):,.0f}" if costs else "–"


def curves(results: dict[Run, dict[str, Any]], world: str) -> list[str]:
    """Validation success by update: mean over seeds, lowest and highest."""
    updates = sorted({u for run, r in results.items() if run.world == world for u, _ in r["curve"]})
    lines = [
        "| algorithm | " + " | ".join(f"update {u}" for u in updates) + " |",
        "|---" * (len(updates) + 1) + "|",
    ]
    for algorithm in NAMES:
        mine = [
            dict(r["curve"]) for run, r in results.items() if (run.algorithm, run.world) == (algorithm, world)
        ]
        if mine:
            cells = [[curve[u] for curve in mine if u in curve] for u in updates]
            shown = [f"{mean(c):.0%} ({min(c):.0%}–{max(c):.0%})" if c else "–" for c in cells]
            lines.append(f"| `{algorithm}` | " + " | ".join(shown) + " |")
    return lines


def page(results: dict[Run, dict[str, Any]], planned: int) -> str:
    """The evidence page."""
    lines = [
        "# Evidence: algorithms",
        "",
        "Command: `python bench/algorithms.py`. All algorithms start from the same SFT policy of a world and seed (the quickstart's",
        f"teacher and SFT) and learn for 15 updates of 128 episodes with the quickstart's settings ({', '.join(f'`{s}`' for s in SETTINGS)}),",
        "without hard-example rounds. Methods that compare within groups take half of an advantage against the batch",
        f"(`credit.batch_share=0.5`), except `{ALONE}`; nothing else was tuned. Success is on 200 held-out test tasks,",
        "greedy, of the checkpoint that was best on 64 validation tasks; costs are medians over the seeds whose validation",
        "success reached 85 %.",
        *(["", f"**{len(results)} of {planned} runs are finished.**"] if len(results) < planned else []),
    ]
    for world in dict.fromkeys(run.world for run in results):
        lines += [
            "",
            f"## {world}",
            "",
            *table(results, world),
            "",
            "Validation success, mean (lowest–highest) over seeds:",
            "",
        ]
        lines += curves(results, world)
    return "\n".join([*lines, ""])


def plan_of(
    algorithms: Sequence[str],
    worlds: Sequence[str],
    seeds: Sequence[int],
    folder: Path,
    settings: tuple[str, ...],
) -> list[Run]:
    """Every algorithm in the first world, and those that are measured everywhere in all."""
    return [
        Run(algorithm, world, seed, folder, settings)
        for seed in seeds
        for world in worlds
        for algorithm in algorithms
        if world == worlds[0] or algorithm in EVERYWHERE
    ]


def keep(results: dict[Run, dict[str, Any]], whole: list[Run]) -> None:
    """Store results and write the page of all that are known."""
    store(results)
    PAGE.write_text(page(known_results(whole), len(whole)), encoding="utf-8")


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--algorithms", nargs="+", default=[*NAMES], choices=[*NAMES])
    parser.add_argument("--worlds", nargs="+", default=[*WORLDS])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--folder", type=Path, default=ROOT / "runs" / "algorithms")
    parser.add_argument("--finished", action="store_true", help="Write the page of finished runs only.")
    parser.add_argument("--quick", action="store_true")
    asked = parser.parse_args()
    settings = SETTINGS
    if asked.quick:
        asked.algorithms, asked.worlds, asked.seeds = ["grpo", "ppo"], ["orders"], [0]
        asked.folder, settings = ROOT / "runs" / "algorithms-quick", (*SETTINGS, *QUICK)
        shutil.rmtree(asked.folder, ignore_errors=True)
    asked.folder.mkdir(parents=True, exist_ok=True)
    settings = (*settings, "evaluation.sampled=false")
    whole = plan_of(NAMES, WORLDS, (0, 1, 2), asked.folder, settings)
    plan = plan_of(asked.algorithms, asked.worlds, asked.seeds, asked.folder, settings)
    results = {} if asked.quick else known_results(plan)
    if asked.finished:
        done = [run for run in plan if (run.path / "stages" / "evaluate.json").exists()]
        results |= {run: outcome(run) for run in done}
        keep(results, whole)
    else:
        left = [run for run in plan if run not in results]
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(prepare, {run.base: run for run in left}.values()))
            for run, made in zip(left, pool.map(train, left), strict=True):
                results[run] = made
                if not asked.quick:
                    keep(results, whole)
    first = [
        r for run, r in results.items() if (run.world, run.algorithm) == (asked.worlds[0], plan[0].algorithm)
    ]
    ours, peer = mean(r["rl"] for r in first), mean(r["sft"] for r in first)
    result = {
        "name": "algorithms",
        "ratio": ours / peer if peer else None,
        "ours": ours,
        "peer": peer,
        "unit": "held-out success",
        "checks": {run.path.name: made["rl"] for run, made in results.items()},
        "machine": {"cpus": os.cpu_count(), "platform": platform.platform()},
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
