"""Four runs that fail as runs classically do, each on purpose: the alarm for it is given within the run."""

import io
from dataclasses import dataclass
from pathlib import Path

import pytest
from rich.console import Console

from palestra.pipeline import Reporter, parse_config
from palestra.pipeline.run import create_run, run_pipeline
from palestra.store import RunFolder

HERE = Path(__file__).parent
CONFIG = """
seed: {seed}
world: {{name: "{world}"}}
collect: {{tasks: {tasks}, demonstrations: {tasks}, vary_prompts: 0, skip: 0, repeat: 0, wrong: 0}}
policy: {{action_tokens: 32, threads: 1}}
rollout: {{max_turns: 8}}
sft: {{epochs: 2, rows_per_update: 8, learning_rate: 0.003}}
gate: {{tasks: 2, min_format_compliance: 0, min_success_at_group: 0}}
rl: {{updates: 10, tasks_per_update: 8, group_size: 8, validate_every: 5, validation_tasks: 8}}
mine: {{rounds: 0}}
evaluation: {{tasks: 4, sampled: false}}
"""


@dataclass(frozen=True)
class Failure:
    """A world, how to fail in it, and the detector that must speak."""

    world: str
    detector: str
    changes: tuple[str, ...]
    tasks: int = 24


FAILURES = {
    "a milestone farmed by repetition": Failure(
        "failing_worlds.py:LeakyResearch",
        "process_without_success",
        ("rubric.weights.process=2", "rl.updates=8", "rl.tasks_per_update=4"),
    ),
    "a guessed verdict": Failure(
        "failing_worlds.py:OpenVerdict", "shortcut", ("rollout.max_invalid=1", "rl.updates=4")
    ),
    "entropy that collapses": Failure(
        "failing_worlds.py:BlindMaze",
        "entropy_collapse",
        (
            "credit.negative_weight=0",
            "rl.tasks_per_update=24",
            "rl.group_size=4",
            "rl.learning_rate=0.002",
            "rl.final_learning_rate=0.002",
            "rl.updates=14",
        ),
        tasks=64,
    ),
    "a learning rate that is too high": Failure(
        "echo_world.py:EchoWorld",
        "fell_back",
        ("rl.learning_rate=0.05", "rl.final_learning_rate=0.05", "rollout.max_turns=2", "rl.updates=6"),
    ),
}


def trained(path: Path, world: str, tasks: int, seed: int, *changes: str) -> RunFolder:
    text = CONFIG.format(world=HERE / world, tasks=tasks, seed=seed)
    config = parse_config(text, changes)
    run = create_run(path, text, config, "test")
    run_pipeline(run, config, Reporter(Console(file=io.StringIO())))
    return run


@pytest.mark.parametrize("name", FAILURES)
def test_a_run_that_fails_on_purpose_gives_the_alarm_for_it(name: str, tmp_path: Path):
    failure = FAILURES[name]
    run = trained(tmp_path / "run", failure.world, failure.tasks, 1, *failure.changes)
    alarms = run.read_alarms()[0]
    found = [alarm for alarm in alarms if alarm["detector"] == failure.detector]
    assert found, [(alarm["update"], alarm["detector"]) for alarm in alarms]
    stored = {each.id for group in run.read_groups("rl") for each in group.trajectories}
    assert all(set(alarm["replay"]) <= stored for alarm in alarms)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10))
def test_a_run_that_learns_gives_only_alarms_that_are_true(seed: int, tmp_path: Path):
    run = trained(tmp_path / "run", "echo_world.py:EchoWorld", 8, seed, "sft.epochs=1", "rl.updates=16")
    rows = {row["update"]: row for row in run.read_metrics()[0] if row["stage"] == "rl"}
    assert sum(rows[update]["success/mean"] for update in (14, 15, 16)) > 2.0
    for alarm in run.read_alarms()[0]:
        row = rows[alarm["update"]]
        understood = row["format/compliance"] < 0.8 and alarm["detector"] == "format_low"
        solved = row["success/mean"] > 0.9 and alarm["detector"] == "flat_groups"
        assert understood or solved, alarm
