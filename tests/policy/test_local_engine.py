"""The in-process engine against plain full forwards of the same model."""

import asyncio
import copy
import pickle
import random

import pytest
import torch

from palestra.errors import ConfigError
from palestra.policy import Generation, SamplingParams
from palestra.policy.local import LocalEngine
from palestra.policy.models import load_template
from palestra.policy.nano import NANO_FOLDER, new_nano

END = 1
VOCABULARY = 64


@pytest.fixture(scope="module")
def model():
    made = new_nano(VOCABULARY, hidden=32, feed_forward=48, layers="caca", heads=2, seed=3)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.mul_(3.0)  # far from uniform, so that mistakes show
    return made.eval()


def full_logprobs(model, prompt: list[int], generation: Generation, temperature: float) -> list[float]:
    ids = torch.tensor([prompt + list(generation.ids)])
    with torch.no_grad():
        logits = model(input_ids=ids, use_cache=False).logits[0, len(prompt) - 1 : -1]
    logprobs = torch.log_softmax(logits / temperature, -1)
    return logprobs[range(len(generation.ids)), list(generation.ids)].tolist()


async def play(engine: LocalEngine, name: str, seed: int, turns: int, record: list) -> None:
    rng = random.Random(seed)
    ids = [rng.randrange(6, VOCABULARY) for _ in range(rng.randint(3, 30))]
    for turn in range(turns):
        params = SamplingParams(max_tokens=rng.randint(1, 9), temperature=0.7, seed=seed * 100 + turn)
        generation = await engine.generate(ids, params, name)
        record.append((list(ids), generation, params))
        ids += [*generation.ids, *(rng.randrange(6, VOCABULARY) for _ in range(rng.randint(1, 12)))]
        for _ in range(rng.randint(0, 4)):
            await asyncio.sleep(0)
    engine.release(name)


def play_many(model, seeds: range, slots: int) -> list:
    engine, record = LocalEngine(model, END, slots=slots, context_tokens=256), []

    async def run() -> None:
        await asyncio.gather(*(play(engine, str(seed), seed, 4, record) for seed in seeds))

    asyncio.run(run())
    return record


@pytest.mark.parametrize("slots", [3, 16])
def test_logprobs_of_interleaved_multi_turn_episodes_equal_a_full_forward(model, slots):
    record = play_many(model, range(14), slots)
    assert len(record) == 14 * 4
    for prompt, generation, params in record:
        expected = full_logprobs(model, prompt, generation, params.temperature)
        assert generation.logprobs == pytest.approx(expected, abs=1e-4)


def test_a_sample_depends_on_its_seed_and_not_on_the_batch(model):
    together = {tuple(p): g.ids for p, g, _ in play_many(model, range(10), 16)}
    alone = {tuple(p): g.ids for seed in range(10) for p, g, _ in play_many(model, range(seed, seed + 1), 2)}
    assert together == alone


def test_attempts_with_one_prompt_are_read_once_and_differ_only_by_seed(model):
    engine = LocalEngine(model, END, slots=8, context_tokens=64)
    prompt = list(range(6, 26))

    async def run() -> list[Generation]:
        params = [SamplingParams(8, 1.0, seed=seed) for seed in (1, 2, 1)]
        return await asyncio.gather(*(engine.generate(prompt, p, str(i)) for i, p in enumerate(params)))

    first, second, again = asyncio.run(run())
    assert first.ids == again.ids
    assert first.logprobs == pytest.approx(again.logprobs, abs=1e-5)
    assert first.ids != second.ids
    assert first.logprobs == pytest.approx(full_logprobs(model, prompt, first, 1.0), abs=1e-4)


def test_greedy_takes_the_most_likely_token_and_length_cuts_are_said(model):
    engine = LocalEngine(model, END, slots=2, context_tokens=64)
    prompt = [7, 8, 9]
    generation = asyncio.run(engine.generate(prompt, SamplingParams(5, 0.0), "a"))
    ids = list(prompt)
    for token in generation.ids:
        with torch.no_grad():
            assert token == int(model(input_ids=torch.tensor([ids])).logits[0, -1].argmax())
        ids.append(token)
    assert generation.finish_reason == ("stop" if generation.ids[-1] == END else "length")


