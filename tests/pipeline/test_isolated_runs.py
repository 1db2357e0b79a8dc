"""Runs whose worlds live in processes of their own, and tasks whose world never works."""

import io
from pathlib import Path

import torch
from rich.console import Console
from safetensors.torch import load_file

from palestra.envs import make_env
from palestra.pipeline import Reporter, parse_config
from palestra.pipeline.curriculum import quarantine
from palestra.pipeline.run import create_run, run_pipeline
from palestra.policy import ScriptedPolicy, oracle_script
from palestra.rewards import Rubric
from palestra.rollout import Limits, Rollout, collect_groups
from palestra.tasks import GeneratedTasks

CONFIG = f"""
seed: 1
world: {{name: "{Path(__file__).with_name("echo_world.py")}:EchoWorld"}}
collect: {{tasks: 8, attempts: 1, demonstrations: 8, vary_prompts: 0}}
policy: {{action_tokens: 24, threads: 2}}
rollout: {{max_turns: 3, max_invalid: 9, max_repeats: 9}}
sft: {{epochs: 1, rows_per_update: 8, learning_rate: 0.003}}
gate: {{tasks: 4, min_format_compliance: 0, min_success_at_group: 0}}
rl: {{updates: 1, tasks_per_update: 4, group_size: 4, validate_every: 1, validation_tasks: 2}}
mine: {{rounds: 0}}
evaluation: {{tasks: 4, sampled: false}}
"""


def finished(folder, *overrides):
    config = parse_config(CONFIG, overrides)
    run = create_run(folder, CONFIG, config, "palestra train")
    run_pipeline(run, config, Reporter(Console(file=io.StringIO())))
    return run


def said(run):
    return [[turn.action for turn in t.turns] for group in run.read_groups("rl") for t in group.trajectories]


def test_a_run_in_isolated_worlds_is_the_run_but_for_the_last_bits(tmp_path):
    plain = finished(tmp_path / "plain")
    isolated = finished(tmp_path / "isolated", "world.isolation={step_seconds: 60}")
    assert said(plain) == said(isolated)
    weights = [
        load_file(run.path / "checkpoints" / "rl" / "step-1" / "model.safetensors")
        for run in (plain, isolated)
    ]
    for name, value in weights[0].items():
        torch.testing.assert_close(weights[1][name], value, rtol=0, atol=1e-4)
    rows = isolated.read_metrics()[0]
    assert rows[-1]["episodes/retried"] == 0.0


def test_a_task_whose_world_always_fails_is_put_in_quarantine():
    tasks = GeneratedTasks(make_env("orders").make_task).take("train", 6)

    class Failing:
        def __init__(self):
            self._world = make_env("orders")

        def __getattr__(self, name):
            return getattr(self._world, name)

        def step(self, action):
            if self._world._task == tasks[2]:
                raise OSError("no such shop")
            return self._world.step(action)

    rollout = Rollout(Failing, ScriptedPolicy("oracle", oracle_script), Rubric(), Limits())
    groups = collect_groups(rollout, tasks, 2, stage="s", seed=0)
    kept, bad = quarantine(groups)
    assert bad == [tasks[2]]
    assert [group.task for group in kept] == [*tasks[:2], *tasks[3:]]
