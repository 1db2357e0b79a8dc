"""Training steps over several turns: palestra against TRL's GRPOTrainer, by turns on one machine.

    python -m venv .trl && .trl/bin/pip install torch==2.13.0 trl==1.16.0
    python bench/multiturn_vs_trl.py --trl .trl/bin/python           # about ten minutes on a free core
    python bench/multiturn_vs_trl.py --trl .trl/bin/python --quick   # short turns, one step

A step is a group of eight dialogues of four turns of 32 tokens each (SmolLM2-135M-Instruct, float32, AdamW, a prompt of about 280
tokens, the dialogue of ``guess_world.py``), and one update on them. Each side is a process with one thread; they take turns, and the
first step of each warms up. Before that, both work out loss and gradient of one given batch. CPU seconds are compared, for other
work on the machine shifts them less than wall time. The last line is JSON: trajectories a CPU second of palestra (ours) and of TRL.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import torch
from guess_world import SYSTEM, answer, prompt, secret
from speed_parts import Load, conclude, smollm2

from palestra.policy import SamplingParams, TokenPolicy
from palestra.policy.local import LocalEngine
from palestra.policy.models import find_model
from palestra.rewards import Rubric
from palestra.rollout import Limits, Rollout, collect_groups
from palestra.training import ALGORITHMS, Learner, advantage_segments, clipped, policy_loss
from palestra.types import Segment, Task, TrajectoryGroup

GROUP, TOLERANCE = 8, 1e-4
MICRO_BATCH_TOKENS = 1024
"""Palestra's own choice for a model of this size."""
PATIENT = {"max_action_tokens": 10**6, "max_repeats": 100, "max_invalid": 100, "max_seconds": 1e6}


