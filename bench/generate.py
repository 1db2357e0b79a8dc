"""Sampling by palestra's engine against transformers' ``generate``, and against a vLLM server for CPUs.

    python bench/generate.py                                # SmolLM2-135M-Instruct, about six minutes on a free core
    python bench/generate.py --quick                        # a few tokens, one round
    make vllm-server MODEL=... & python bench/generate.py --server http://127.0.0.1:8000/v1

Against transformers: groups of eight attempts share a prompt of 300 tokens; batches are one group and four, each attempt samples
32 tokens at temperature 1, in float32 and bfloat16, one thread, tokens a CPU second. In float32 the engine's log-probabilities are
compared with transformers' forward pass of what was sampled. Against a server: four groups of eight dialogues of four turns, whose
prompts and histories both sides keep; tokens a second of wall time, for the server's CPU time is not ours to read.
The last line is JSON: tokens a second of the engine (ours) and of the peer for the batch of 32 in float32, or of the server.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
from collections.abc import Callable
from statistics import median
from typing import Any

import torch
from speed_parts import Load, alternate, conclude, plain_smollm2, smollm2

from palestra.policy import Engine, SamplingParams
from palestra.policy.http import HttpEngine
from palestra.policy.local import LocalEngine
from palestra.policy.model_server import ModelServer, ServerSettings

GROUP, PROMPT_TOKENS, CONTEXT = 8, 300, 1024
TURNS, OBSERVATION_TOKENS = 4, 40
TOLERANCE = 1e-4
"""Nats, in float32."""


def random_ids(count: int, seed: int) -> list[int]:
    """Ids of ordinary tokens."""
    rng = random.Random(seed)
    return [rng.randrange(100, 49_000) for _ in range(count)]


def prompts(batch: int) -> list[list[int]]:
    """One an attempt, equal within a group."""
    return [random_ids(PROMPT_TOKENS, number // GROUP) for number in range(batch)]


def sample(model: Any, batch: int, new: int) -> tuple[torch.Tensor, torch.Tensor]:
    """(batch, new) ids and log-probabilities of palestra's engine; nothing ends an attempt early."""
    engine = LocalEngine(model, -1, slots=batch, context_tokens=CONTEXT)

    async def all_at_once() -> list[Any]:
        asked = enumerate(prompts(batch))
        return await asyncio.gather(
            *(engine.generate(ids, SamplingParams(new, 1.0, seed), str(seed)) for seed, ids in asked)
        )

    found = asyncio.run(all_at_once())
    return torch.tensor([each.ids for each in found]), torch.tensor([each.logprobs for each in found])


def generate(model: Any, batch: int, new: int, cache: str | None) -> None:
    """The same by transformers."""
    ids = torch.tensor(prompts(batch))
    with torch.inference_mode():
        out = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            do_sample=True,
            temperature=1.0,
            top_k=0,
            top_p=1.0,
            max_new_tokens=new,
            min_new_tokens=new,
            pad_token_id=0,
            **({"cache_implementation": cache} if cache else {}),
        )
    assert out.shape == (batch, PROMPT_TOKENS + new)


def mismatch(ours: Any, plain: Any, new: int) -> dict[str, float]:
    """Log-probabilities of sampled tokens against a forward pass of transformers."""
    ids, logprobs = sample(ours, GROUP, new)
    whole = torch.cat([torch.tensor(prompts(GROUP)), ids], 1)
    with torch.inference_mode():
        logits = plain(input_ids=whole, use_cache=False).logits[:, PROMPT_TOKENS - 1 : -1].float()
    apart = (torch.log_softmax(logits, -1).gather(2, ids[..., None])[..., 0] - logprobs).abs()
    return {"mean": float(apart.mean()), "max": float(apart.max())}


