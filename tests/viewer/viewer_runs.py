"""Parts of a run as a training leaves it: real episodes of the orders world and plausible curves."""

import math
import random
from pathlib import Path
from typing import Any

from palestra.actions import render_call
from palestra.envs import ToolEnv, make_env, play, run_oracle
from palestra.evaluation import evaluate_trajectories
from palestra.store import RunFolder
from palestra.types import Facts, Message, StopReason, Task, Trajectory, TrajectoryGroup, Turn

SLIPS = (
    "Let me look at the order first.",
    '{"tool_name": "open_order", "parameters": {}}',
    '{"tool_name": "track", "parameters": {"parcel": "P0000"}}',
    '{"tool_name": "track", "parameters": {"parcel": "P0000"}}',
)
MAX_TURNS = 8


def new_run(path: Path) -> RunFolder:
    return RunFolder.create(
        path, config_text="env: orders\n", resolved={"env": "orders"}, command="palestra train"
    )


def stored(run: Path, stage: str) -> list[Trajectory]:
    groups = RunFolder.open(run).read_groups(f"eval-{stage}")
    return [trajectory for group in groups for trajectory in group.trajectories]


def solved(run: Path, stage: str) -> int:
    return sum(trajectory.success is True for trajectory in stored(run, stage))


def episode(env: ToolEnv[Any], task: Task, policy: str, noise: float) -> Trajectory:
    """The oracle's way with slips between, and now and then a verdict out of thin air."""
    rng = random.Random(f"{policy}:{task.id}")
    script: list[str] = []
    for call in run_oracle(env, task):
        while rng.random() < noise:
            script.append(rng.choice(SLIPS))
        if rng.random() < noise / 4:
            script.append('{"tool_name": "finish", "parameters": {"verdict": "wait"}}')
        script.append(render_call(call))
    played = play(env, task, script[:MAX_TURNS])
    turns = [
        Turn(each.action, "" if each.terminated else each.observation, Facts(**each.info), reward=each.reward)
        for each in played
    ]
    success = played[-1].info["success"]
    return Trajectory(
        id=f"eval-{policy}/0/{task.seed}/0",
        task=task,
        prompt=(Message("system", env.system_prompt), Message("user", task.prompt)),
        turns=tuple(turns),
        stop_reason=StopReason.terminated if played[-1].terminated else StopReason.max_turns,
        success=success,
        policy=policy,
        milestones=tuple(env.milestones),
        reward=float(success) - 0.02 * len(turns),
        reward_parts={"outcome": float(success), "efficiency": -0.02 * len(turns), "judge": None},
    )


def evaluate(run: RunFolder, policy: str, noise: float, *, mode: str, count: int = 60) -> list[Trajectory]:
    env = make_env("orders")
    assert isinstance(env, ToolEnv)
    episodes = [episode(env, env.make_task(9_000 + seed, "test"), policy, noise) for seed in range(count)]
    groups = [TrajectoryGroup(each.id[:-2], each.task, (each,)) for each in episodes]
    run.write_groups(f"eval-{policy}", mode, groups)
    report = evaluate_trajectories(episodes).to_dict()
    run.write_eval(policy, {**report, "stage": policy, "mode": mode, "split": "test", "world": "orders"})
    return episodes


def learning_row(update: int, of: int) -> dict[str, Any]:
    rng, done = random.Random(update), update / of
    success = 0.5 + 0.42 * (1 - math.exp(-4 * done)) + rng.gauss(0, 0.04)
    row = {
        "stage": "rl",
        "update": update,
        "success/mean": min(1.0, success),
        "reward/mean": success - 0.1,
        "reward/part/outcome": success,
        "reward/part/format": 0.9 + 0.1 * done,
        "reward/part/efficiency": -0.12 + 0.05 * done,
        "turns/mean": 6 - 1.6 * done + rng.gauss(0, 0.15),
        "format/compliance": 0.8 + 0.18 * done,
        "policy/entropy": 0.6 * math.exp(-1.2 * done) + rng.gauss(0, 0.01),
        "policy/kl_reference": 0.02 * done + abs(rng.gauss(0, 0.001)),
        "policy/clip_fraction": None,
        "groups/zero_spread": 0.2 + 0.35 * done + rng.gauss(0, 0.05),
        "time/rollout": 1.4 + rng.gauss(0, 0.1),
        "time/update": 0.9 + rng.gauss(0, 0.05),
    }
    return row | ({"validation/success": success - 0.03} if update % 20 == 19 else {})
