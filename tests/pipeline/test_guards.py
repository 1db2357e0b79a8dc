"""Guards, a lag and a moving lambda in real training: what is done, and that a resumed run does the same."""

import io
import shutil
from pathlib import Path

import pytest
from rich.console import Console
from safetensors.torch import load_file

from palestra.errors import TrainingPaused
from palestra.pipeline import Reporter, parse_config
from palestra.pipeline.run import create_run, open_run, run_pipeline
from palestra.store import RunFolder
from palestra.training import checkpoint_state

WORLD = Path(__file__).with_name("echo_world.py")
CONFIG = f"""
seed: 1
world: {{name: "{WORLD}:EchoWorld"}}
collect: {{tasks: 8, attempts: 1, demonstrations: 8, vary_prompts: 0}}
policy: {{action_tokens: 24, threads: 1}}
rollout: {{max_turns: 2}}
sft: {{epochs: 1, rows_per_update: 8, learning_rate: 0.003}}
gate: {{tasks: 2, min_format_compliance: 0, min_success_at_group: 0}}
rl: {{updates: 6, tasks_per_update: 4, group_size: 4, validate_every: 2, validation_tasks: 4}}
mine: {{rounds: 0}}
evaluation: {{tasks: 4, sampled: false}}
"""
UNREPRODUCIBLE = ("time/", "tokens_per_second/")


def started(path: Path, *changes: str) -> RunFolder:
    return create_run(path, CONFIG, parse_config(CONFIG, changes), "test")


def trained(path: Path) -> RunFolder:
    run, config = open_run(path)
    run_pipeline(run, config, Reporter(Console(file=io.StringIO())))
    return run


def rows(run: RunFolder) -> list[dict[str, float]]:
    return [
        {name: value for name, value in row.items() if not name.startswith(UNREPRODUCIBLE)}
        for row in run.read_metrics()[0]
        if row["stage"] == "rl"
    ]


def weights(run: RunFolder, step: int) -> dict[str, list[float]]:
    tensors = load_file(run.path / "checkpoints" / "rl" / f"step-{step}" / "model.safetensors")
    return {name: tensor.flatten().tolist() for name, tensor in tensors.items()}


def interrupted(calm: RunFolder, path: Path, step: int) -> RunFolder:
    """A copy of a finished run as it was when it was killed after the checkpoint ``step``."""
    shutil.copytree(calm.path, path)
    for later in (path / "checkpoints" / "rl").glob("step-*"):
        if int(later.name.removeprefix("step-")) > step:
            shutil.rmtree(later)
    for name in ("rl", "mine", "evaluate"):
        (path / "stages" / f"{name}.json").unlink(missing_ok=True)
    return RunFolder.open(path)


