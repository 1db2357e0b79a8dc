"""The engine behind a server: as good as the one in this process, and what a bad server does to a run."""

import asyncio
import time
from pathlib import Path

import pytest

from model_servers import completion, scripted, served
from palestra.envs import IsolatedWorlds, make_env
from palestra.errors import ConfigError, ContextFull, EngineError, TooManyFailures
from palestra.policy import SamplingParams, TokenPolicy
from palestra.policy.engine_checks import check_engine
from palestra.policy.hosted import HostedPolicy
from palestra.policy.http import HttpEngine
from palestra.policy.local import LocalEngine
from palestra.policy.model_server import ModelServer, ServerSettings
from palestra.policy.models import load_policy
from palestra.policy.weight_sync import SyncedEngine
from palestra.rewards import Rubric
from palestra.rollout import EpisodeKey, Limits, Rollout, collect_groups, run_episode
from palestra.training import Learner, imitation_loss
from palestra.types import Facts, Message, Segment, StopReason
from small_models import write_nano

PROMPT_IDS = [2, 30, 31, 1, 4]
PARAMS = SamplingParams(max_tokens=8, temperature=1.0, seed=5)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return write_nano(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def address(folder, tmp_path_factory):
    with served(folder, folder=tmp_path_factory.mktemp("server")) as (url, _):
        yield url


def ask(engine, prompt=PROMPT_IDS, params=PARAMS, session="one"):
    return asyncio.run(engine.generate(prompt, params, session))


def quick(url: str, **settings) -> HttpEngine:
    settings = {"retries": 0, "timeout_seconds": 5.0, **settings}
    return HttpEngine(ModelServer(ServerSettings(url, **settings)), end_ids=1)


def test_both_engines_keep_the_contract_and_give_the_same_samples(folder, address):
    model, template = load_policy(folder)
    local = LocalEngine(model, template.end_id)
    remote = HttpEngine(ModelServer(ServerSettings(address)), template.end_id)
    for engine in (local, remote):
        check_engine(engine, PROMPT_IDS, template.end_id)
    for seed in range(6):
        params = SamplingParams(8, 1.5, seed)
        one, other = ask(local, params=params), ask(remote, params=params)
        assert one.ids == other.ids
        assert one.logprobs == pytest.approx(other.logprobs, abs=1e-5)


def test_the_checker_finds_an_engine_that_lies(folder):
    model, template = load_policy(folder)

    class Lying(LocalEngine):
        async def generate(self, prompt_ids, params, session):
            made = await super().generate(prompt_ids, params, session)
            return type(made)(made.ids, made.logprobs[:-1], made.finish_reason, made.policy_version)

    class Unseeded(LocalEngine):
        async def generate(self, prompt_ids, params, session):
            other = SamplingParams(params.max_tokens, params.temperature, time.monotonic_ns())
            return await super().generate(prompt_ids, other, session)

    with pytest.raises(ConfigError, match="as many finite log-probabilities"):
        check_engine(Lying(model, template.end_id), PROMPT_IDS, template.end_id)
    with pytest.raises(ConfigError, match="a seed settles"):
        check_engine(Unseeded(model, template.end_id), PROMPT_IDS, template.end_id)


def test_a_seed_goes_to_palestra_alone_and_the_distribution_is_left_plain():
    seen = []

    def reply(number, body):
        seen.append(body)
        return 200, completion([7, 1])

    for owner in ("vllm", "palestra"):
        with scripted(reply, owner) as url:
            made = ask(quick(url))
            assert made.ids == (7, 1)
    assert "seed" not in seen[0]
    assert seen[1]["seed"] == 5
    assert (seen[0]["top_p"], seen[0]["top_k"], seen[0]["repetition_penalty"]) == (1.0, -1, 1.0)
    assert (seen[0]["prompt"], seen[0]["stop_token_ids"]) == (PROMPT_IDS, [1])


def test_a_server_is_told_every_id_that_ends_an_action():
    seen = []

    def reply(number, body):
        seen.append(body["stop_token_ids"])
        return 200, completion([7, 9] if number == 0 else [9, 7])

    with scripted(reply) as url:
        engine = HttpEngine(ModelServer(ServerSettings(url, retries=0)), end_ids=(1, 9))
        assert ask(engine).ids == (7, 9)
        with pytest.raises(EngineError, match="went on behind"):
            ask(engine)
    assert seen == [[1, 9], [1, 9]]


def test_ids_are_read_from_their_names_where_a_server_gives_no_others():
    said = {"tokens": ["token_id:7", "token_id:1"], "token_logprobs": [-0.1, -0.2]}
    answer = completion([7, 1])
    answer["choices"][0].update(token_ids=None, logprobs=said)
    with scripted(lambda n, b: (200, answer)) as url:
        assert ask(quick(url)).ids == (7, 1)


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ({"choices": [{"text": "hello", "logprobs": None}]}, "text without token ids"),
        (completion([7, 8], [-0.1]), "2 token ids with 1 log-probabilities"),
        (completion([7, 8], [-0.1, float("nan")]), "a log-probability that is none"),
        (completion([7, 8], [-0.1, 0.5]), "a log-probability that is none"),
        (completion([7, 8], [-0.1, None]), "no completion"),
        (completion([]), "gave 0 tokens"),
        (completion([7] * 9), "gave 9 tokens where 1 to 8"),
        (completion([7, 1], prompt_token_ids=[0, *PROMPT_IDS]), "token of its own in front"),
        ({"choices": []}, "no completion"),
        (completion([7.9, 1]), "no whole number"),
        (completion([True, 1]), "no whole number"),
        (completion([7, 1], finish_reason="abort"), "ended an answer with 'abort'"),
        (completion([1, 7]), "went on behind the token that ends"),
        (completion([-7, 1]), "token id -7"),
        (completion([2**31, 1]), "another model"),
        ("[" * 100_000, "no JSON"),
        ("<html>busy</html>", "no JSON"),
        ("[1]", "no object"),
    ],
)
def test_an_answer_that_is_no_sample_is_an_error_that_says_what_is_wrong(answer, message):
    with scripted(lambda n, b: (200, answer)) as url, pytest.raises(EngineError, match=message):
        ask(quick(url))


