"""A horizon that grows against a fixed one, in a world with depth: cost to the same success, ``docs/evidence/horizon.md``.

    python bench/horizon.py                  # three seeds of both; about 40 minutes on two quiet cores
    python bench/horizon.py --seeds 0
    python bench/horizon.py --quick          # one tiny run of each, writes no page

Both start from the same SFT policy of a seed and learn with the same settings but for ``curriculum.max_turns``. Runs go two
at a time, one thread each. One that is finished is not repeated and one that was stopped goes on, so the script can be stopped
and started again. It ends with one line of JSON: mean sampled tokens to the target with a growing horizon (ours) and with
a fixed one (peer), and the mean ratio of the two over seeds.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import shutil
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from branching import branch, palestra

from palestra.pipeline import parse_config
from palestra.pipeline.run import create_run
from palestra.store import RunFolder

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "evidence" / "horizon.md"
CONFIG = f"""
world: {{name: "{ROOT / "bench" / "deep_world.py"}:Trails"}}
policy: {{threads: 1, action_tokens: 32}}
rollout: {{max_turns: 14}}
collect: {{tasks: 220, demonstrations: 120, vary_prompts: 0}}
sft: {{epochs: 4}}
gate: {{tasks: 16}}
rl: {{updates: 20, tasks_per_update: 12, group_size: 8, validate_every: 2, validation_tasks: 96}}
mine: {{rounds: 0}}
evaluation: {{tasks: 200}}
"""
ARMS: dict[str, tuple[str, ...]] = {
    "fixed": (),
    "growing": ("curriculum.max_turns=[4,7,10,14]", "curriculum.after=4"),
}
QUICK = (
    "collect.tasks=24",
    "collect.demonstrations=24",
    "sft.epochs=1",
    "gate.tasks=2",
    "gate.min_format_compliance=0",
    "gate.min_success_at_group=0",
    "rl.updates=4",
    "rl.tasks_per_update=2",
    "rl.group_size=4",
    "rl.validation_tasks=4",
    "evaluation.tasks=8",
    "rollout.max_turns=5",
)
QUICK_GROWING = ("curriculum.max_turns=[2,5]", "curriculum.after=2")
HOPED = 0.8
"""Success whose cost is measured; the highest that all runs reach, in steps of 5 points, if that is lower."""
T975 = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 6: 2.447, 7: 2.365, 8: 2.306, 9: 2.262}
"""Student's t by degrees of freedom, two-sided 95 %."""


@dataclass(frozen=True)
class Run:
    """One horizon with one seed."""

    arm: str
    seed: int
    folder: Path
    quick: bool

    @property
    def settings(self) -> tuple[str, ...]:
        """What differs from the configuration above."""
        growing = QUICK_GROWING if self.quick and self.arm == "growing" else ARMS[self.arm]
        return (f"seed={self.seed}", *(QUICK if self.quick else ()), *growing)

    @property
    def base(self) -> Path:
        """The run whose SFT policy both horizons start from."""
        return self.folder / f"{self.seed}-sft"

    @property
    def path(self) -> Path:
        """This run."""
        return self.folder / f"{self.seed}-{self.arm}"


@dataclass(frozen=True)
class Point:
    """A validation: what was spent until then, and the success at the full horizon."""

    update: int
    tokens: float
    episodes: float
    success: float


@dataclass(frozen=True)
class Made:
    """What a run came to."""

    curve: list[Point]
    final: dict[str, dict[str, Any]]
    """Held-out test after RL, greedy and sampled, and of the SFT policy."""

    def cost(self, target: float) -> tuple[float, float] | None:
        """Sampled tokens and episodes until the target was reached, linear between validations."""
        if self.curve[0].success >= target:
            return 0.0, 0.0
        for before, after in pairwise(self.curve):
            if after.success >= target:
                share = (target - before.success) / (after.success - before.success)
                tokens = before.tokens + share * (after.tokens - before.tokens)
                return tokens, before.episodes + share * (after.episodes - before.episodes)
        return None

    def average(self, tokens: float) -> float:
        """Mean success over the first ``tokens`` sampled ones: the area under the curve."""
        area = 0.0
        for before, after in pairwise(self.curve):
            width = min(after.tokens, tokens) - before.tokens
            if width > 0:
                slope = (after.success - before.success) / (after.tokens - before.tokens)
                area += width * (before.success + slope * width / 2)
        return area / tokens


