"""A shortened context against a full one, in a world that needs at the end what it said at first; ``docs/evidence/context.md``.

    python bench/context.py                  # three seeds of three contexts; about half an hour on two quiet cores
    python bench/context.py --seeds 0
    python bench/context.py --quick          # one tiny run of each, writes no page

Each run collects, imitates and learns online with its own context, so demonstrations are shortened as episodes are. Runs go two
at a time, one thread each. One that is finished is not repeated and one that was stopped goes on. It ends with one line of
JSON: tokens read for an action with a summary (ours) and with the full context (peer), and the success of each run.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any

from branching import palestra

from palestra.evaluation import wilson_interval
from palestra.store import RunFolder
from palestra.types import Trajectory

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "evidence" / "context.md"
CONFIG = f"""world: {{name: "{ROOT / "bench" / "errand_world.py"}:Errands"}}
policy: {{threads: 1, action_tokens: 32, context_tokens: 1536}}
rollout: {{max_turns: 24, max_action_tokens: 768}}
collect: {{tasks: 220, demonstrations: 120, vary_prompts: 0}}
sft: {{epochs: 4}}
gate: {{tasks: 16}}
rl: {{updates: 8, tasks_per_update: 12, group_size: 8, validate_every: 4, validation_tasks: 48}}
mine: {{rounds: 0}}
evaluation: {{tasks: 200, sampled: false}}
"""
CONTEXTS: dict[str, tuple[str, ...]] = {
    "full": (),
    "window": ("policy.context=window", "policy.context_tokens=256", "policy.raw_turns=1"),
    "summary": ("policy.context=summary", "policy.context_tokens=256", "policy.raw_turns=1"),
}
QUICK = (
    "collect.tasks=24",
    "collect.demonstrations=24",
    "sft.epochs=1",
    "gate.tasks=2",
    "gate.min_format_compliance=0",
    "gate.min_success_at_group=0",
    "rl.updates=1",
    "rl.tasks_per_update=2",
    "rl.group_size=4",
    "rl.validation_tasks=4",
    "evaluation.tasks=8",
)


@dataclass(frozen=True)
class Run:
    """One context with one seed."""

    context: str
    seed: int
    folder: Path
    changes: tuple[str, ...]

    @property
    def path(self) -> Path:
        """Its run folder."""
        return self.folder / f"{self.seed}-{self.context}"


def train(run: Run) -> dict[str, Any]:
    """Train and evaluate, unless that was done, and say what came of it."""
    if (run.path / "manifest.json").exists():
        palestra("train", run.path, "--resume", log=run.path.with_suffix(".log"))
    else:
        config = run.folder / "context.yaml"
        config.write_text(CONFIG)
        changes = [part for change in (*CONTEXTS[run.context], *run.changes) for part in ("--set", change)]
        palestra(
            "train", config, "--seed", run.seed, "--out", run.path, *changes, log=run.path.with_suffix(".log")
        )
    made = outcome(run)
    print(
        f"{run.path.name}: {made['sft']:.1%} -> {made['rl']:.1%}, {made['read']:.0f} tokens an action",
        flush=True,
    )
    return made


def outcome(run: Run) -> dict[str, Any]:
    """Success on the test tasks, and what the policy read for each action there."""
    folder = RunFolder.open(run.path)
    evals, played = (
        folder.read_evals(),
        [trajectory for group in folder.read_groups("eval-rl") for trajectory in group.trajectories],
    )
    read = [tokens for trajectory in played for tokens in tokens_read(trajectory)]
    solved = sum(bool(trajectory.success) for trajectory in played)
    return {
        "sft": evals["sft-greedy"]["success"],
        "rl": solved / len(played),
        "ci95": wilson_interval(solved, len(played)),
        "read": mean(read),
        "most": max(read),
        "rows": mean(1 + sum(bool(turn.prompt_ids) for turn in trajectory.turns) for trajectory in played),
        "cut": mean(float(trajectory.stop_reason.is_truncation) for trajectory in played),
    }


def tokens_read(trajectory: Trajectory) -> Iterator[int]:
    """Tokens of the context of each action."""
    length = len(trajectory.prompt_ids)
    for turn in trajectory.turns:
        length = len(turn.prompt_ids) or length
        yield length
        length += len(turn.action_ids) + len(turn.observation_ids)


def page(results: dict[Run, dict[str, Any]]) -> str:
    """The evidence page."""
    lines = [
        "# Evidence: a shortened context",
        "",
        "Command: `python bench/context.py`. The world is `bench/errand_world.py`: a code is told at the first of 15 to 18 records and asked for",
        "after the last. Each run collects, imitates and learns for 8 updates of 96 episodes with its own context, nothing else",
        "differs. Success is on 200 held-out tasks, greedy, with its 95 % interval; tokens are those read for an action there.",
        "",
        "| context | seed | SFT | RL (95 %) | tokens an action, mean | most | rows an episode | cut by a limit |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for run, made in sorted(
        results.items(), key=lambda item: (list(CONTEXTS).index(item[0].context), item[0].seed)
    ):
        low, high = made["ci95"]
        lines.append(
            f"| `{run.context}` | {run.seed} | {made['sft']:.1%} | {made['rl']:.1%} ({low:.0%}–{high:.0%}) | {made['read']:.0f} | "
            f"{made['most']} | {made['rows']:.1f} | {made['cut']:.1%} |"
        )
    return "\n".join([*lines, ""])


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--contexts", nargs="+", default=[*CONTEXTS], choices=[*CONTEXTS])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--folder", type=Path, default=ROOT / "runs" / "context")
    parser.add_argument("--quick", action="store_true")
    asked = parser.parse_args()
    if asked.quick:
        asked.seeds, asked.folder = [0], ROOT / "runs" / "context-quick"
        shutil.rmtree(asked.folder, ignore_errors=True)
    asked.folder.mkdir(parents=True, exist_ok=True)
    changes = QUICK if asked.quick else ()
    plan = [Run(context, seed, asked.folder, changes) for seed in asked.seeds for context in asked.contexts]
    with ThreadPoolExecutor(2) as pool:
        results = dict(zip(plan, pool.map(train, plan), strict=True))
    if not asked.quick:
        PAGE.write_text(page(results), encoding="utf-8")

    def read(context: str) -> float | None:
        found = [made["read"] for run, made in results.items() if run.context == context]
        return mean(found) if found else None

    ours, peer = read("summary"), read("full")
    result = {
        "name": "context",
        "ratio": ours / peer if ours and peer else None,
        "ours": ours,
        "peer": peer,
        "unit": "tokens read an action",
        "checks": {run.path.name: made["rl"] for run, made in results.items()},
        "machine": {"cpus": os.cpu_count(), "platform": platform.platform()},
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
