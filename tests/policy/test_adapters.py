"""LoRA adapters: what is trained, what a checkpoint holds, and what lies under an adapter."""

import asyncio
import pickle

import peft
import pytest
import torch

from palestra.errors import ConfigError
from palestra.policy import SamplingParams
from palestra.policy.adapters import (
    LoraSettings,
    WithoutAdapter,
    add_adapter,
    frozen,
    has_adapter,
    load_adapter,
    plain_weights,
    save_adapter,
    trained_state,
)
from palestra.policy.local import LocalEngine
from palestra.policy.models import model_from_bytes, weights_to_bytes
from palestra.policy.nano import new_nano
from palestra.training import Learner, imitation_loss
from palestra.types import Segment

ROW = Segment("t", (7, 8, 9, 1), (False, True, True, True), (0.0,) * 4, (0.0, 1.0, 1.0, 1.0))
IDS = torch.tensor([[5, 6, 7, 8, 9]])
SETTINGS = LoraSettings(rank=4, alpha=8.0)


def tiny(seed: int = 1):
    return new_nano(64, hidden=32, feed_forward=48, heads=2, seed=seed)


def logits(model) -> torch.Tensor:
    with torch.no_grad():
        return model(input_ids=IDS).logits


@pytest.fixture
def trained():
    model = tiny()
    add_adapter(model, SETTINGS, seed=0)
    learner = Learner(model)
    for _ in range(5):
        learner.update([ROW], imitation_loss, 1e-2)
    return learner


def test_a_fresh_adapter_changes_nothing_and_follows_from_its_seed():
    plain, one, same, other = (tiny() for _ in range(4))
    for model, seed in ((one, 0), (same, 0), (other, 1)):
        add_adapter(model, SETTINGS, seed)
    assert torch.equal(logits(plain), logits(one))
    first, second, third = (trained_state(model) for model in (one, same, other))
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert any(not torch.equal(first[name], third[name]) for name in first)


def test_only_the_adapter_is_trained_and_the_reference_is_the_model_without_it(trained):
    plain = tiny()
    assert not torch.allclose(logits(plain), logits(trained.model), atol=1e-3)
    with frozen(WithoutAdapter(trained.model)) as reference:
        assert torch.equal(logits(plain), logits(reference))
    off = plain.state_dict()
    kept = {n.replace(".base_layer.", "."): v for n, v in trained.model.state_dict().items()}
    assert all(torch.equal(kept[name], off[name]) for name in off)
    assert len(list(trained.model.parameters())) > len(trained.optimizers[0].param_groups[0]["params"]) > 0


def test_the_learner_measures_the_kl_to_the_model_without_its_adapter(trained):
    seen = []

    def watched(terms):
        seen.append(terms.reference_logprobs.clone())
        return imitation_loss(terms)

    apart = Learner(tiny()).logprobs(tiny(), [ROW])[0]
    before = {name: value.clone() for name, value in trained_state(trained.model).items()}
    trained.update([ROW], watched, 1e-2, WithoutAdapter(trained.model))
    assert seen[0].tolist() == pytest.approx([value for value in apart if value])
    after = trained_state(trained.model)
    assert any(not torch.equal(before[name], after[name]) for name in before)


def test_merged_weights_compute_what_the_adapted_model_does(trained):
    merged = model_from_bytes(trained.model.config, weights_to_bytes(trained.model))
    assert not has_adapter(merged)
    assert torch.allclose(logits(merged), logits(trained.model), atol=1e-5)
    assert set(plain_weights(trained.model)) == set(tiny().state_dict())


def test_peft_loads_the_adapter_that_was_written(trained, tmp_path):
    save_adapter(tmp_path, trained.model)
    loaded = peft.PeftModel.from_pretrained(tiny(), tmp_path)
    assert torch.allclose(logits(loaded), logits(trained.model), atol=1e-6)


def test_an_adapter_is_read_back_bit_for_bit_and_another_shape_is_refused(trained, tmp_path):
    save_adapter(tmp_path, trained.model)
    again = tiny()
    add_adapter(again, SETTINGS, seed=9)
    load_adapter(tmp_path, again)
    assert torch.equal(logits(again), logits(trained.model))
    for settings in (LoraSettings(8, 8.0), LoraSettings(4, 8.0, ("w1",))):
        wrong = tiny()
        add_adapter(wrong, settings, seed=0)
        with pytest.raises(RuntimeError):
            load_adapter(tmp_path, wrong)


def test_a_target_that_matches_nothing_is_refused_with_the_layers_there_are():
    for targets in (("query",), ("q_proj", "query")):
        with pytest.raises(ConfigError, match=r"names query, which is no linear layer.*q_proj"):
            add_adapter(tiny(), LoraSettings(4, 8.0, targets), seed=0)
    for name in ("lm_head", "embed_tokens"):
        with pytest.raises(ConfigError, match=f"names {name}, which is no linear layer below the output"):
            add_adapter(tiny(), LoraSettings(4, 8.0, (name,)), seed=0)


def test_targets_choose_the_layers():
    model = tiny()
    add_adapter(model, LoraSettings(4, 8.0, ("q_proj", "v_proj")), seed=0)
    assert {name.split(".")[-4] for name in trained_state(model)} == {"q_proj", "v_proj"}


def test_an_adapter_reaches_what_is_sampled_here_and_elsewhere(trained):
    def logprobs(engine):
        return asyncio.run(engine.generate([5, 6, 7], SamplingParams(4, 1.0, seed=1), "a")).logprobs

    engine = LocalEngine(trained.model, 1, slots=2, context_tokens=32)
    before = logprobs(engine)
    with torch.no_grad():
        for value in trained_state(trained.model).values():
            value.mul_(10)
    engine.weights_changed(1)
    assert max(abs(a - b) for a, b in zip(before, logprobs(engine), strict=False)) > 0.1
    elsewhere = pickle.loads(pickle.dumps(engine))
    assert logprobs(elsewhere) == pytest.approx(logprobs(engine), abs=1e-3)


def test_a_hundred_merges_leave_the_base_and_the_adapter_as_they_were(trained):
    before = {name: value.clone() for name, value in trained.model.state_dict().items()}
    first = weights_to_bytes(trained.model)
    assert all(weights_to_bytes(trained.model) == first for _ in range(100))
    assert all(torch.equal(value, before[name]) for name, value in trained.model.state_dict().items())
