"""A check that third parties run on their engine: does it keep the contract of ``Engine``?"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Sequence

from palestra.errors import ConfigError
from palestra.policy.engine import Engine, Generation, SamplingParams, as_end_ids

_TOKENS = 12
_Rule = Callable[["_Trial"], Awaitable[None]]


def check_engine(
    engine: Engine,
    prompt_ids: Sequence[int],
    end_ids: int | Sequence[int],
    *,
    reproducible: bool = True,
    tolerance: float = 1e-3,
) -> None:
    """Check an engine against its contract.

    Args:
        engine: with nothing being sampled.
        prompt_ids: a conversation that awaits an action.
        end_ids: the id that ends an action, or several of which any does.
        reproducible: whether a request's seed is to settle its sample.
        tolerance: of log-probabilities, in nats; about 0.3 in bfloat16.

    Raises:
        ConfigError: naming the rule that failed and how.
    """
    rules: list[tuple[str, _Rule]] = [
        ("an answer is 1 to max_tokens ids with as many finite log-probabilities", _is_whole),
        ("it ends at the end id, or at max_tokens and says so", _ends),
        ("greedy answers are the same alone and among others", _same_among_others),
        ("log-probabilities are those of a session read turn by turn or at once", _same_by_turns),
        ("temperature shapes the log-probabilities", _temperature_counts),
        ("a released or unknown session can be released and used again", _releases),
    ]
    if reproducible:
        rules.append(("a seed settles the sample, and different seeds differ", _seeds_settle))
    trial = _Trial(engine, list(prompt_ids), as_end_ids(end_ids), tolerance)
    for name, rule in rules:
        try:
            asyncio.run(_one(rule, trial))
        except AssertionError as error:
            raise ConfigError(f"rule {name!r} fails for {type(engine).__name__}: {error}") from error


async def _one(rule: _Rule, trial: _Trial) -> None:
    await rule(trial)


class _Trial:
    """An engine under test."""

    def __init__(self, engine: Engine, prompt: list[int], end_ids: tuple[int, ...], tolerance: float) -> None:
        self.engine, self.prompt, self.end_ids, self.tolerance = engine, prompt, end_ids, tolerance
        self._count = 0

    async def sample(
        self, prompt: list[int] | None = None, *, temperature: float = 1.0, seed: int = 0, session: str = ""
    ) -> Generation:
        self._count += 1
        own = session or f"check-{self._count}"
        params = SamplingParams(_TOKENS, temperature, seed)
        made = await self.engine.generate(self.prompt if prompt is None else prompt, params, own)
        if not session:
            self.engine.release(own)
        return made

    def close(self, first: Sequence[float], second: Sequence[float], what: str) -> None:
        gap = max(abs(a - b) for a, b in zip(first, second, strict=True))
        assert gap <= self.tolerance, f"{what} differ by {gap:.2g} nats, over {self.tolerance:g}"


async def _is_whole(trial: _Trial) -> None:
    for made in await asyncio.gather(*(trial.sample(seed=seed) for seed in range(8))):
        assert 1 <= len(made.ids) <= _TOKENS, f"{len(made.ids)} ids for max_tokens={_TOKENS}"
        assert len(made.ids) == len(made.logprobs), f"{len(made.ids)} ids, {len(made.logprobs)} logprobs"
        assert all(math.isfinite(v) and v <= 1e-3 for v in made.logprobs), f"{made.logprobs}"


async def _ends(trial: _Trial) -> None:
    for made in await asyncio.gather(*(trial.sample(seed=seed) for seed in range(8))):
        assert not set(trial.end_ids) & set(made.ids[:-1]), "it goes on behind the end id"
        ended = made.ids[-1] in trial.end_ids
        assert ended or made.finish_reason == "length" or len(made.ids) < _TOKENS, "cut, and says stop"
        assert not ended or made.finish_reason == "stop", "ended, and says length"


async def _same_among_others(trial: _Trial) -> None:
    alone = await trial.sample(temperature=0.0)
    crowd = [trial.sample(trial.prompt[:-1], seed=seed) for seed in range(3)]
    among, *_ = await asyncio.gather(trial.sample(temperature=0.0), *crowd)
    assert alone.ids == among.ids, f"{alone.ids} alone, {among.ids} among others"
    trial.close(alone.logprobs, among.logprobs, "log-probabilities alone and among others")


async def _same_by_turns(trial: _Trial) -> None:
    first = await trial.sample(temperature=0.0, session="check-turns")
    longer = [*trial.prompt, *first.ids, *trial.prompt]
    kept = await trial.sample(longer, temperature=0.0, session="check-turns")
    trial.engine.release("check-turns")
    fresh = await trial.sample(longer, temperature=0.0)
    assert kept.ids == fresh.ids, f"{kept.ids} turn by turn, {fresh.ids} at once"
    trial.close(kept.logprobs, fresh.logprobs, "log-probabilities turn by turn and at once")


async def _temperature_counts(trial: _Trial) -> None:
    """What is drawn is likelier when it is cold, on average over first tokens."""
    seeds = range(12)
    hot = await asyncio.gather(*(trial.sample(temperature=2.0, seed=seed) for seed in seeds))
    cold = await asyncio.gather(*(trial.sample(temperature=0.05, seed=seed) for seed in seeds))
    means = [sum(made.logprobs[0] for made in some) / len(seeds) for some in (cold, hot)]
    assert means[0] > means[1] - trial.tolerance, (
        f"first tokens have {means[0]:.3f} on average at temperature 0.05 and {means[1]:.3f} at 2"
    )


async def _releases(trial: _Trial) -> None:
    trial.engine.release("check-nobody")
    first = await trial.sample(temperature=0.0, session="check-again")
    trial.engine.release("check-again")
    second = await trial.sample(temperature=0.0, session="check-again")
    trial.engine.release("check-again")
    assert first.ids == second.ids, "a session that was released answers otherwise"


async def _seeds_settle(trial: _Trial) -> None:
    for seed in range(6):
        one, same = [await trial.sample(seed=seed, temperature=2.0) for _ in range(2)]
        assert one.ids == same.ids, f"seed {seed} gave {one.ids} and then {same.ids}"
    several = await asyncio.gather(*(trial.sample(seed=seed, temperature=2.0) for seed in range(8)))
    assert len({made.ids for made in several}) > 1, "eight seeds gave one sample"
