"""``palestra dpo`` and ``palestra reward-model`` from a trained run to their ends."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from palestra.cli import main
from palestra.store import RunFolder

WORLD = Path(__file__).parents[1] / "pipeline" / "echo_world.py"
CONFIG = f"""
seed: 1
world: {{name: "{WORLD}:EchoWorld"}}
collect: {{tasks: 8, attempts: 1, demonstrations: 8, vary_prompts: 0}}
policy: {{action_tokens: 24, threads: 1}}
rollout: {{max_turns: 2}}
sft: {{epochs: 1, rows_per_update: 8, learning_rate: 0.003}}
gate: {{tasks: 1, min_format_compliance: 0, min_success_at_group: 0}}
rl: {{updates: 1, tasks_per_update: 6, group_size: 4, minibatches: 1, learning_rate: 1.0e-9,
  final_learning_rate: 0, validate_every: 1, validation_tasks: 4}}
mine: {{rounds: 0}}
evaluation: {{tasks: 6, sampled: false}}
"""


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("preferring")
    (folder / "echo.yaml").write_text(CONFIG)
    with pytest.raises(SystemExit) as stopped:
        main(["train", str(folder / "echo.yaml"), "--out", str(folder / "run")])
    assert not stopped.value.code
    return folder / "run"


@pytest.mark.slow
def test_a_run_is_followed_by_one_that_learned_from_its_preferences(palestra, trained: Path) -> None:
    done = palestra("dpo", trained, "--epochs", "1", "--beta", "0.2")
    assert done.code == 0, done.err
    new = trained.with_name("run-dpo-1")
    assert f"Run: {new}" in done.out
    assert "preference pairs of" in done.out
    assert "DPO" in done.out
    assert done.out.endswith(f"Report: {new / 'report.html'}\n")
    assert json.loads((new / "dpo.json").read_text())["beta"] == 0.2
    evals = RunFolder.open(new).read_evals()
    assert {"sft-greedy", "rl-greedy", "dpo-greedy", "oracle-scripted"} <= evals.keys()
    assert "after DPO" in (new / "report.html").read_text()

    weights = (new / "checkpoints" / "dpo" / "step-1" / "model.safetensors").read_bytes()
    again = palestra("dpo", new, "--resume")
    assert (again.code, "finished already" in again.out) == (0, True)
    assert (new / "checkpoints" / "dpo" / "step-1" / "model.safetensors").read_bytes() == weights
    assert palestra("dpo", new).code == 2
    assert "leave --resume out" in palestra("dpo", trained, "--resume").err
    changed = palestra("dpo", new, "--resume", "--learning-rate", "0.1")
    assert (changed.code, "--learning-rate is refused" in changed.err) == (2, True)
    trained_on = palestra("train", new, "--resume")
    assert (trained_on.code, "go on with palestra dpo" in trained_on.err) == (2, True)
    inside = palestra("dpo", trained, "--out", trained / "inner")
    assert (inside.code, "is inside the run" in inside.err) == (1, True)
    assert not (trained / "inner").exists()
    taken = palestra("dpo", trained, "--out", new)
    assert (taken.code, "already holds a run" in taken.err) == (1, True)


@pytest.mark.slow
def test_a_run_without_preferences_leaves_nothing_behind(palestra, trained: Path) -> None:
    before = sorted(trained.parent.iterdir())
    run = RunFolder.open(trained)
    played = run.path / "trajectories" / "rl"
    played.rename(trained / "aside")
    try:
        done = palestra("dpo", trained)
        assert (done.code, "single attempt" in done.err) == (1, True)
        assert palestra("reward-model", trained).code == 1
    finally:
        (trained / "aside").rename(played)
    assert sorted(trained.parent.iterdir()) == before


@pytest.mark.slow
def test_a_reward_model_is_made_used_and_rescored_with(palestra, trained: Path, tmp_path: Path) -> None:
    judge = tmp_path / "judge"
    done = palestra("reward-model", trained, "--out", judge, "--held-out", "0.4")
    assert done.code == 0, done.err
    about = json.loads((judge / "reward_model.json").read_text())
    assert f"{about['held_out_accuracy']:.0%}; chance is 50%" in done.out
    assert f"rubric.reward_model={judge}" in done.out
    again = palestra("reward-model", trained, "--out", judge, "--held-out", "0.4")
    assert "finished already" in again.out
    other = palestra("reward-model", trained, "--out", judge)
    assert (other.code, "with other options" in other.err) == (2, True)

    (tmp_path / "judged.yaml").write_text("rubric: {reward_model: " + str(judge) + "}\n")
    scored = palestra("rescore", trained, "--rubric", tmp_path / "judged.yaml", "--stage", "rl")
    assert scored.code == 0, scored.err
    assert "preference" in scored.out
