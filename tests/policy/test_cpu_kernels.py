"""The faster forms give the reference's numbers, forwards and backwards."""

import pytest
import torch
from transformers import DynamicCache, Lfm2ForCausalLM

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