@pytest.mark.parametrize("status", [429, 500, 503])
def test_what_may_pass_is_asked_again(status):
    def reply(number, body):
        return (status, "busy", {"retry-after": "0"}) if number < 2 else (200, completion([7, 1]))

    with scripted(reply) as url:
        engine = quick(url, retries=2)
        assert ask(engine).ids == (7, 1)
        assert (engine.server.meter.retries, engine.server.meter.requests) == (2, 1)


def test_waits_grow_where_the_server_does_not_say_how_long():
    started = time.monotonic()
    with (
        scripted(lambda n, b: (500, "no")) as url,
        pytest.raises(EngineError, match=r"failed 3 times.*: 500 no"),
    ):
        ask(quick(url, retries=2))
    assert 0.7 < time.monotonic() - started < 8


def test_a_server_that_hangs_is_given_up():
    def reply(number, body):
        time.sleep(3)
        return 200, completion([7, 1])

    with scripted(reply) as url, pytest.raises(EngineError, match="Timeout"):
        ask(quick(url, timeout_seconds=0.3))


def test_a_body_that_drips_is_given_up_in_time():
    def drip(number, body):
        return 200, "{" + " " * 40 + "}", {"x-drip": "0.2"}

    started = time.monotonic()
    with scripted(drip) as url, pytest.raises(EngineError, match="TimeoutError"):
        ask(quick(url, timeout_seconds=1.0))
    assert time.monotonic() - started < 4


@pytest.mark.parametrize("header", ["nan", "-5", "Wed, 21 Oct 2026 07:28:00 GMT"])
def test_a_wait_that_is_none_is_not_waited_for(header):
    def reply(number, body):
        return (529, "busy", {"retry-after": header}) if not number else (200, completion([7, 1]))

    started = time.monotonic()
    with scripted(reply) as url:
        assert ask(quick(url, retries=1)).ids == (7, 1)
    assert time.monotonic() - started < 5


def test_a_count_that_is_none_costs_nothing():
    answer = {**completion([7, 1]), "usage": {"prompt_tokens": "n/a", "completion_tokens": [1]}}
    with scripted(lambda n, b: (200, answer)) as url:
        engine = quick(url)
        ask(engine)
    assert (engine.server.meter.input_tokens, engine.server.meter.output_tokens) == (0, 0)


@pytest.mark.parametrize("key", ["ab\ncd", "schl\u00fcssel", "  "])
def test_a_key_that_cannot_be_sent_is_refused_and_never_shown(address, monkeypatch, key):
    monkeypatch.setenv("A_KEY", key)
    with pytest.raises(ConfigError, match="A_KEY") as refused:
        ModelServer(ServerSettings(address, key_variable="A_KEY"))
    assert not key.strip() or key not in str(refused.value)


def test_a_message_that_is_no_text_is_an_error(folder):
    answer = {"choices": [{"message": {"content": [{"type": "text"}]}, "finish_reason": "stop"}]}
    with scripted(lambda n, b: (200, answer)) as url, pytest.raises(TooManyFailures, match="no message"):
        play(HostedPolicy("hosted", quick(url).server, SamplingParams(8)), 2)


def test_what_the_caller_did_wrong_is_not_asked_again():
    count = []

    def reply(number, body):
        count.append(1)
        return 404, "no such model"

    with scripted(reply) as url, pytest.raises(ConfigError, match="refused completions: 404 no such model"):
        ask(quick(url, retries=3))
    assert len(count) == 1