@pytest.fixture(scope="module")
def rolled_back(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """A rate that rises until it ruins the policy, and a guard that goes back."""
    path = tmp_path_factory.mktemp("guards") / "run"
    started(
        path,
        "rl.learning_rate=0.002",
        "rl.final_learning_rate=0.08",
        "rl.validate_every=1",
        "rl.validation_tasks=8",
        "sft.epochs=2",
        "rl.guards.far_from_reference=roll_back",
        "rl.guards.not_finite=lower_rate",
    )
    return trained(path)


def test_a_roll_back_puts_back_the_best_weights_and_halves_the_rate(rolled_back: RunFolder):
    changes = rolled_back.read_changes()[0]
    assert changes
    assert all(change["reason"].startswith("far_from_reference: ") for change in changes)
    rate = [change for change in changes if change["setting"] == "learning rate"]
    assert rate[0]["after"] == rate[0]["before"] / 2
    rates = {row["update"]: row["learning_rate"] for row in rows(rolled_back) if "learning_rate" in row}
    at = rate[0]["update"]
    assert rates[at] == pytest.approx(rate[0]["before"])
    assert rates[at + 1] == pytest.approx((0.002 + (0.08 - 0.002) * at / 5) / 2)
    back = [change for change in changes if change["setting"] == "weights of update"]
    assert back
    assert all(change["after"] <= change["before"] for change in back)


def test_a_checkpoint_after_a_roll_back_has_the_scores_of_the_weights_it_holds(rolled_back: RunFolder):
    validated = {
        int(row["update"]): [row["validation/success"], row["validation/reward"]] for row in rows(rolled_back)
    }
    last = [each for each in rolled_back.read_changes()[0] if each["setting"] == "weights of update"][-1]
    at, to = int(last["before"]), int(last["after"])
    assert validated[at] != validated[to]
    state = checkpoint_state(rolled_back.path / "checkpoints" / "rl" / f"step-{at}")
    assert state["validation"] == validated[to]


def test_a_run_interrupted_around_a_roll_back_ends_like_the_calm_one(rolled_back: RunFolder, tmp_path: Path):
    newest = max(int(p.name[5:]) for p in (rolled_back.path / "checkpoints" / "rl").glob("step-*"))
    acted = min(change["update"] for change in rolled_back.read_changes()[0])
    stopped = [int(p.name[5:]) for p in (rolled_back.path / "checkpoints" / "rl").glob("step-*")]
    before = max((step for step in stopped if step < acted), default=0)
    again = interrupted(rolled_back, tmp_path / "again", before)
    assert len(rows(again)) == 6
    trained(again.path)
    assert rows(again) == rows(rolled_back)
    assert again.read_changes() == rolled_back.read_changes()
    assert again.read_alarms() == rolled_back.read_alarms()
    assert weights(again, newest) == weights(rolled_back, newest)


def test_a_pause_stops_at_a_checkpoint_and_goes_on_from_it(tmp_path: Path):
    started(tmp_path / "run", "rl.guards.format_low=pause", "sft.learning_rate=0.0001")
    with pytest.raises(TrainingPaused, match=r"rl update 1: paused by the guard for format_low: \d+% of the"):
        trained(tmp_path / "run")
    assert (tmp_path / "run" / "checkpoints" / "rl" / "step-1").exists()
    run = trained(tmp_path / "run")
    assert [row["update"] for row in rows(run)] == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize(("lag", "behind"), [(1, [0, 1, 1, 0, 1, 1]), (3, [0, 1, 2, 0, 1, 2])])
def test_batches_are_sampled_ahead_up_to_the_next_checkpoint_and_a_resumed_run_equals_it(
    tmp_path: Path, lag: int, behind: list[int]
):
    changes = (f"rl.max_policy_lag={lag}", "rl.algorithm=reinforce_pp", "rl.validate_every=3")
    started(tmp_path / "run", *changes)
    run = trained(tmp_path / "run")
    assert [row["policy/lag"] for row in rows(run)] == behind
    assert all("policy/kl_mismatch" not in row for row in rows(run))
    assert all(row["experience/stale"] == 0 for row in rows(run))
    for row in run.read_metrics()[0]:
        if row["stage"] == "rl":
            assert row["time/waited_for_batch"] >= 0
            assert row["time/sampler_idle"] >= 0
    again = interrupted(run, tmp_path / "again", 3)
    trained(again.path)
    assert rows(again) == rows(run)
    assert weights(again, 6) == weights(run, 6)


def test_a_moved_lambda_is_used_from_the_next_update_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def lowered(gae_lambda: float, rewards: list[float]) -> tuple[float, str]:
        return (gae_lambda - 0.1, "oscillates") if len(rewards) == 2 else (gae_lambda, "")

    monkeypatch.setattr("palestra.training.controls.scheduled_lambda", lowered)
    started(tmp_path / "run", "rl.algorithm=ppo", "credit.schedule_lambda=true", "rl.tasks_per_update=2")
    run = trained(tmp_path / "run")
    found = [row["credit/gae_lambda"] for row in rows(run)]
    assert found == pytest.approx([0.95, 0.95, 0.85, 0.85, 0.75, 0.75])
    assert [(each["update"], each["setting"], each["reason"]) for each in run.read_changes()[0]] == [
        (2, "lambda", "oscillates"),
        (4, "lambda", "oscillates"),
        (6, "lambda", "oscillates"),
    ]


def test_a_round_goes_on_with_the_rate_that_the_stage_before_it_ended_with(tmp_path: Path):
    changes = ("mine.rounds=1", "mine.tasks=4", "mine.updates=1", "rl.guards.format_low=lower_rate")
    started(tmp_path / "run", *changes, "sft.learning_rate=0.0001", "rl.updates=2")
    run = trained(tmp_path / "run")
    assert [row["learning_rate"] for row in run.read_metrics()[0] if row["stage"] == "rl"][
        -1
    ] == pytest.approx(3e-4 / 2)
    assert {each["stage"] for each in run.read_changes()[0]} >= {"rl"}
    (row,) = [row for row in run.read_metrics()[0] if row["stage"] == "mine1"]
    assert row["learning_rate"] == pytest.approx(3e-3 / 2)
