"""What the benchmarks of speed share: real episodes as rows, alternating measurements, what else the machine did.

The cores may be shared with other work, so nothing is told but ratios of medians of measurements that took turns.
"""

from __future__ import annotations

import json
import os
import platform
import resource
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import nn
from transformers import AutoModelForCausalLM

from palestra.envs import make_env
from palestra.policy import ChatTemplate, NoisyTeacher, ScriptedPolicy
from palestra.policy.models import find_model, load_policy
from palestra.rewards import Rubric
from palestra.rollout import Limits, Rollout, collect_groups
from palestra.training import ALGORITHMS, advantage_segments, tokenize_trajectory
from palestra.types import Segment

PAGE = Path(__file__).resolve().parent.parent / "docs" / "evidence" / "speed.md"


class Load:
    """Wall and CPU seconds of this process, and the cores that others kept busy; Linux only."""

    def __init__(self) -> None:
        self._start = self._now()

    @staticmethod
    def _now() -> tuple[float, float, float]:
        ticks = [int(each) for each in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
        busy = (sum(ticks) - ticks[3] - ticks[4]) / os.sysconf("SC_CLK_TCK")
        return time.perf_counter(), own_cpu_seconds(), busy

    def read(self) -> dict[str, float]:
        """Since this was made: ``wall`` and ``cpu`` seconds, and ``others``, in cores."""
        wall, cpu, busy = (now - then for now, then in zip(self._now(), self._start, strict=True))
        return {"wall": wall, "cpu": cpu, "others": max(0.0, busy - cpu) / wall}


def own_cpu_seconds() -> float:
    """Of this process and of children that have ended."""
    used = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(each.ru_utime + each.ru_stime for each in used)


def alternate(
    contestants: Mapping[str, Callable[[], Any]], rounds: int, warm_up: int = 1
) -> dict[str, dict[str, float]]:
    """Let each have its turn, round after round; medians of what ``Load`` reads, without the first rounds."""
    found: dict[str, list[dict[str, float]]] = {name: [] for name in contestants}
    for _ in range(rounds + warm_up):
        for name, run in contestants.items():
            load = Load()
            run()
            found[name].append(load.read())
    kept = {name: each[warm_up:] for name, each in found.items()}
    return {
        name: {key: median(one[key] for one in each) for key in each[0]} | {"spread": spread(each)}
        for name, each in kept.items()
    }


def spread(each: list[dict[str, float]]) -> float:
    """The longest by the shortest, in CPU seconds."""
    seconds = [one["cpu"] for one in each]
    return max(seconds) / min(seconds)


def smollm2() -> tuple[Any, ChatTemplate]:
    """SmolLM2-135M-Instruct as palestra runs it."""
    return load_policy(find_model("smollm2"))


def plain_smollm2(dtype: torch.dtype = torch.float32) -> Any:
    """The same weights as transformers runs them."""
    model = AutoModelForCausalLM.from_pretrained(find_model("smollm2"), dtype=dtype)
    assert all(type(each) is nn.Linear for each in model.modules() if isinstance(each, nn.Linear))
    return model.eval()


def episode_rows(template: ChatTemplate, tasks: int, attempts: int) -> list[Segment]:
    """Rows of attempts at tasks of ``orders``, played by a teacher that errs, with their group's advantages."""
    world = make_env("orders")
    teacher = NoisyTeacher(skip=0.15, repeat=0.15, wrong=0.15)
    rollout = Rollout(
        lambda: make_env("orders"), ScriptedPolicy("rl", teacher), Rubric(), Limits(max_turns=12)
    )
    some = [world.make_task(seed=number) for number in range(tasks)]
    groups = collect_groups(rollout, some, attempts, stage="rl/1", seed=1)
    spelled = [
        replace(group, trajectories=tuple(tokenize_trajectory(each, template) for each in group.trajectories))
        for group in groups
    ]
    return advantage_segments(spelled, ALGORITHMS["grpo"].make_credit())


def large_product_peak(dtype: torch.dtype, size: int = 2048) -> float:
    """FLOP a CPU second of the faster of torch's two products of large square matrices."""
    a = torch.randn(size, size).to(dtype)
    ways = [lambda: a @ a, lambda: torch.ops.mkldnn._linear_pointwise(a, a, None, "none", [], "")]
    seconds = []
    with torch.inference_mode():
        for way in ways:
            for _ in range(6):
                start = time.process_time()
                way()
                seconds.append(time.process_time() - start)
    return 2 * size**3 / min(seconds)


def machine() -> dict[str, Any]:
    """Where it ran."""
    return {"cpus": os.cpu_count(), "threads": torch.get_num_threads(), "platform": platform.platform()}


def conclude(
    name: str, ours: float, peer: float, unit: str, checks: dict[str, Any], rows: dict[str, Any]
) -> None:
    """The last line of a benchmark; more is better, so a ratio above 1 is in our favour."""
    print(
        json.dumps(
            {
                "name": name,
                "ratio": ours / peer,
                "ours": ours,
                "peer": peer,
                "unit": unit,
                "checks": checks,
                "rows": rows,
                "machine": machine(),
            }
        )
    )
