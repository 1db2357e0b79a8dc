"""The policy of a finished stage is taken from a whole checkpoint, or not at all."""

from pathlib import Path

import pytest

from palestra.errors import ConfigError
from palestra.pipeline import parse_config
from palestra.pipeline.model_parts import load_stage
from palestra.policy.chat import RoleTokenTemplate
from palestra.policy.nano import new_nano, train_tokenizer
from palestra.store import RunFolder
from palestra.training import Learner, save_checkpoint


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    """Two checkpoints of one stage, the later one better."""
    template = RoleTokenTemplate(train_tokenizer(["a few words"], 300))
    for step in (2, 4):
        learner = Learner(new_nano(300, hidden=32, feed_forward=48, heads=2, seed=step))
        state = {"update": step, "version": step, "validation": [0.1 * step, 1.0]}
        save_checkpoint(tmp_path / "checkpoints" / "rl" / f"step-{step}", learner, template, state)
    return RunFolder(tmp_path, {})


def flip_a_bit(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-5] ^= 1
    path.write_bytes(data)


def test_a_damaged_best_checkpoint_is_named_and_the_next_best_is_loaded(run: RunFolder):
    assert load_stage(run, "rl", parse_config("")).version == 4
    flip_a_bit(run.path / "checkpoints" / "rl" / "step-4" / "model.safetensors")
    with pytest.warns(UserWarning, match=r"step-4 cannot be loaded: model\.safetensors changed"):
        assert load_stage(run, "rl", parse_config("")).version == 2


def test_without_a_whole_checkpoint_the_stage_is_refused_and_says_what_to_do(run: RunFolder):
    for step in (2, 4):
        flip_a_bit(run.path / "checkpoints" / "rl" / f"step-{step}" / "model.safetensors")
    with (
        pytest.warns(UserWarning, match=r"step-[24]"),
        pytest.raises(ConfigError, match=r"no whole checkpoint of stage 'rl'.*delete its file in stages/"),
    ):
        load_stage(run, "rl", parse_config(""))