class Guesses:
    """The dialogue as a world: it has no end of its own."""

    system_prompt, milestones = SYSTEM, {}

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[str, dict[str, Any]]:
        """Begin the task's game."""
        task: Task = (options or {})["task"]
        self._secret = secret(task.seed)
        return task.prompt, {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Take a guess."""
        reward, reply = answer(self._secret, action)
        return reply, reward, False, False, {}

    def close(self) -> None:
        """There is nothing to close."""


class Palestra:
    """Our side of the protocol: steps and gradients on demand."""

    def __init__(self, turns: int, new_tokens: int) -> None:
        self.turns, self.new_tokens, self.game = turns, new_tokens, 0
        self.model, self.template = smollm2()
        self.learner = Learner(self.model, micro_batch_tokens=MICRO_BATCH_TOKENS)
        self.engine = LocalEngine(
            self.model, -1, slots=GROUP, context_tokens=1024
        )  # -1: nothing ends a turn early
        self.loss = policy_loss(clipped(clip_low=0.2, clip_high=0.28), kl_weight=0.0)

    def play(self) -> TrajectoryGroup:
        """A group, rewarded as the world says."""
        task = Task(f"guess/train/{self.game}", "guess", "train", self.game, prompt(self.game))
        policy = TokenPolicy("rl", self.template, self.engine, SamplingParams(self.new_tokens))
        rollout = Rollout(Guesses, policy, Rubric(), Limits(max_turns=self.turns, **PATIENT))
        (group,) = collect_groups(rollout, [task], GROUP, stage=f"rl/{self.game}", seed=self.game)
        rewarded = (
            replace(each, reward=sum(turn.env_reward for turn in each.turns) / self.turns)
            for each in group.trajectories
        )
        return replace(group, trajectories=tuple(rewarded))

    def step(self) -> dict[str, float]:
        """Play and learn; what it took."""
        self.game += 1
        wall, cpu = time.perf_counter(), time.process_time()
        self.engine.weights_changed(self.game)
        group = self.play()
        played = time.process_time()
        rows = advantage_segments([group], ALGORITHMS["grpo"].make_credit())
        assert len(rows) == GROUP, "rewards without spread: nothing to learn"
        self.learner.update(rows, self.loss, 1e-5)
        ended = time.process_time()
        return {
            "wall": time.perf_counter() - wall,
            "cpu": ended - cpu,
            "generate": played - cpu,
            "update": ended - played,
            "tokens": sum(len(row.ids) for row in rows),
            "sampled": sum(sum(row.action_mask) for row in rows),
        }

    def gradient_of(self, file: str) -> dict[str, Any]:
        """Loss and norms of gradients of a given batch; a learning rate of 0 leaves the weights alone."""
        given = json.loads(Path(file).read_text(encoding="utf-8"))
        rows = [
            Segment(str(n), tuple(ids), tuple(map(bool, mask)), tuple(old), (advantage,) * len(ids))
            for n, (ids, mask, old, advantage) in enumerate(
                zip(given["ids"], given["mask"], given["logprobs"], given["advantages"], strict=True)
            )
        ]
        learner = Learner(self.model, micro_batch_tokens=MICRO_BATCH_TOKENS, max_gradient_norm=1e9)
        metrics = learner.update(rows, self.loss, 0.0)
        norms = {
            name: float(each.grad.norm())
            for name, each in self.model.named_parameters()
            if each.grad is not None
        }
        return {"loss": metrics["loss/total"], "norms": norms}


def palestra_side(asked: argparse.Namespace) -> None:
    """Obey lines on standard input as ``trl_side.py`` does."""
    torch.set_num_threads(1)
    side = Palestra(asked.turns, asked.new_tokens)
    for line in map(str.strip, sys.stdin):
        if line == "end":
            print(json.dumps({"peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024}), flush=True)
            return
        found = side.step() if line == "step" else side.gradient_of(line)
        print(json.dumps(found), flush=True)


class Side:
    """A process that answers each line with a line of JSON."""

    def __init__(self, command: list[str]) -> None:
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(self, line: str) -> dict[str, Any]:
        """The answer to a line."""
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()
        answered = self._process.stdout.readline()
        assert answered, "the process has ended"
        found: dict[str, Any] = json.loads(answered)
        return found


def shared_batch(folder: Path) -> Path:
    """Random dialogues of unequal length, with log-probabilities near those of random tokens, as a file."""
    rng, prompt_tokens = random.Random(3), 80
    start = [rng.randrange(100, 49_000) for _ in range(prompt_tokens)]
    ids, mask, logprobs, advantages = [], [], [], []
    for _ in range(4):
        spoken = [bool(turn % 2 == 0) for turn in range(5) for _ in range(rng.randint(6, 14))]
        ids.append(start + [rng.randrange(100, 49_000) for _ in spoken])
        mask.append([0] * prompt_tokens + [int(each) for each in spoken])
        logprobs.append([0.0] * prompt_tokens + [rng.gauss(-13.0, 1.0) * each for each in spoken])
        advantages.append(rng.gauss(0.0, 1.0))
    batch = {
        "prompt_tokens": prompt_tokens,
        "ids": ids,
        "mask": mask,
        "logprobs": logprobs,
        "advantages": advantages,
    }
    file = folder / "batch.json"
    file.write_text(json.dumps(batch), encoding="utf-8")
    return file


def compare(sides: dict[str, Side]) -> dict[str, float]:
    """How far loss and gradients of a shared batch are apart, relative.

    Raises:
        AssertionError: by more than the tolerance.
    """
    with tempfile.TemporaryDirectory() as folder:
        file = shared_batch(Path(folder))
        ours, theirs = (sides[name].ask(str(file)) for name in ("palestra", "trl"))
    assert ours["norms"].keys() == theirs["norms"].keys()
    whole = [sum(each**2 for each in found["norms"].values()) ** 0.5 for found in (ours, theirs)]
    apart = {
        "loss": abs(ours["loss"] - theirs["loss"]) / abs(theirs["loss"]),
        "gradient_norm": abs(whole[0] - whole[1]) / whole[1],
        "worst_weight": max(abs(ours["norms"][name] / norm - 1) for name, norm in theirs["norms"].items()),
    }
    assert max(apart.values()) <= TOLERANCE, apart
    return apart


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--trl", help="The Python of an environment with TRL.")
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--turns", type=int)
    parser.add_argument("--new-tokens", type=int)
    parser.add_argument(
        "--side", action="store_true", help="Be palestra's half, on standard input and output."
    )
    asked = parser.parse_args()
    asked.turns, asked.new_tokens = (
        asked.turns or (2 if asked.quick else 4),
        asked.new_tokens or (4 if asked.quick else 32),
    )
    if asked.side:
        palestra_side(asked)
        return
    if asked.trl is None:
        parser.error("--trl is needed: the Python of an environment with TRL 1.16")
    sizes = ["--turns", str(asked.turns), "--new-tokens", str(asked.new_tokens)]
    theirs = [asked.trl, str(Path(__file__).with_name("trl_side.py")), "--model", str(find_model("smollm2"))]
    sides = {
        "palestra": Side([sys.executable, __file__, "--side", *sizes]),
        "trl": Side([*theirs, "--group", str(GROUP), *sizes]),
    }
    apart = compare(sides)
    print(json.dumps({"apart": apart}), flush=True)
    run(sides, apart, 1 if asked.quick else asked.steps)


def run(sides: dict[str, Side], apart: dict[str, float], steps: int) -> None:
    """Steps by turns, and what they come to."""
    found: dict[str, list[dict[str, float]]] = {name: [] for name in sides}
    others = []
    for number in range(steps + 1):
        for name, side in sides.items():
            load = Load()
            step = side.ask("step")
            took = load.read()  # the sides are children that still run, so all their time counts as others'
            print(json.dumps({name: step}), flush=True)
            if number:
                found[name].append(step)
                others.append(took["others"] - step["cpu"] / took["wall"])
    peaks = {name: side.ask("end")["peak"] for name, side in sides.items()}
    rows = {
        name: {key: median(each[key] for each in steps_) for key in steps_[0]} | {"peak": peaks[name]}
        for name, steps_ in found.items()
    }
    ratios = {key: rows["trl"][key] / rows["palestra"][key] for key in ("cpu", "wall", "generate", "update")}
    checks = {
        "apart": apart,
        "times_as_fast": ratios,
        "memory": peaks["palestra"] / peaks["trl"],
        "others_cores": median(others),
    }
    ours, peer = (GROUP / rows[name]["cpu"] for name in ("palestra", "trl"))
    conclude("multiturn_vs_trl", ours, peer, "trajectories a CPU second", checks, rows)


if __name__ == "__main__":
    main()
