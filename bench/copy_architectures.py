"""Which small architecture learns to copy soonest: attention alone, or short convolutions before it?

    python bench/copy_architectures.py            # about ten minutes on two cores
    python bench/copy_architectures.py --quick    # under a minute, too short to learn

Every model has about the same size and reads the same rows: random ids with a random period, so that the
only way to predict one is to find where the same ids stood before. Ends with one line of JSON: updates
to 95 % copied ids, plain attention (peer) against the shipped architecture (ours).
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import time
from typing import Any

os.environ.setdefault("GOMP_SPINCOUNT", "0")

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from palestra.policy.nano import new_nano
from palestra.recipes.nano_base import BaseConfig, measure_copying, repetition_segment
from palestra.training import Learner, imitation_loss

VOCABULARY = 512


def llama(seed: int) -> Any:
    """Attention only, four layers."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=4,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
        pad_token_id=0,
        bos_token_id=None,
        eos_token_id=1,
    )
    return LlamaForCausalLM(config)


def updates_to_copy(model: Any, optimizer: str, rate: float, most: int) -> tuple[int | None, float, float]:
    """Updates until 95 % of ids are copied (None if never), seconds, and the last accuracy."""
    config = BaseConfig(vocabulary_size=VOCABULARY)
    learner = Learner(model, optimizer=optimizer)  # type: ignore[arg-type]
    rng, started, accuracy = random.Random(0), time.perf_counter(), 0.0
    for update in range(1, most + 1):
        rows = [repetition_segment(rng, config, few=False) for _ in range(32)]
        learner.update(rows, imitation_loss, rate * min(1.0, update / 50))
        if update % 25 == 0:
            accuracy = measure_copying(model, random.Random(1), VOCABULARY)
            if accuracy >= 0.95:
                return update, time.perf_counter() - started, accuracy
    return None, time.perf_counter() - started, accuracy


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true")
    most = 50 if parser.parse_args().quick else 800
    torch.set_num_threads(2)
    found: dict[str, int | None] = {}
    for optimizer, rate in (("muon", 0.01), ("adamw", 0.003)):
        for name, model in (("caca", new_nano(VOCABULARY, seed=0)), ("llama", llama(0))):
            size = sum(parameter.numel() for parameter in model.parameters())
            updates, seconds, accuracy = updates_to_copy(model, optimizer, rate, most)
            found[f"{name}-{optimizer}"] = updates
            print(
                f"{name} {optimizer}: {size:,} parameters, {updates} updates, {seconds:.0f} s, {accuracy:.2f} copied"
            )
    ours, peer = found["caca-muon"], found["llama-adamw"]
    result = {
        "name": "copy_architectures",
        "ratio": peer / ours if ours and peer else None,
        "ours": ours,
        "peer": peer,
        "unit": "updates to 95 % copied, None: not within the budget",
        "checks": {"budget": most, "all": found},
        "machine": {"cpus": os.cpu_count(), "platform": platform.platform()},
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