def make(path: Path, settings: Sequence[str]) -> None:
    """A new run, or what is left of one that was stopped while it was made."""
    if not (path / "manifest.json").exists():
        shutil.rmtree(path, ignore_errors=True)
        create_run(path, CONFIG, parse_config(CONFIG, settings), f"bench/horizon.py {path.name}")


def prepare(run: Run) -> None:
    """Collect and imitate, once a seed."""
    make(run.base, [setting for setting in run.settings if not setting.startswith("curriculum.")])
    if not (run.base / "stages" / "sft.json").exists():
        palestra("sft", run.base, log=run.base.with_suffix(".log"))


def train(run: Run) -> Made:
    """Learn online from the prepared policy and evaluate what came of it."""
    if not run.path.exists():
        branch(run.base, run.path, lambda aside: make(aside, run.settings))
    palestra("train", run.path, "--resume", log=run.path.with_suffix(".log"))
    return measure(run.path)


def measure(path: Path) -> Made:
    """A finished run's curve, from the SFT policy on, and its evaluations."""
    run = RunFolder.open(path)
    rl, final = run.resolved()["rl"], run.read_evals()
    size = rl["tasks_per_update"] * rl["group_size"]
    curve, tokens = [Point(0, 0.0, 0.0, final["sft-greedy"]["success"])], 0.0
    for row in run.read_metrics()[0]:
        if row["stage"] == "rl":
            tokens += size * row["tokens/action_mean"]
            if "validation/success" in row:
                episodes = float(size * row["update"])
                curve.append(Point(row["update"], tokens, episodes, row["validation/success"]))
    return Made(curve, final)


def interval(values: Sequence[float]) -> tuple[float, float, float] | None:
    """Mean and 95 % t-interval over seeds; None for fewer than two."""
    if len(values) < 2:
        return None
    half = T975[len(values) - 1] * stdev(values) / math.sqrt(len(values))
    return mean(values), mean(values) - half, mean(values) + half


def common_target(results: dict[Run, Made]) -> float:
    """The success whose cost every run can be asked for."""
    reached = min(max(point.success for point in made.curve) for made in results.values())
    return min(HOPED, math.floor(reached * 20 + 1e-9) / 20)


def pairs(results: dict[Run, Made]) -> list[tuple[Made, Made]]:
    """Fixed and growing of each seed that has both."""
    found = {(run.seed, run.arm): made for run, made in results.items()}
    seeds = sorted({run.seed for run in results})
    return [
        (found[seed, "fixed"], found[seed, "growing"])
        for seed in seeds
        if (seed, "fixed") in found and (seed, "growing") in found
    ]


def ratios(results: dict[Run, Made], target: float, part: int) -> list[float]:
    """Logarithms of growing over fixed, one a seed, of tokens (0) or episodes (1) to the target."""
    costs = [(fixed.cost(target), growing.cost(target)) for fixed, growing in pairs(results)]
    return [math.log(b[part] / a[part]) for a, b in costs if a and b and a[part] and b[part]]


def conclusion(results: dict[Run, Made], target: float) -> list[str]:
    """The comparison over seeds, whichever way it came out."""
    lines = []
    for part, name in enumerate(("sampled tokens", "episodes")):
        if (found := interval(ratios(results, target, part))) is not None:
            low, middle, high = (math.exp(found[index]) for index in (1, 0, 2))
            lines.append(
                f"- {name} to {target:.0%}: the growing horizon took {middle:.2f} times as many as the fixed one "
                f"(95 % {low:.2f} to {high:.2f}, {len(ratios(results, target, part))} seeds, geometric mean)."
            )
    shared = min(made.curve[-1].tokens for made in results.values())
    measures: dict[str, Callable[[Made], float]] = {
        f"mean validation success over the first {shared:,.0f} sampled tokens": lambda made: made.average(
            shared
        ),
        "test success after RL, greedy": lambda made: made.final["rl-greedy"]["success"],
        "test success after RL, sampled": lambda made: made.final["rl-sampled"]["success"],
    }
    for name, measure_of in measures.items():
        gains = [100 * (measure_of(growing) - measure_of(fixed)) for fixed, growing in pairs(results)]
        if (found := interval(gains)) is not None:
            lines.append(
                f"- {name}: {found[0]:+.1f} points with the growing horizon (95 % {found[1]:+.1f} to {found[2]:+.1f})."
            )
    return lines


