"""Evaluation of a run: every policy on the same held-out test tasks.

The teacher, the cold-started policy, the trained policy and the oracle attempt the same tasks with the
same seeds, so their rows can be compared pair by pair. An evaluation that is already on disk is not done
again.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from palestra.evaluation import evaluate_groups
from palestra.pipeline.collecting import make_teacher
from palestra.pipeline.hosting import spent
from palestra.pipeline.learning import final_stage
from palestra.pipeline.model_parts import load_stage
from palestra.pipeline.workshop import Workshop
from palestra.policy import Policy, ScriptedPolicy, oracle_script
from palestra.types import Task


def evaluate(workshop: Workshop) -> dict[str, Any]:
    """Test everything; results go to ``eval/<stage>-<mode>.json`` and ``trajectories/eval-<stage>``."""
    config = workshop.config
    tasks = workshop.held_out_tasks("test", config.evaluation.tasks)
    examine(workshop, "teacher", "scripted", tasks, lambda: make_teacher(config))
    modes = [("greedy", 0.0)]
    if config.evaluation.sampled:
        modes.append(("sampled", config.rl.temperature))
    for name, stage in (("sft", "sft"), ("rl", final_stage(workshop, before="dpo"))):
        if name == "rl" and stage == "sft":
            continue
        loaded = load_stage(workshop.run, stage, config)
        for mode, temperature in modes:
            examine(workshop, name, mode, tasks, partial(loaded.policy, name, temperature))
    examine(workshop, "oracle", "scripted", tasks, lambda: ScriptedPolicy("oracle", oracle_script))
    return {"tasks": len(tasks)}


def examine(
    workshop: Workshop, stage: str, mode: str, tasks: list[Task], make_policy: Callable[[], Policy]
) -> None:
    """Evaluate one policy in one mode, unless that was done."""
    name = f"{stage}-{mode}"
    if name in workshop.run.read_evals():
        return
    player = make_policy()
    groups = workshop.play(player, tasks, 1, stage=f"eval-{name}", seed=3)
    if text := spent(player):
        workshop.reporter.line(f"  {text}")
    workshop.run.write_groups(f"eval-{stage}", mode, groups)
    report = evaluate_groups(groups)
    about = {"stage": stage, "mode": mode, "split": "test", "world": workshop.config.world.name}
    workshop.run.write_eval(name, {**about, **report.to_dict()})