def test_new_weights_are_used_after_weights_changed(model):
    engine = LocalEngine(model, END, slots=2, context_tokens=64)
    before = asyncio.run(engine.generate([7, 8, 9], SamplingParams(4, 0.0), "a"))
    saved = {name: value.clone() for name, value in model.state_dict().items()}
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(0.5)
    engine.weights_changed(1)
    after = asyncio.run(engine.generate([7, 8, 9], SamplingParams(4, 0.0), "a"))
    expected = full_logprobs(model, [7, 8, 9], after, 1.0)
    model.load_state_dict(saved)
    assert after.policy_version == 1
    assert after.logprobs == pytest.approx(expected, abs=1e-4)
    assert after.logprobs != before.logprobs


def test_a_pickled_engine_is_the_same_policy_with_nothing_read(model):
    engine = LocalEngine(model, END, slots=2, context_tokens=64)
    engine.weights_changed(7)
    first = asyncio.run(engine.generate([7, 8, 9], SamplingParams(6, 1.0, seed=5), "a"))
    copied = pickle.loads(pickle.dumps(engine))
    second = asyncio.run(copied.generate([7, 8, 9], SamplingParams(6, 1.0, seed=5), "a"))
    assert second.ids == first.ids
    assert second.logprobs == pytest.approx(first.logprobs, abs=1e-5)
    assert second.policy_version == 7


def test_an_engine_of_a_bfloat16_model_samples_and_pickles_in_that_precision(model):
    narrow = copy.deepcopy(model).bfloat16()
    record, same = play_many(narrow, range(6), slots=4), copy.deepcopy(narrow).float()
    gaps = [
        abs(said - exact)
        for prompt, generation, params in record
        for said, exact in zip(
            generation.logprobs, full_logprobs(same, prompt, generation, params.temperature), strict=True
        )
    ]
    assert 0 < sum(gaps) / len(gaps) < 0.1
    engine = pickle.loads(pickle.dumps(LocalEngine(narrow, END, slots=2, context_tokens=64)))
    assert engine.model.dtype == torch.bfloat16
    assert engine.cache_bytes * 2 == LocalEngine(model, END, slots=2, context_tokens=64).cache_bytes


def test_a_pickled_template_still_reads_control_tokens_in_text_as_text():
    template = load_template(NANO_FOLDER)
    ids = pickle.loads(pickle.dumps(template)).encode("stop <|end|> here")
    assert ids == template.encode("stop <|end|> here")
    assert template.end_id not in ids


def test_a_prompt_that_does_not_fit_the_context_is_refused_by_name(model):
    engine = LocalEngine(model, END, slots=2, context_tokens=16)
    with pytest.raises(ConfigError, match="context of 16"):
        asyncio.run(engine.generate(list(range(6, 20)), SamplingParams(5), "a"))


def test_releasing_an_episode_that_waits_does_not_disturb_the_others(model):
    engine = LocalEngine(model, END, slots=2, context_tokens=64)

    async def run() -> Generation:
        doomed = asyncio.ensure_future(engine.generate([7, 8, 9], SamplingParams(20, 1.0, seed=1), "a"))
        kept = asyncio.ensure_future(engine.generate([9, 8, 7], SamplingParams(20, 1.0, seed=2), "b"))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        engine.release("a")
        with pytest.raises(asyncio.CancelledError):
            await doomed
        return await kept

    kept = asyncio.run(run())
    alone = LocalEngine(model, END, slots=2, context_tokens=64)
    assert kept.ids == asyncio.run(alone.generate([9, 8, 7], SamplingParams(20, 1.0, seed=2), "b")).ids


