"""Checkpoints: whole or not at all, and what happens to one that is torn."""

import errno
import hashlib
import json
import subprocess
import sys

import pytest
import torch

from palestra.errors import StoreError
from palestra.policy.chat import RoleTokenTemplate
from palestra.policy.nano import new_nano, train_tokenizer
from palestra.training import (
    Critic,
    CriticSettings,
    Learner,
    best_checkpoint,
    checkpoints,
    imitation_loss,
    load_checkpoint,
    load_critic,
    load_newest,
    save_checkpoint,
)
from palestra.training.checkpoint import keep_checkpoints, verify_checkpoint
from palestra.types import Segment

ROW = Segment("t", (7, 8, 9, 1), (False, True, True, True), (0.0,) * 4, (0.0, 1.0, 1.0, 1.0))


@pytest.fixture(scope="module")
def template():
    return RoleTokenTemplate(train_tokenizer(["a few words"], 300))


@pytest.fixture(params=["adamw", "muon"])
def learner(request):
    made = Learner(new_nano(64, hidden=32, feed_forward=48, heads=2, seed=1), optimizer=request.param)
    for _ in range(3):
        made.update([ROW], imitation_loss, 1e-2)
    return made


def copy_of(learner) -> Learner:
    name = "muon" if len(learner.optimizers) == 2 else "adamw"
    return Learner(new_nano(64, hidden=32, feed_forward=48, heads=2, seed=2), optimizer=name)


def test_training_goes_on_bit_for_bit_from_a_checkpoint(learner, template, tmp_path):
    save_checkpoint(tmp_path / "step-3", learner, template, {"update": 3})
    resumed = copy_of(learner)
    assert load_checkpoint(tmp_path / "step-3", resumed) == {"update": 3}
    for made in (learner, resumed):
        for _ in range(3):
            made.update([ROW], imitation_loss, 1e-2)
    for first, second in zip(learner.model.parameters(), resumed.model.parameters(), strict=True):
        assert torch.equal(first, second)


