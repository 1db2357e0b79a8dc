"""Memory of GRPO and of PPO with its critic, side by side, written to ``docs/evidence/memory.md``.

    python bench/memory.py           # a model of 92 million weights, about four minutes on one core
    python bench/memory.py --quick   # a small one, writes no page

Both make one update of the same rows with the same policy, reference and optimiser (AdamW, float32), each in a process
of its own: credit, then four optimiser steps. Counted is the largest resident memory of the process less that after the libraries
were loaded. The script ends with one line of JSON: bytes of GRPO (ours) and of PPO (peer).
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import resource
import subprocess
import sys
from pathlib import Path

import torch

from palestra.policy.nano import new_nano
from palestra.training import (
    ALGORITHMS,
    Critic,
    CriticCredit,
    CriticSettings,
    Learner,
    advantage_segments,
    make_surrogate,
    policy_loss,
)
from palestra.types import Facts, Segment, StopReason, Task, Trajectory, TrajectoryGroup, Turn

PAGE = Path(__file__).resolve().parent.parent / "docs" / "evidence" / "memory.md"
VOCABULARY, ATTEMPTS, TURNS, ACTION, OBSERVATION = 8192, 8, 4, 24, 24
SIZES = {"full": {"hidden": 768, "feed_forward": 2048, "layers": "ca" * 6, "heads": 12}, "quick": {}}
MICRO_BATCH_TOKENS = 512
MINIBATCHES = 4


def groups() -> list[TrajectoryGroup]:
    """Four groups of random attempts with unequal rewards."""
    rng = random.Random(0)

    def ids(count: int) -> tuple[int, ...]:
        return tuple(rng.randrange(16, VOCABULARY) for _ in range(count))

    def attempt(task: Task, name: str) -> Trajectory:
        turns = tuple(
            Turn(
                "a",
                "o",
                Facts(),
                reward=rng.random(),
                action_ids=ids(ACTION),
                sampled_logprobs=(-9.0,) * ACTION,
                observation_ids=ids(OBSERVATION),
            )
            for _ in range(TURNS)
        )
        total = sum(turn.reward or 0.0 for turn in turns)
        return Trajectory(
            name, task, (), turns, StopReason.terminated, True, prompt_ids=ids(64), reward=total
        )

    made = []
    for number in range(4):
        task = Task(id=f"w/train/{number}", env="w", split="train", seed=number, prompt="p")
        attempts = tuple(attempt(task, f"{number}/{n}") for n in range(ATTEMPTS))
        made.append(TrajectoryGroup(str(number), task, attempts))
    return made


def resident() -> int:
    """Largest resident memory of this process so far, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def rows_of(algorithm: str, size: str) -> list[Segment]:
    """The update's rows; with a critic it values and learns first."""
    if ALGORITHMS[algorithm].critic is None:
        return advantage_segments(groups(), ALGORITHMS[algorithm].make_credit())
    settings = CriticSettings(1e-5, epochs=1, minibatches=MINIBATCHES, value_clip=0.2, seed=0)
    KEPT.append(Critic(new_nano(VOCABULARY, **SIZES[size]), settings, micro_batch_tokens=MICRO_BATCH_TOKENS))
    credit = CriticCredit(
        KEPT[0], unit="turn", gamma=0.99, gae_lambda=lambda: 0.95, warmup=0, negative_weight=1.0
    )
    return credit(groups())[0]


KEPT: list[Critic] = []
"""As in training, the critic stays in memory while the policy learns."""


def measure(algorithm: str, size: str) -> None:
    """One update; prints what it took."""
    torch.set_num_threads(1)
    before = resident()
    model = new_nano(VOCABULARY, **SIZES[size])
    learner = Learner(model, optimizer="adamw", micro_batch_tokens=MICRO_BATCH_TOKENS)
    reference = new_nano(VOCABULARY, **SIZES[size])
    rows = rows_of(algorithm, size)
    loss = policy_loss(make_surrogate("clip", {}), kl_weight=0.02)
    step = -(-len(rows) // MINIBATCHES)
    for start in range(0, len(rows), step):
        learner.update(rows[start : start + step], loss, 1e-6, reference)
    weights = sum(parameter.numel() for parameter in model.parameters())
    print(json.dumps({"bytes": resident() - before, "weights": weights, "rows": len(rows)}))


def in_process(algorithm: str, size: str) -> dict[str, int]:
    """``measure`` in a process of its own."""
    command = [sys.executable, __file__, "--measure", algorithm, *(["--quick"] if size == "quick" else [])]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    found: dict[str, int] = json.loads(done.stdout.splitlines()[-1])
    return found


def page(found: dict[str, dict[str, int]], saved: float) -> str:
    """The evidence page."""
    weights = found["grpo"]["weights"]
    lines = [
        "# Evidence: memory of GRPO and PPO",
        "",
        f"Command: `python bench/memory.py`. A policy of {weights / 1e6:.0f} million weights in float32, AdamW, a frozen reference, one update of",
        f"{found['grpo']['rows']} attempts in {MINIBATCHES} optimiser steps, micro-batches of {MICRO_BATCH_TOKENS} tokens, each algorithm in a process of its own. Counted is the largest",
        "resident memory less that after the libraries were loaded; bytes a weight are that over the policy's weights.",
        "",
        "| algorithm | MB | bytes a weight |",
        "|---|---|---|",
        *(
            f"| `{name}` | {each['bytes'] / 1e6:,.0f} | {each['bytes'] / weights:.1f} |"
            for name, each in found.items()
        ),
        "",
        f"GRPO takes {saved:.0%} less. A critic is a second model with gradients and two moments of AdamW: 16 bytes a weight, beside the",
        "20 of policy and reference; without a reference (`loss.kl_weight: 0`) the difference is larger.",
        "The rest is activations, which are freed between the critic's part of the update and the policy's.",
    ]
    return "\n".join([*lines, ""])


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--measure", choices=["grpo", "ppo"], help="Measure one algorithm in this process.")
    asked = parser.parse_args()
    size = "quick" if asked.quick else "full"
    if asked.measure:
        measure(asked.measure, size)
        return
    found = {name: in_process(name, size) for name in ("grpo", "ppo")}
    ours, peer = found["grpo"]["bytes"], found["ppo"]["bytes"]
    if not asked.quick:
        PAGE.write_text(page(found, 1 - ours / peer), encoding="utf-8")
    result = {
        "name": "memory",
        "ratio": ours / peer,
        "ours": ours,
        "peer": peer,
        "unit": "bytes",
        "checks": {"rows": {name: each["rows"] for name, each in found.items()}},
        "machine": {"cpus": os.cpu_count(), "platform": platform.platform()},
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
