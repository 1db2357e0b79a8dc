"""Verbs that touch weights, with an untrained policy of a few thousand parameters."""

from __future__ import annotations

from pathlib import Path

import pytest

from palestra.cli import main
from palestra.envs import make_env
from palestra.policy.chat import RoleTokenTemplate
from palestra.policy.models import save_policy
from palestra.policy.nano import new_nano, train_tokenizer
from palestra.store import RunFolder

SMALL = {
    "collect.tasks": 4,
    "sft.epochs": 1,
    "gate.tasks": 1,
    "rl.group_size": 2,
    "rl.updates": 0,
    "mine.rounds": 0,
    "rollout.max_turns": 6,
    "policy.action_tokens": 64,
    "evaluation.tasks": 2,
}


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("weights") / "tiny"
    folder.mkdir()
    world = make_env("orders")
    tokenizer = train_tokenizer([world.system_prompt, *(world.make_task(n).prompt for n in range(50))], 500)
    model = new_nano(tokenizer.get_vocab_size(), hidden=16, feed_forward=16, layers="ca")
    save_policy(folder, model, RoleTokenTemplate(tokenizer))
    return folder


@pytest.fixture(scope="module")
def imitated(weights: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that collected and imitated, and goes no further than that."""
    run = tmp_path_factory.mktemp("imitated") / "run"
    changes = [f"--set={key}={value}" for key, value in {**SMALL, "policy.model": weights}.items()]
    with pytest.raises(SystemExit) as stopped:
        main(["sft", "quickstart", *changes, "--out", str(run)])
    assert not stopped.value.code
    return run


def test_sft_collects_first_and_leaves_weights(imitated: Path) -> None:
    run = RunFolder.open(imitated)
    assert run.stage_result("collect") is not None
    assert run.stage_result("sft")["demonstrations"] > 0
    assert run.stage_result("gate") is None
    assert list((imitated / "checkpoints" / "sft").glob("*/model.safetensors"))


def test_a_run_is_evaluated_and_keeps_the_result(palestra, imitated: Path) -> None:
    done = palestra("eval", imitated, "--tasks", 2, "--sampled", "--split", "validation")
    assert done.code == 0, done.err
    assert "format_compliance" in done.out
    (kept,) = RunFolder.open(imitated).read_evals().values()
    assert (kept["episodes"], kept["mode"], kept["split"]) == (2, "sampled", "validation")
    palestra("eval", imitated, "--tasks", 2, "--world", "alerts")
    assert {each["world"] for each in RunFolder.open(imitated).read_evals().values()} == {"orders", "alerts"}
    assert "SFT" not in palestra("report", imitated, "--no-html").out


def test_weights_need_a_world_and_are_left_alone(palestra, imitated: Path) -> None:
    weights = imitated / "checkpoints" / "sft" / "step-1"
    before = sorted(weights.rglob("*"))
    assert palestra("eval", weights).code == 2
    done = palestra("eval", weights, "--world", "orders", "--tasks", 1)
    assert done.code == 0, done.err
    assert sorted(weights.rglob("*")) == before


def test_a_failed_gate_says_what_to_do(palestra, imitated: Path) -> None:
    done = palestra("train", imitated, "--resume")
    assert done.code == 1
    assert "Error: Format compliance is " in done.err
    assert "collect.tasks" in done.err