@pytest.mark.parametrize("name", ["model.safetensors", "optimizer.safetensors", "state.json"])
def test_a_torn_checkpoint_is_named_and_the_one_before_it_is_used(learner, template, tmp_path, name):
    for step in (2, 10):
        save_checkpoint(tmp_path / f"step-{step}", learner, template, {"update": step})
    torn = tmp_path / "step-10" / name
    torn.write_bytes(torn.read_bytes()[: torn.stat().st_size // 2])
    with pytest.warns(UserWarning, match="step-10"):
        assert load_newest(tmp_path, copy_of(learner)) == {"update": 2}


@pytest.mark.parametrize("harm", ["missing", "torn"])
def test_a_checkpoint_without_its_critic_is_not_half_loaded(template, tmp_path, harm):
    settings = CriticSettings(learning_rate=1e-3, epochs=1, minibatches=1, value_clip=0.2, seed=0)
    critic = Critic(new_nano(64, hidden=32, feed_forward=48, heads=2, seed=3), settings)
    learner = Learner(new_nano(64, hidden=32, feed_forward=48, heads=2, seed=1))
    save_checkpoint(tmp_path / "step-1", learner, template, {"update": 1}, critic)
    file = tmp_path / "step-1" / "critic.safetensors"
    file.unlink() if harm == "missing" else file.write_bytes(file.read_bytes()[:100])
    other = copy_of(learner)
    before = [parameter.detach().clone() for parameter in other.model.parameters()]
    with pytest.warns(UserWarning, match="step-1"):
        assert load_newest(tmp_path, other, critic) is None
    assert all(torch.equal(a, b) for a, b in zip(before, other.model.parameters(), strict=True))
    with pytest.raises(StoreError, match="critic"):
        load_critic(tmp_path / "step-1", critic)


FILES = ("config.json", "model.safetensors", "optimizer.safetensors", "state.json", "tokenizer.json")


def test_the_hashes_are_of_every_other_file(learner, template, tmp_path):
    save_checkpoint(tmp_path / "step-1", learner, template, {"update": 1})
    kept = json.loads((tmp_path / "step-1" / "hashes.json").read_text())
    present = {path.name for path in (tmp_path / "step-1").iterdir()} - {"hashes.json"}
    assert kept.keys() == present >= set(FILES)
    for name, value in kept.items():
        assert value == hashlib.sha256((tmp_path / "step-1" / name).read_bytes()).hexdigest()
    verify_checkpoint(tmp_path / "step-1")


@pytest.mark.parametrize("name", [*FILES, "critic.safetensors", "hashes.json"])
@pytest.mark.parametrize("place", [0.0, 0.5, 1.0])
def test_one_changed_bit_anywhere_is_noticed_and_the_checkpoint_before_it_is_used(
    template, tmp_path, name, place
):
    settings = CriticSettings(learning_rate=1e-3, epochs=1, minibatches=1, value_clip=0.2, seed=0)
    critic = Critic(new_nano(64, hidden=32, feed_forward=48, heads=2, seed=3), settings)
    learner = Learner(new_nano(64, hidden=32, feed_forward=48, heads=2, seed=1))
    for step in (2, 10):
        state = {"update": step, "validation": [0.1 * step, 1.0]}
        save_checkpoint(tmp_path / f"step-{step}", learner, template, state, critic)
    file = tmp_path / "step-10" / name
    data = bytearray(file.read_bytes())
    data[int(place * (len(data) - 1))] ^= 1
    file.write_bytes(data)
    with pytest.warns(UserWarning, match="skipped: checkpoint .*step-10 cannot be loaded"):
        assert load_newest(tmp_path, copy_of(learner), critic)["update"] == 2
    with pytest.warns(UserWarning, match="step-10"):
        assert best_checkpoint(tmp_path).name == "step-2"
    if name == "critic.safetensors":
        with pytest.raises(StoreError, match=r"critic\.safetensors changed since it was written"):
            load_critic(tmp_path / "step-10", critic)


def test_a_checkpoint_without_its_hashes_is_not_loaded(learner, template, tmp_path):
    save_checkpoint(tmp_path / "step-1", learner, template, {"update": 1})
    (tmp_path / "step-1" / "hashes.json").unlink()
    with pytest.raises(StoreError, match=r"hashes\.json"):
        load_checkpoint(tmp_path / "step-1", copy_of(learner))


def test_weights_of_another_shape_are_refused(learner, template, tmp_path):
    save_checkpoint(tmp_path / "step-1", learner, template, {})
    other = Learner(new_nano(64, hidden=48, feed_forward=48, heads=2, seed=2))
    with pytest.raises(StoreError, match="cannot be loaded"):
        load_checkpoint(tmp_path / "step-1", other)


def test_the_newest_by_number_and_the_best_are_kept(learner, template, tmp_path):
    scores = {2: [0.5, 2.0], 10: [0.9, 1.3], 9: [0.9, 1.3], 8: [0.9, 1.2], 11: [], 100: [0.7, 1.0]}
    for step, score in scores.items():
        state = {"update": step, "validation": score}
        save_checkpoint(tmp_path / f"step-{step}", learner, template, state)
    keep_checkpoints(tmp_path, 2)
    assert [path.name for path in checkpoints(tmp_path)] == ["step-100", "step-11", "step-10"]
    assert best_checkpoint(tmp_path).name == "step-10"


def test_a_stage_without_checkpoints_has_no_best_one(tmp_path):
    assert best_checkpoint(tmp_path / "rl") is None


def test_a_save_that_fails_halfway_leaves_the_checkpoint_before_it(learner, template, tmp_path, monkeypatch):
    save_checkpoint(tmp_path / "step-3", learner, template, {"update": 3})

    def full(tensors, path):
        path.write_bytes(b"half")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("palestra.training.checkpoint.save_file", full)
    with pytest.raises(StoreError, match=r"step-3.*No space left"):
        save_checkpoint(tmp_path / "step-3", learner, template, {"update": 4})
    assert [path.name for path in tmp_path.iterdir()] == ["step-3"]
    assert load_checkpoint(tmp_path / "step-3", copy_of(learner)) == {"update": 3}


def test_a_critic_gives_the_values_it_was_saved_with_and_one_without_its_head_is_refused(template, tmp_path):
    settings = CriticSettings(learning_rate=1e-2, epochs=1, minibatches=1, value_clip=9.0, seed=0)

    def made(seed: int) -> Critic:
        return Critic(new_nano(64, hidden=32, feed_forward=48, heads=2, seed=seed), settings)

    learner = Learner(new_nano(64, hidden=32, feed_forward=48, heads=2, seed=1))
    critic, other = made(3), made(4)
    critic.fit([ROW], [[1.0, 1.0, 1.0]], critic.values([ROW]))
    save_checkpoint(tmp_path / "step-1", learner, template, {"update": 1}, critic)
    load_critic(tmp_path / "step-1", other)
    assert other.values([ROW]) == critic.values([ROW]) != [[0.0] * 3]
    headless = {name: value for name, value in critic.tensors().items() if not name.startswith("head.")}
    critic.tensors = lambda: headless
    save_checkpoint(tmp_path / "step-2", learner, template, {"update": 2}, critic)
    with pytest.raises(StoreError, match="step-2 cannot be loaded"):
        load_critic(tmp_path / "step-2", other)


FULL_DISK = """
import resource, sys
from pathlib import Path
from palestra.errors import StoreError
from palestra.policy.chat import RoleTokenTemplate
from palestra.policy.nano import new_nano, train_tokenizer
from palestra.training import Learner, imitation_loss, load_checkpoint, save_checkpoint
from palestra.types import Segment
learner = Learner(new_nano(64, hidden=32, feed_forward=48, heads=2, seed=1))
template = RoleTokenTemplate(train_tokenizer(["a few words"], 300))
row = Segment("t", (7, 8, 9, 1), (False, True, True, True), (0.0,) * 4, (0.0, 1.0, 1.0, 1.0))
learner.update([row], imitation_loss, 1e-2)
folder = Path(sys.argv[1]) / "step-1"
save_checkpoint(folder, learner, template, {"update": 1})
weights = (folder / "model.safetensors").stat().st_size
for limit in (weights // 2, weights + 1000):  # in the weights, then in the optimiser's state
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
    try:
        save_checkpoint(folder, learner, template, {"update": 2})
    except StoreError as error:
        print(error)
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
print(load_checkpoint(folder, learner), [path.name for path in folder.parent.iterdir()])
"""


def test_a_disk_that_fills_while_saving_is_said_and_the_checkpoint_before_it_is_whole(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", FULL_DISK, str(tmp_path)], check=True, capture_output=True, text=True
    )
    first, second, last = done.stdout.splitlines()
    assert all(f"{tmp_path}/step-1" in said and "large" in said for said in (first, second))
    assert last == "{'update': 1} ['step-1']"
