"""The faster forms give the reference's numbers, forwards and backwards."""

import copy
import pickle

import pytest
import torch
from torch import nn
from transformers import DynamicCache, Lfm2ForCausalLM, LlamaConfig, LlamaForCausalLM

from palestra.policy.adapters import LoraSettings, add_adapter, plain_weights
from palestra.policy.cpu_kernels import OneDnnLinear, use_cpu_kernels
from palestra.policy.nano import new_nano


@pytest.fixture
def pair():
    fast = new_nano(64, hidden=32, feed_forward=48, heads=2, seed=1)
    plain = Lfm2ForCausalLM(fast.config)
    plain.load_state_dict(fast.state_dict())
    return fast, plain


def test_logits_and_gradients_equal_the_reference(pair):
    fast, plain = pair
    ids = torch.randint(6, 64, (3, 17), generator=torch.Generator().manual_seed(0))
    outputs = [model(input_ids=ids, use_cache=False).logits for model in (fast, plain)]
    torch.testing.assert_close(outputs[0], outputs[1], rtol=1e-4, atol=1e-5)
    for logits in outputs:
        logits.square().mean().backward()
    for (name, a), b in zip(fast.named_parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad, rtol=1e-3, atol=1e-6, msg=name)


def test_padding_on_the_left_and_other_caches_take_the_reference_path(pair):
    fast, plain = pair
    ids = torch.tensor([[0, 0, 7, 8, 9]])
    mask = torch.tensor([[0, 0, 1, 1, 1]])
    outputs = []
    for model in (fast, plain):
        cache = DynamicCache(config=model.config)
        first = model(input_ids=ids, attention_mask=mask, cache=cache, use_cache=True).logits
        outputs.append(first)
    torch.testing.assert_close(outputs[0][:, 2:], outputs[1][:, 2:], rtol=1e-4, atol=1e-5)


@pytest.fixture(scope="module")
def large():
    """A Llama of 21 million weights with the kernels, and the same without."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=40_000,
        hidden_size=512,
        intermediate_size=768,
        num_hidden_layers=1,
        num_attention_heads=8,
        num_key_value_heads=4,
        attention_bias=True,
        tie_word_embeddings=True,
    )
    plain = LlamaForCausalLM(config)
    fast = copy.deepcopy(plain)
    use_cpu_kernels(fast)
    return fast, plain


def linear_classes(model):
    return {type(module) for module in model.modules() if isinstance(module, nn.Linear)}


def gradients(model, ids):
    model.zero_grad()
    logits = model(input_ids=ids, use_cache=False).logits
    logits.logsumexp(-1).mean().backward()
    return logits, {name: each.grad for name, each in model.named_parameters() if each.grad is not None}


IDS = torch.randint(0, 40_000, (2, 70), generator=torch.Generator().manual_seed(0))


def test_a_large_model_has_other_linear_layers_and_a_small_one_its_own(large, pair):
    assert linear_classes(large[0]) == {OneDnnLinear}
    assert linear_classes(large[1]) == linear_classes(pair[0]) == {nn.Linear}


def test_logits_and_gradients_of_a_large_model_equal_the_reference(large):
    (fast, ours), (plain, theirs) = (gradients(model, IDS) for model in large)
    torch.testing.assert_close(fast, plain, rtol=1e-4, atol=1e-5)
    assert ours.keys() == theirs.keys()
    for name, gradient in ours.items():
        assert (gradient - theirs[name]).norm() <= 1e-5 * theirs[name].norm(), name


def test_an_adapter_on_a_large_model_has_the_gradients_of_the_reference(large):
    found = []
    for model in map(copy.deepcopy, large):
        add_adapter(model, LoraSettings(rank=4, alpha=8), seed=1)
        for name, each in model.named_parameters():
            if "lora_B" in name:
                torch.nn.init.normal_(each, std=0.02, generator=torch.Generator().manual_seed(2))
        found.append((*gradients(model, IDS), plain_weights(model)))
    (fast, ours, weights), (plain, theirs, same) = found
    torch.testing.assert_close(fast, plain, rtol=1e-4, atol=1e-5)
    assert len(ours) == len(theirs) == 14
    for name, gradient in ours.items():
        torch.testing.assert_close(gradient, theirs[name], rtol=1e-3, atol=1e-6, msg=name)
    for name, value in weights.items():
        torch.testing.assert_close(value, same[name], msg=name)


def test_products_of_bfloat16_and_under_autocast_are_the_reference_s_own(large):
    fast, plain = large
    layer, same = fast.model.layers[0].mlp.up_proj, plain.model.layers[0].mlp.up_proj
    x = torch.randn(5, 512, generator=torch.Generator().manual_seed(3))
    with torch.autocast("cpu", torch.bfloat16):
        assert layer(x).dtype == torch.bfloat16
        assert torch.equal(layer(x), same(x))
    narrow, its = copy.deepcopy(layer).bfloat16(), copy.deepcopy(same).bfloat16()
    assert torch.equal(narrow(x.bfloat16()), its(x.bfloat16()))


def test_rows_with_gaps_and_no_rows_are_read_right(large):
    layer, same = large[0].model.layers[0].mlp.up_proj, large[1].model.layers[0].mlp.up_proj
    x = torch.randn(3, 9, 1024, generator=torch.Generator().manual_seed(3))[:, ::2, ::2]
    torch.testing.assert_close(layer(x), same(x), rtol=1e-4, atol=1e-5)
    assert layer(x[:0]).shape == (0, 5, 768)


def test_a_large_model_pickles_and_gives_the_same_logits(large):
    again = pickle.loads(pickle.dumps(large[0]))
    assert linear_classes(again) == {OneDnnLinear}
    assert torch.equal(again(IDS).logits, large[0](IDS).logits)


def test_a_compiled_graph_holds_the_usual_product(large):
    layer, x = large[0].model.layers[0].mlp.up_proj, torch.randn(4, 512)
    torch.testing.assert_close(torch.compile(layer, backend="eager", fullgraph=True)(x), layer(x))
