"""The nano policy: a decoder of about a million parameters that trains on two CPU cores.

It is an ordinary transformers causal language model (``Lfm2ForCausalLM``: short convolutions
alternating with attention), chosen because it learns to copy soonest; ``docs/nano.md`` has the
measurements. The weights shipped beside this file are the world-agnostic base that
``palestra.recipes.nano_base`` reproduces from a seed.
"""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import Lfm2Config, Lfm2ForCausalLM, PreTrainedModel

from palestra.policy.chat import CONTROL_TOKENS
from palestra.policy.cpu_kernels import use_cpu_kernels

NANO_FOLDER = Path(str(files("palestra.policy"))) / "nano_weights"
CONTEXT_TOKENS = 2048
LAYER_KINDS = {"c": "conv", "a": "full_attention"}

# Digits one by one, words without their leading space: a value is spelled with the same ids in a
# sentence and inside quotes, which is what copying needs.
_PIECES = r"\d|[A-Za-z]+|[^A-Za-z\d]+"


def train_tokenizer(texts: list[str], vocabulary_size: int) -> Tokenizer:
    """Byte-level BPE with single digits, learned from ``texts``."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_PIECES), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary_size,
        special_tokens=list(CONTROL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def new_nano(
    vocabulary_size: int,
    *,
    hidden: int = 128,
    feed_forward: int = 256,
    layers: str = "caca",
    heads: int = 2,
    seed: int = 0,
) -> PreTrainedModel:
    """An untrained nano model; ``layers`` alternate convolution and attention, attention last."""
    config = Lfm2Config(
        vocab_size=vocabulary_size,
        hidden_size=hidden,
        intermediate_size=feed_forward,
        block_auto_adjust_ff_dim=False,
        num_hidden_layers=len(layers),
        layer_types=[LAYER_KINDS[letter] for letter in layers],
        num_attention_heads=heads,
        num_key_value_heads=heads,
        max_position_embeddings=CONTEXT_TOKENS,
        rope_parameters={"rope_type": "default", "rope_theta": 10_000.0},
        pad_token_id=CONTROL_TOKENS.index("<|pad|>"),
        eos_token_id=CONTROL_TOKENS.index("<|end|>"),
        bos_token_id=None,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Lfm2ForCausalLM(config)
    use_cpu_kernels(model)
    return model