def test_requests_keep_to_the_rate_and_the_cost_is_counted():
    with scripted(lambda n, b: (200, completion([7, 1]))) as url:
        settings = {"requests_per_minute": 600, "input_price": 2.0, "output_price": 10.0}
        engine = quick(url, **settings)

        async def several():
            await asyncio.gather(*(engine.generate(PROMPT_IDS, PARAMS, str(n)) for n in range(6)))

        started = time.monotonic()
        asyncio.run(several())
        assert time.monotonic() - started > 0.45
    meter = engine.server.meter
    assert (meter.input_tokens, meter.output_tokens) == (18, 12)
    assert meter.cost(engine.server.settings) == pytest.approx((18 * 2 + 12 * 10) / 1e6)


def test_a_server_that_is_not_there_or_has_another_model_is_refused_at_once(address):
    for settings, message in (
        (ServerSettings("http://127.0.0.1:9/v1"), "No model server answers"),
        (ServerSettings(address.removesuffix("/v1")), "no OpenAI-compatible server"),
        (ServerSettings(address, model="large"), "has no model 'large'; it has"),
        (ServerSettings(address, key_variable="NO_SUCH_KEY"), "NO_SUCH_KEY, for .* is not set"),
    ):
        with pytest.raises(ConfigError, match=message):
            ModelServer(settings)


class Counting:
    """A world that wants three actions."""

    system_prompt, milestones = "Count.", {}

    def reset(self, *, seed=None, options=None):
        self.left = 3
        return "begin", {}

    def step(self, action):
        self.left -= 1
        return "go on", 0.0, self.left == 0, False, {"success": self.left == 0}

    def close(self):
        pass


def play(policy, count: int = 10):
    from palestra.types import Task

    tasks = [Task(f"w/train/{n}", "w", "train", n, "begin") for n in range(count)]
    rollout = Rollout(Counting, policy, Rubric({"outcome": 1.0}), Limits(5, 500, 5, 5, 60.0))
    groups = collect_groups(rollout, tasks, 1, stage="s", seed=0)
    return [trajectory for group in groups for trajectory in group.trajectories]


def token_policy(folder: Path, url: str) -> TokenPolicy:
    return TokenPolicy("rl", load_policy(folder)[1], quick(url), SamplingParams(8))


def test_an_episode_whose_server_fails_is_excluded_and_the_others_go_on(folder):
    """The third request fails, and so does the one that its episode is tried again with."""

    def reply(number, body):
        long = len(body["prompt"]) > 25
        return (500, "broken") if long and number in (12, 30) else (200, completion([7, 1]))

    with scripted(reply) as url:
        played = play(token_policy(folder, url))
    failed = [each for each in played if each.stop_reason is StopReason.env_error]
    assert len(failed) <= 1
    assert all(t.success and t.reward == 1.0 for t in played if t not in failed)
    assert all(t.reward is None and "broken" in t.error for t in failed)


def test_a_server_that_is_gone_stops_the_run_with_the_reason(folder):
    def reply(number, body):
        return (200, completion([7, 1])) if number < 15 else (503, "shutting down")

    with scripted(reply) as url, pytest.raises(TooManyFailures, match="503 shutting down"):
        play(token_policy(folder, url))


def test_a_prompt_too_long_for_the_server_ends_the_episode(folder, address):
    said = {"error": {"message": "too long", "code": "context_length_exceeded"}}

    def reply(number, body):
        if len(body["messages"]) > 3:
            return 400, said
        return 200, {"choices": [{"message": {"content": "one"}, "finish_reason": "stop"}]}

    with scripted(reply) as url:
        hosted = HostedPolicy("hosted", ModelServer(ServerSettings(url)), SamplingParams(8))
        (played,) = play(hosted, 1)
    assert played.stop_reason is StopReason.context_full
    assert len(played.turns) == 1
    engine = HttpEngine(ModelServer(ServerSettings(address)), 1)
    with pytest.raises(ContextFull, match="1600 tokens"):
        ask(engine, prompt=[30] * 1600)


@pytest.mark.parametrize("isolated", [False, True])
def test_a_hosted_model_is_told_of_tools_as_text_where_a_chat_template_would_declare_them(isolated):
    options = {"tool_schemas": True, "action_format": "qwen"}
    world = make_env("orders", **options)
    task, said = world.make_task(1), []
    played_in = IsolatedWorlds("orders", options)() if isolated else world

    def reply(number, body):
        said.append(body)
        return 200, {"choices": [{"message": {"content": "hm"}, "finish_reason": "stop"}]}

    with scripted(reply) as url:
        hosted = HostedPolicy("hosted", ModelServer(ServerSettings(url)), SamplingParams(8))
        played = asyncio.run(run_episode(played_in, task, hosted, Limits(max_turns=1), EpisodeKey("e", 1)))
    plain = make_env("orders", action_format="qwen")
    plain.reset(options={"task": task})
    assert said[0]["messages"] == [
        {"role": "system", "content": plain.system_prompt},
        {"role": "user", "content": task.prompt},
    ]
    assert "tools" not in said[0]
    assert played.prompt[0].content == world.instructions
    world.reset(options={"task": task})
    assert played.prompt[0].tools == world.tool_specs


