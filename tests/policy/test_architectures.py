"""Engine and learner compute what transformers computes, by architecture, or the model is refused."""

import asyncio

import pytest
import torch
import transformers as tf

from palestra.errors import ConfigError
from palestra.policy import SamplingParams
from palestra.policy.forward_check import check_forward
from palestra.policy.local import LocalEngine
from palestra.training import Learner
from palestra.types import Segment

SIZE = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
FAMILIES = {
    "llama": lambda: tf.LlamaConfig(**SIZE),
    "llama, attention written out": lambda: tf.LlamaConfig(**SIZE, attn_implementation="eager"),
    "qwen2, half with a window": lambda: tf.Qwen2Config(
        **SIZE, use_sliding_window=True, sliding_window=16, max_window_layers=1
    ),
    "qwen3": lambda: tf.Qwen3Config(**SIZE, head_dim=8),
    "mistral with a window": lambda: tf.MistralConfig(**SIZE, sliding_window=16),
    "mistral without": lambda: tf.MistralConfig(**SIZE, sliding_window=None),
    "gemma2, window and cap": lambda: tf.Gemma2Config(**SIZE, head_dim=8, sliding_window=16),
    "gemma3, window": lambda: tf.Gemma3TextConfig(**SIZE, head_dim=8, sliding_window=16),
    "phi3": lambda: tf.Phi3Config(**SIZE),
    "phi": lambda: tf.PhiConfig(**SIZE),
    "cohere, scaled": lambda: tf.CohereConfig(**SIZE, logit_scale=0.0625),
    "granite, scaled": lambda: tf.GraniteConfig(**SIZE, logits_scaling=8.0, embedding_multiplier=12.0),
    "smollm3": lambda: tf.SmolLM3Config(**SIZE),
    "olmo2": lambda: tf.Olmo2Config(**SIZE),
    "mixtral": lambda: tf.MixtralConfig(**SIZE, num_local_experts=4, num_experts_per_tok=2),
    "gpt-oss, window and sinks": lambda: tf.GptOssConfig(
        **SIZE, head_dim=8, num_local_experts=4, num_experts_per_tok=2, sliding_window=16
    ),
    "lfm2": lambda: tf.Lfm2Config(**SIZE),
    "gpt2": lambda: tf.GPT2Config(
        vocab_size=64, n_embd=32, n_layer=2, n_head=4, n_positions=512, bos_token_id=1, eos_token_id=2
    ),
}
UNLIKE = {
    "mamba": lambda: tf.MambaConfig(vocab_size=64, hidden_size=32, num_hidden_layers=2),
    "bloom": lambda: tf.BloomConfig(vocab_size=64, hidden_size=32, n_layer=2, n_head=4),
}


def make(config) -> torch.nn.Module:
    torch.manual_seed(0)
    model = tf.AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    with torch.no_grad():
        for value in model.parameters():
            if value.ndim >= 2:
                value.mul_(6)  # so that a wrong mask shows
    return model


def episodes(model) -> list[Segment]:
    """Two turns of three episodes with a shared opening, longer than any window."""
    engine = LocalEngine(model, end_ids=99, slots=4, context_tokens=256)
    opening = [5 + i * 7 % 50 for i in range(70)]
    prompts = [[*opening, *(9 + k + i for i in range(4 + 3 * k))] for k in range(3)]

    async def play() -> list[Segment]:
        rows = []
        for _ in range(2):
            made = await asyncio.gather(
                *(engine.generate(p, SamplingParams(12, 1.0, k), str(k)) for k, p in enumerate(prompts))
            )
            for prompt, each in zip(prompts, made, strict=True):
                zeros, mask = (0.0,) * len(prompt), (False,) * len(prompt) + (True,) * len(each.ids)
                ids = (*prompt, *each.ids)
                rows.append(Segment("e", ids, mask, zeros + each.logprobs, (0.0,) * len(ids)))
                prompt += [*each.ids, 9, 8, 7]
        return rows

    return asyncio.run(play())


@pytest.mark.parametrize("family", FAMILIES)
def test_the_engine_and_the_learner_compute_what_the_model_does(family):
    model = make(FAMILIES[family]())
    check_forward(model)
    rows = episodes(model)
    learned = Learner(model).logprobs(model, rows)
    for row, found in zip(rows, learned, strict=True):
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([row.ids]), use_cache=False).logits[0].float()
        plain = torch.log_softmax(logits, -1)
        for place in (n for n, acted in enumerate(row.action_mask) if acted):
            own = float(plain[place - 1, row.ids[place]])
            assert row.sampled_logprobs[place] == pytest.approx(own, abs=1e-4)
            assert found[place] == pytest.approx(own, abs=1e-4)


@pytest.mark.parametrize("family", UNLIKE)
def test_an_architecture_that_cannot_be_run_is_refused_by_name(family):
    with pytest.raises(ConfigError, match=f"(?i){family}.* is of an architecture that palestra cannot run"):
        check_forward(make(UNLIKE[family]()))


def test_a_model_whose_logits_come_out_otherwise_is_refused():
    model = make(FAMILIES["llama"]())
    own = model.forward
    model.forward = lambda **inputs: tf.utils.ModelOutput(logits=own(**inputs).logits * 1.5)
    with pytest.raises(ConfigError, match="computes other logits by itself"):
        check_forward(model)