def test_an_episode_that_is_idle_gives_its_slot_to_one_that_waits(model):
    engine = LocalEngine(model, END, slots=1, context_tokens=64)

    async def run() -> tuple[Generation, Generation, Generation]:
        first = await engine.generate([7, 8, 9], SamplingParams(4, 1.0, seed=1), "a")
        other = await engine.generate([9, 8, 7], SamplingParams(4, 1.0, seed=2), "b")
        longer = [7, 8, 9, *first.ids, 11]
        return first, other, await engine.generate(longer, SamplingParams(4, 1.0, seed=3), "a")

    first, _, second = asyncio.run(run())
    assert second.logprobs == pytest.approx(
        full_logprobs(model, [7, 8, 9, *first.ids, 11], second, 1.0), abs=1e-4
    )


def test_a_model_that_raises_fails_the_requests_and_the_engine_goes_on(model, monkeypatch):
    engine = LocalEngine(model, END, slots=2, context_tokens=64)

    def broken(*_):
        raise RuntimeError("out of memory")

    with monkeypatch.context() as patched:
        patched.setattr("palestra.policy.local.last_hidden", broken)
        with pytest.raises(RuntimeError, match="out of memory"):
            asyncio.run(engine.generate([7, 8], SamplingParams(4), "a"))
    assert asyncio.run(engine.generate([7, 8], SamplingParams(4), "a")).ids


@pytest.mark.parametrize("token", [-1, 10**6])
def test_an_id_that_the_model_has_not_is_the_caller_s_mistake_and_nobody_else_s(model, token):
    engine = LocalEngine(model, END, slots=2, context_tokens=64)

    async def both() -> Generation:
        other = asyncio.create_task(engine.generate([7, 8], SamplingParams(4), "a"))
        await asyncio.sleep(0)
        with pytest.raises(ConfigError, match="token ids are from 0 to"):
            await engine.generate([7, token], SamplingParams(4), "b")
        return await other

    assert asyncio.run(both()).ids


def test_an_engine_recovers_from_weights_that_were_no_numbers(model):
    engine = LocalEngine(copy.deepcopy(model), END, slots=2, context_tokens=64)
    good = {name: value.clone() for name, value in engine.model.state_dict().items()}
    first = asyncio.run(engine.generate([7, 8, 9], SamplingParams(4, 1.0, seed=1), "a"))
    engine.release("a")
    with torch.no_grad():
        for parameter in engine.model.parameters():
            parameter.fill_(float("nan"))
    engine.weights_changed(1)
    asyncio.run(engine.generate([7, 8, 9, 7, 8], SamplingParams(4, 1.0, seed=1), "a"))
    engine.model.load_state_dict(good)
    engine.weights_changed(2)
    again = asyncio.run(engine.generate([7, 8, 9], SamplingParams(4, 1.0, seed=1), "a"))
    assert (again.ids, again.logprobs) == (first.ids, first.logprobs)


def test_what_was_read_under_old_weights_is_not_gone_on_from(model):
    engine = LocalEngine(copy.deepcopy(model), END, slots=2, context_tokens=64)
    first = asyncio.run(engine.generate([7, 8, 9], SamplingParams(4, 1.0, seed=1), "a"))
    longer = [7, 8, 9, *first.ids, 11]
    with torch.no_grad():
        for parameter in engine.model.parameters():
            parameter.mul_(0.5)
    engine.weights_changed(1)
    second = asyncio.run(engine.generate(longer, SamplingParams(4, 1.0, seed=2), "a"))
    assert second.logprobs == pytest.approx(full_logprobs(engine.model, longer, second, 1.0), abs=1e-4)


def test_an_end_token_with_the_id_zero_ends_a_generation(model):
    engine = LocalEngine(model, 0, slots=2, context_tokens=64)

    async def run() -> list[Generation]:
        params = [SamplingParams(8, 1.0, seed=seed) for seed in range(60)]
        return await asyncio.gather(*(engine.generate([7, 8, 9], p, str(i)) for i, p in enumerate(params)))

    made = asyncio.run(run())
    assert {g.ids.index(0) == len(g.ids) - 1 for g in made if 0 in g.ids} == {True}
    assert all((g.finish_reason == "stop") == (0 in g.ids) for g in made)