def test_a_hosted_model_that_would_not_hear_of_the_tools_is_refused(address):
    hosted = HostedPolicy("hosted", ModelServer(ServerSettings(address)), SamplingParams(6))
    world = make_env("orders", tool_schemas=True)
    world.reset(seed=1)
    with pytest.raises(ConfigError, match="object has schema_tools and no text_prompt"):
        hosted.open([Message("system", "Sort.", world.schema_tools)], object(), 1, "s")


def test_a_hosted_model_plays_with_messages_and_is_read_as_text(address):
    hosted = HostedPolicy("hosted", ModelServer(ServerSettings(address)), SamplingParams(6, 1.0))
    played = play(hosted, 4)
    assert [len(t.turns) for t in played] == [3] * 4
    assert all(t.success and not t.prompt_ids and not t.turns[0].action_ids for t in played)
    assert hosted.server.meter.requests == 12


def test_a_huge_reply_is_sent_to_a_hosted_model_with_its_middle_left_out():
    asked = []

    def reply(number, body):
        asked.append(body["messages"][-1]["content"])
        return 200, {"choices": [{"message": {"content": "look"}, "finish_reason": "stop"}]}

    async def go(url):
        hosted = HostedPolicy("hosted", ModelServer(ServerSettings(url)), SamplingParams(6))
        conversation = hosted.open((Message("user", "hi"),), None, 0, "a")
        conversation.observe("begin" + "x" * 5_000_000 + "end", Facts())
        await conversation.act()

    with scripted(reply) as url:
        asyncio.run(go(url))
    (shown,) = asked
    assert len(shown) < 101_000
    assert shown.startswith("begin")
    assert shown.endswith("end")
    assert "of 5,000,008 characters left out]" in shown


def test_a_server_follows_the_weights_that_are_learned(folder, tmp_path):
    model, template = load_policy(folder)
    with served(folder, folder=tmp_path) as (url, _):
        server = ModelServer(ServerSettings(url))
        engine = SyncedEngine(server, model, template, temperature=1.0, version=0)
        row = Segment("t", (7, 8, 9, 1), (False, True, True, True), (0.0,) * 4, (0.0, 1.0, 1.0, 1.0))
        before = ask(engine)
        Learner(model).update([row], imitation_loss, 0.05)
        assert ask(engine).logprobs == before.logprobs
        engine.weights_changed(1)
        after = ask(engine)
    local = LocalEngine(model, template.end_id)
    expected = ask(local)
    assert after.ids == expected.ids
    assert after.logprobs == pytest.approx(expected.logprobs, abs=1e-5)
    assert after.logprobs != before.logprobs
    assert after.policy_version == 1


def test_a_server_that_says_yes_and_keeps_its_weights_is_found_out(folder):
    """It answers success to everything, and samples from what it had."""
    model, template = load_policy(folder)
    old = LocalEngine(load_policy(folder)[0], template.end_id)

    def reply(number, body):
        if "prompt" not in body:
            return 200, {}
        params = SamplingParams(body["max_tokens"], body["temperature"], number)
        made = asyncio.run(old.generate(body["prompt"], params, str(number)))
        return 200, completion(list(made.ids), list(made.logprobs))

    row = Segment("t", (7, 8, 9, 1), (False, True, True, True), (0.0,) * 4, (0.0, 1.0, 1.0, 1.0))
    with scripted(reply) as url:
        server = ModelServer(ServerSettings(url, requests_at_once=1))
        engine = SyncedEngine(server, model, template, temperature=1.0, version=0)
        for _ in range(3):
            Learner(model).update([row], imitation_loss, 0.1)
        with pytest.raises(ConfigError, match="samples from another distribution"):
            engine.weights_changed(1)


def test_weights_are_not_sent_to_who_cannot_take_them(folder):
    model, template = load_policy(folder)
    for owner, kind, message in (
        ("somebody", ConfigError, "weights can be given to vLLM and to"),
        ("vllm", EngineError, "VLLM_SERVER_DEV_MODE=1"),
    ):
        with scripted(lambda n, b: (404, "no"), owner) as url, pytest.raises(kind, match=message):
            SyncedEngine(ModelServer(ServerSettings(url)), model, template, temperature=1.0, version=0)