def table(results: dict[Run, Made], target: float) -> list[str]:
    """One line a run."""
    lines = [
        f"| horizon | seed | SFT | tokens to {target:.0%} | episodes to {target:.0%} | tokens in all | RL, greedy | RL, sampled |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for arm in ARMS:
        mine = {run.seed: made for run, made in results.items() if run.arm == arm}
        for seed, made in mine.items():
            cost = made.cost(target)
            spent = f"{cost[0]:,.0f} | {cost[1]:,.0f}" if cost else "– | –"
            greedy, sampled = (_success(made.final[f"rl-{mode}"]) for mode in ("greedy", "sampled"))
            lines.append(
                f"| {arm} | {seed} | {made.final['sft-greedy']['success']:.1%} | {spent} | {made.curve[-1].tokens:,.0f} | "
                f"{greedy} | {sampled} |"
            )
    return lines


def _success(evaluation: dict[str, Any]) -> str:
    """Success with Wilson's interval."""
    low, high = evaluation["success_ci95"]
    return f"{evaluation['success']:.1%} ({low:.0%}–{high:.0%})"


def curves(results: dict[Run, Made]) -> list[str]:
    """Validation success and sampled tokens by update, means over seeds."""
    updates = sorted({point.update for made in results.values() for point in made.curve})
    lines = ["| horizon | " + " | ".join(map(str, updates)) + " |", "|---" * (len(updates) + 1) + "|"]
    for arm in ARMS:
        mine = [made for run, made in results.items() if run.arm == arm]
        cells = []
        for update in updates:
            points = [point for made in mine for point in made.curve if point.update == update]
            cells.append(
                f"{mean(p.success for p in points):.0%}, {mean(p.tokens for p in points) / 1000:,.0f}k"
                if points
                else "–"
            )
        lines.append(f"| {arm} | " + " | ".join(cells) + " |")
    return lines


def page(results: dict[Run, Made], target: float) -> str:
    """The evidence page."""
    changed = ", ".join(f"`{setting}`" for setting in ARMS["growing"])
    lines = [
        "# Evidence: a growing horizon",
        "",
        "Command: `python bench/horizon.py`. The world is `bench/deep_world.py`: a trail of records that takes 2 to 12 turns, all lengths",
        "equally likely and none told; a wrong way never ends, so whoever errs wanders on until the limit. Both horizons start from",
        f"the same SFT policy of a seed. The fixed one allows 14 turns; the growing one sets {changed}. All",
        "else is equal, validation (greedy, 96 tasks) and test (200 tasks) always allow 14 turns. The target is the highest success, up",
        "to 80 %, that every run reached. Intervals are over seeds (t, paired), those of success Wilson's.",
        "",
        *conclusion(results, target),
        "",
        *table(results, target),
        "",
        "Validation success and sampled tokens by update, means over seeds:",
        "",
        *curves(results),
    ]
    return "\n".join([*lines, ""])


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--folder", type=Path, default=ROOT / "runs" / "horizon")
    parser.add_argument("--quick", action="store_true")
    asked = parser.parse_args()
    if asked.quick:
        asked.seeds, asked.folder = [0], ROOT / "runs" / "horizon-quick"
        shutil.rmtree(asked.folder, ignore_errors=True)
    asked.folder.mkdir(parents=True, exist_ok=True)
    plan = [Run(arm, seed, asked.folder, asked.quick) for seed in asked.seeds for arm in ARMS]
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(prepare, {run.base: run for run in plan}.values()))
        results = dict(zip(plan, pool.map(train, plan), strict=True))
    target = common_target(results)
    if not asked.quick:
        PAGE.write_text(page(results, target), encoding="utf-8")
    costs = {
        arm: [cost[0] for run, made in results.items() if run.arm == arm and (cost := made.cost(target))]
        for arm in ARMS
    }
    logs = ratios(results, target, 0)
    result = {
        "name": "horizon",
        "ratio": math.exp(mean(logs)) if logs else None,
        "ours": mean(costs["growing"]) if costs["growing"] else None,
        "peer": mean(costs["fixed"]) if costs["fixed"] else None,
        "unit": f"sampled tokens to {target:.0%} held-out success",
        "checks": {run.path.name: made.final["rl-greedy"]["success"] for run, made in results.items()},
        "machine": {"cpus": os.cpu_count(), "platform": platform.platform()},
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
