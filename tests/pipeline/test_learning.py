"""The whole pipeline learns, in seconds: reinforcement learning beats what imitation left."""

import io
from pathlib import Path

import pytest
from rich.console import Console

from palestra.pipeline import Reporter, parse_config
from palestra.pipeline.run import create_run, run_pipeline
from palestra.store import RunFolder
from palestra.training import ALGORITHMS
from palestra.viewer import run_summary

WORLD = Path(__file__).with_name("echo_world.py")
CONFIG = f"""
seed: 1
world: {{name: "{WORLD}:EchoWorld"}}
collect: {{tasks: 8, attempts: 1, demonstrations: 8, vary_prompts: 0}}
policy: {{action_tokens: 24}}
rollout: {{max_turns: 2}}
sft: {{epochs: 1, rows_per_update: 8, learning_rate: 0.003}}
gate: {{tasks: 8, min_format_compliance: 0, min_success_at_group: 0}}
rl: {{updates: 16, tasks_per_update: 8, group_size: 8, validate_every: 8, validation_tasks: 16}}
mine: {{rounds: 0}}
evaluation: {{tasks: 48, sampled: true}}
"""


def trained(path: Path, algorithm: str) -> RunFolder:
    config = parse_config(CONFIG, [f"rl.algorithm={algorithm}"])
    run = create_run(path, CONFIG, config, "test")
    run_pipeline(run, config, Reporter(Console(file=io.StringIO())))
    return run


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    return trained(tmp_path_factory.mktemp("learning") / "run", "grpo")


def assert_learned(run: RunFolder) -> None:
    evals = run.read_evals()
    before, after = evals["sft-sampled"]["success"], evals["rl-sampled"]["success"]
    assert after >= before + 0.2, (before, after)
    assert evals["rl-greedy"]["success"] >= 0.9


def test_success_rises_above_the_imitated_policy(run):
    assert_learned(run)


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", sorted(ALGORITHMS.keys() - {"grpo"}))
def test_every_algorithm_rises_above_the_imitated_policy(tmp_path: Path, algorithm: str):
    assert_learned(trained(tmp_path / "run", algorithm))


def test_every_update_says_how_fast_it_was_and_what_the_reward_was_made_of(run):
    rows = [row for row in run.read_metrics()[0] if row["stage"] == "rl"]
    assert [row["update"] for row in rows] == list(range(1, 17))
    for row in rows:
        assert row["tokens_per_second/rollout"] > 0
        assert 0.0 <= row["groups/zero_spread"] <= 1.0
        assert row["reward/part/outcome"] == pytest.approx(row["success/mean"])


def test_the_summary_has_every_stage_with_an_interval(run):
    summary = run_summary(run.path)
    for stage in ("teacher", "sft", "rl", "oracle"):
        low, high = summary[stage]["success_ci95"]
        assert low <= summary[stage]["success"] <= high
    assert summary["oracle"]["success"] == 1.0
    assert summary["seconds"] > 0
    assert summary["peak_memory_mb"] > 0


def test_held_out_tasks_are_no_copies_of_training_tasks(run):
    def hashes(*stages):
        return {group.task.content_hash for stage in stages for group in run.read_groups(stage)}

    assert not hashes("eval-rl", "eval-sft") & hashes("collect", "demonstrations", "rl")