def against_transformers(quick: bool, rounds: int, cache: str | None) -> None:
    """Both dtypes, both batches."""
    new, rows, checks = (4 if quick else 32), {}, {}
    for dtype in (torch.float32, torch.bfloat16):
        name = str(dtype).removeprefix("torch.")
        ours, plain = smollm2()[0].to(dtype), plain_smollm2(dtype)
        checks[name] = mismatch(ours, plain, new)
        assert dtype != torch.float32 or checks[name]["max"] <= TOLERANCE, checks
        for batch in (8,) if quick else (8, 32):
            turns: dict[str, Callable[[], Any]] = {
                "palestra": lambda: sample(ours, batch, new),  # noqa: B023  (run in this iteration)
                "transformers": lambda: generate(plain, batch, new, cache),  # noqa: B023
            }
            found = alternate(turns, rounds, warm_up=0)
            speed = {who: batch * new / each["cpu"] for who, each in found.items()}
            rows[f"{name} {batch}"] = {
                **speed,
                "ratio": speed["palestra"] / speed["transformers"],
                "ratio_wall": found["transformers"]["wall"] / found["palestra"]["wall"],
                "others_cores": max(each["others"] for each in found.values()),
                "spread": max(each["spread"] for each in found.values()),
            }
            print(json.dumps({f"{name} {batch}": rows[f"{name} {batch}"]}), flush=True)
    of = rows["float32 8" if quick else "float32 32"]
    conclude("generate", of["palestra"], of["transformers"], "tokens a CPU second", checks, rows)


async def dialogue(engine: Engine, group: int, attempt: int, new: int, run: str) -> int:
    """Tokens sampled in a dialogue of some turns with given replies."""
    session, sampled = f"{run}-{group}-{attempt}", 0
    ids = random_ids(PROMPT_TOKENS, group)
    for turn in range(TURNS):
        params = SamplingParams(new, 1.0, (group * GROUP + attempt) * TURNS + turn)
        generation = await engine.generate(ids, params, session)
        sampled += len(generation.ids)
        ids = [*ids, *generation.ids, *random_ids(OBSERVATION_TOKENS, 1_000 + turn)]
    engine.release(session)
    return sampled


def play(engine: Engine, groups: int, new: int, run: str) -> float:
    """Tokens a second of wall time."""

    async def all_at_once() -> list[int]:
        pairs = [(group, attempt) for group in range(groups) for attempt in range(GROUP)]
        return await asyncio.gather(*(dialogue(engine, *pair, new, run) for pair in pairs))

    load = Load()
    return sum(asyncio.run(all_at_once())) / load.read()["wall"]


def against_server(url: str, dtype: torch.dtype, quick: bool, rounds: int) -> None:
    """Groups of dialogues by turns here and there."""
    model, template = smollm2()
    groups, new = (1, 8) if quick else (4, 32)
    engines: dict[str, Any] = {
        "palestra": LocalEngine(
            model.to(dtype), template.end_id, slots=groups * GROUP, context_tokens=CONTEXT
        ),
        "server": HttpEngine(ModelServer(ServerSettings(url)), template.end_id),
    }
    found: dict[str, list[float]] = {name: [] for name in engines}
    load = Load()
    for number in range(rounds + 1):
        for name, engine in engines.items():
            speed = play(engine, groups, new, f"{name}-{number}")
            if number:  # the first warms up
                found[name].append(speed)
                print(json.dumps({name: speed}), flush=True)
    middle = {name: median(each) for name, each in found.items()}
    checks = {"others_cores_and_server": load.read()["others"], "dtype": str(dtype)}
    conclude("generate-server", middle["palestra"], middle["server"], "tokens a second", checks, dict(found))


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--cache", help="Of transformers, such as `static`; its own choice if left out.")
    parser.add_argument("--server", help="Address of a vLLM server, up to and with /v1.")
    parser.add_argument(
        "--dtype", choices=["float32", "bfloat16"], default="float32", help="Of the engine beside a server."
    )
    asked = parser.parse_args()
    torch.set_num_threads(1)
    rounds = 1 if asked.quick else asked.rounds
    if asked.server:
        against_server(asked.server, getattr(torch, asked.dtype), asked.quick, rounds)
    else:
        against_transformers(asked.quick, rounds, asked.cache)


if __name__ == "__main__":
    main()
