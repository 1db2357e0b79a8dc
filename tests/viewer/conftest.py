import math
from dataclasses import replace
from pathlib import Path

import pytest
from viewer_runs import episode, evaluate, learning_row, new_run

from palestra.envs import ToolEnv, make_env
from palestra.types import TrajectoryGroup


@pytest.fixture(scope="session")
def full_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run. Tests may write its report but nothing else into it."""
    run = new_run(tmp_path_factory.mktemp("runs") / "orders-cpu")
    for update in range(30):
        loss = {"loss/sft": 2 * math.exp(-update / 8) + 0.1}
        run.append_metrics(
            {"stage": "sft", "update": update, **loss, "validation/loss": loss["loss/sft"] + 0.05}
        )
    for update in range(120):
        run.append_metrics(learning_row(update, 120))
    for policy, noise, mode in (
        ("teacher", 0.25, "scripted"),
        ("sft", 0.36, "greedy"),
        ("rl", 0.07, "greedy"),
        ("oracle", 0.0, "scripted"),
    ):
        evaluate(run, policy, noise, mode=mode)
    sampled = {**run.read_evals()["rl"], "mode": "sampled", "success": 0.5}
    run.write_eval("a-sampled", sampled)
    run.finish_stage("sft", {"seconds": 41.5, "peak_memory_mb": 900.0})
    run.finish_stage("rl", {"seconds": 300.0, "peak_memory_mb": 1200.5})
    run.finish_stage("gate", {})
    return run.path


@pytest.fixture
def hostile_run(tmp_path: Path) -> Path:
    """A run whose episodes try to break out of the page and of the terminal."""
    run = new_run(tmp_path / "hostile")
    env = make_env("orders")
    assert isinstance(env, ToolEnv)
    one = episode(env, env.make_task(1, "test"), "rl", 0.0)
    attack = "<script>alert('x')</script></pre><img onerror=alert(1)> {{ 7 * 7 }} \x1b[2J [bold]"
    turn = replace(one.turns[0], action=attack, observation=attack)
    bad = replace(one, turns=(turn,), error=attack, task=replace(one.task, prompt=attack), success=None)
    run.write_groups("eval-rl", "greedy", [TrajectoryGroup("g", bad.task, (bad,))])
    run.write_eval("rl", {"stage": "rl", "success": 0.5, "world": attack, "milestone_rates": {attack: 0.5}})
    run.append_metrics({"stage": "rl", "update": 0, f"reward/part/{attack}": 1.0})
    run.append_alarm(
        {"stage": "rl", "update": 3} | dict.fromkeys(("symptom", "evidence", "cause", "remedy"), attack)
    )
    run.append_change(
        {"stage": "rl", "update": 4, "setting": attack, "before": 3e-3, "after": 1e-3, "reason": attack}
    )
    return run.path
