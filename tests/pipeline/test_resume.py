"""A run killed with SIGKILL in every stage ends exactly like one that was left alone."""

from pathlib import Path

import pytest
from killed_runs import finish, kill_inside, metrics
from safetensors.torch import load_file

from palestra.store import RunFolder
from palestra.training import best_checkpoint, checkpoint_state

WORLD = Path(__file__).with_name("echo_world.py")
CONFIG = f"""
world: {{name: "{WORLD}:EchoWorld"}}
collect: {{tasks: 8, attempts: 2, demonstrations: 8}}
sft: {{epochs: 2, rows_per_update: 4, learning_rate: 0.001}}
gate: {{tasks: 4, min_format_compliance: 0, min_success_at_group: 0}}
rl: {{updates: 6, tasks_per_update: 4, group_size: 4, minibatches: 2, learning_rate: 0.0002,
  final_learning_rate: 0.0002, validate_every: 2, validation_tasks: 4}}
mine: {{rounds: 1, tasks: 16, attempts: 2, updates: 4}}
evaluation: {{tasks: 12}}
"""


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("runs")
    (folder / "config.yaml").write_text(CONFIG)
    calm, killed = folder / "calm", folder / "killed"
    finish(str(folder / "config.yaml"), "--out", str(calm))
    kill_inside(killed, "collect", 0, str(folder / "config.yaml"), "--out", str(killed))
    for stage, update in (
        ("sft", 3),
        ("gate", 0),
        ("rl", 3),
        ("rl", 5),
        ("mine1-sft", 1),
        ("mine1", 3),
        ("evaluate", 0),
    ):
        kill_inside(killed, stage, update, str(killed), "--resume")
    finish(str(killed), "--resume")
    return calm, killed


def test_the_metrics_are_the_same_to_the_last_bit(runs):
    calm, killed = runs
    assert metrics(killed) == metrics(calm)
    learned = [row for row in metrics(calm) if row["stage"] in ("rl", "mine1") and "tokens/trained" in row]
    assert len(learned) >= 6, "most updates must really change the weights, or this shows nothing"


def test_the_weights_and_optimiser_are_the_same_to_the_last_bit(runs):
    calm, killed = runs
    names = sorted(path.relative_to(calm) for path in calm.glob("checkpoints/*/*/*.safetensors"))
    assert len(names) >= 2 * (1 + 2 + 2)
    assert names == sorted(path.relative_to(killed) for path in killed.glob("checkpoints/*/*/*.safetensors"))
    for name in names:
        first, second = load_file(calm / name), load_file(killed / name)
        assert first.keys() == second.keys()
        assert all(first[key].equal(second[key]) for key in first), name


def test_the_trajectories_and_evaluations_are_the_same(runs):
    calm, killed = (RunFolder.open(run) for run in runs)
    assert calm.trajectory_stages() == killed.trajectory_stages()
    for stage in calm.trajectory_stages():
        first, second = (
            [(t.id, t.turns, t.reward, t.stop_reason) for g in run.read_groups(stage) for t in g.trajectories]
            for run in (calm, killed)
        )
        assert first == second, stage
    assert calm.read_evals() == killed.read_evals()
    assert {e["stage"] for e in calm.read_evals().values()} == {"teacher", "sft", "rl", "oracle"}


def test_a_hard_example_round_imitates_the_teacher_on_tasks_that_failed_and_counts_versions_on(runs):
    run = RunFolder.open(runs[0])
    failed = {
        group.task.id
        for group in run.read_groups("mine1-pool")
        if any(not trajectory.success for trajectory in group.trajectories)
    }
    assert failed
    assert {group.task.id for group in run.read_groups("mine1-teacher")} == failed
    assert any(row["stage"] == "mine1-sft" for row in run.read_metrics()[0])
    after_rl = checkpoint_state(best_checkpoint(run.path / "checkpoints" / "rl"))["version"]
    versions = {
        stage: {t.policy_version for g in run.read_groups(stage) for t in g.trajectories}
        for stage in ("gate", "rl", "mine1-pool", "mine1", "eval-sft", "eval-rl")
    }
    assert versions == {
        "gate": {0},
        "rl": {0, 1, 2, 3, 4, 5},
        "mine1-pool": {after_rl},
        "mine1": set(range(after_rl, after_rl + 4)),
        "eval-sft": {0},
        "eval-rl": versions["eval-rl"],
    }
    last = [best_checkpoint(run.path / "checkpoints" / stage) for stage in ("rl", "mine1")]
    best = max(reversed(last), key=lambda path: checkpoint_state(path)["validation"])
    assert versions["eval-rl"] == {checkpoint_state(best)["version"]}
