"""Episodes of a policy that samples tokens: what is recorded is what was sampled and rendered."""

import asyncio

import pytest

from palestra.envs import make_env
from palestra.policy import ContextWindow, Generation, SamplingParams, TokenPolicy
from palestra.policy.chat import RoleTokenTemplate
from palestra.policy.local import LocalEngine
from palestra.policy.nano import new_nano, train_tokenizer
from palestra.rewards import Rubric
from palestra.rollout import EpisodeKey, Limits, run_episode
from palestra.training import Learner, make_segments, state_segments, tokenize_trajectory
from palestra.types import StopReason, Task

TASK = Task(id="w/train/1", env="w", split="train", seed=1, prompt="two")


class Told:
    """A world that replies as it was told and ends, or cuts the episode, with its last reply."""

    milestones: dict = {}  # noqa: RUF012

    def __init__(self, *replies: str, cut: bool = False, system_prompt: str = "one"):
        self.system_prompt, self._replies, self._cut = system_prompt, list(replies), cut

    def reset(self, **_):
        return "two", {}

    def step(self, action: str):
        reply = self._replies.pop(0)
        over = not self._replies
        return reply, 0.0, over and not self._cut, over and self._cut, {}

    def close(self):
        pass


class Saying:
    """An engine that samples the ids it was given, turn by turn."""

    def __init__(self, *actions: tuple[int, ...], reason: str = "stop"):
        self._actions, self._reason = list(actions), reason

    async def generate(self, prompt_ids, params, session) -> Generation:
        ids = tuple(self._actions.pop(0))
        return Generation(ids, (-0.5,) * len(ids), self._reason, 0)

    def release(self, session):
        pass


class LongHeader:
    """A template that opens an action with three tokens; a character is its own id."""

    def __init__(self, end_id: int = 1):
        self.end_id, self.end_ids = end_id, (end_id,)

    def render(self, messages):
        return [*(t for m in messages for t in (900, *self.encode(m.content), self.end_id)), 901, 902, 903]

    def render_reply(self, history, action, reply):
        return [self.end_id, *self.render([reply])]

    def encode(self, text: str):
        return [ord(letter) for letter in text]

    def encode_action(self, history, action):
        return self.encode(action)

    def decode(self, ids):
        return "".join(chr(each) for each in ids if each != self.end_id)


def play(world, template, engine, *, context_tokens: int = 500, max_tokens: int = 8):
    policy = TokenPolicy(
        "p", template, engine, SamplingParams(max_tokens), ContextWindow(context_tokens - max_tokens)
    )
    return asyncio.run(run_episode(world, TASK, policy, Limits(), EpisodeKey("t", 1)))


@pytest.fixture(scope="module")
def template() -> RoleTokenTemplate:
    return RoleTokenTemplate(train_tokenizer(["hello world, one two three"] * 3, 300))


def test_sampled_ids_are_kept_where_their_text_would_be_encoded_otherwise(template):
    sampled = tuple(template.encode(letter)[0] for letter in "hello")
    assert template.encode("hello") != list(sampled)
    action = (*sampled, template.end_id)
    played = play(Told("one", "two"), template, Saying(action, action))
    (row,) = make_segments(played, [1.0, 1.0])
    assert played.turns[0].action == "hello"
    assert [i for i, acted in zip(row.ids, row.action_mask, strict=True) if acted] == [*action, *action]


def test_a_header_of_several_tokens_comes_once_a_turn_and_is_never_trained():
    header = (901, 902, 903)
    template = LongHeader()
    played = play(Told("ab", "c"), template, Saying((100, 1), (101, 1)))
    (row,) = make_segments(played, [1.0, 1.0])
    at = [n for n in range(len(row.ids)) if row.ids[n : n + 3] == header]
    assert len(at) == len(played.turns) == 2
    assert not any(acted for n in at for acted in row.action_mask[n : n + 3])
    assert row.ids == make_segments(tokenize_trajectory(played, template), [1.0, 1.0])[0].ids


def test_the_end_of_an_action_that_was_cut_is_added_and_not_trained(template):
    cut = tuple(template.encode("hello"))
    played = play(Told("one", "two"), template, Saying(cut, cut, reason="length"))
    assert played.turns[0].observation_ids[0] == template.end_id
    (row,) = make_segments(played, [1.0, 1.0])
    assert sum(row.action_mask) == 2 * len(cut)
    end = len(played.prompt_ids) + len(cut)
    assert (row.ids[end], row.action_mask[end], row.sampled_logprobs[end]) == (template.end_id, False, 0.0)


def test_an_end_token_with_the_id_zero_ends_an_action():
    template = LongHeader(end_id=0)
    played = play(Told("ab", "c"), template, Saying((100, 0), (101, 0)))
    assert played.turns[0].observation_ids == (900, 97, 98, 0, 901, 902, 903)
    assert played.turns[0].action == "d"


def test_a_reply_that_fits_exactly_is_kept_and_one_that_does_not_ends_the_episode():
    # prompt 13, action 2, reply 7 and room for an action of 8
    exact = 13 + 2 + 7 + 8

    def at(context_tokens):
        return play(Told("ab", "c"), LongHeader(), Saying((100, 1), (101, 1)), context_tokens=context_tokens)

    assert len(at(exact).prompt_ids) == 13
    fits, cut = at(exact), at(exact - 1)
    assert (len(fits.turns), fits.stop_reason) == (2, StopReason.terminated)
    assert (len(cut.turns), cut.stop_reason) == (1, StopReason.context_full)
    assert cut.turns[0].observation_ids == fits.turns[0].observation_ids


def test_the_last_reply_of_an_episode_that_its_world_cut_is_kept():
    played = play(Told("ab", "c", cut=True), LongHeader(), Saying((100, 1), (101, 1)))
    assert played.stop_reason.is_truncation
    (row,) = state_segments(played, "turn", cut=True)
    assert 99 in row.ids[-6:]  # "c", or the critic values a state before the one the episode was cut in


def test_logprobs_are_taken_with_the_prompt_that_was_sampled_from(template):
    model = new_nano(300, hidden=32, feed_forward=48, heads=2, seed=3)
    learner = Learner(model)
    model.eval()

    def episode(prompt):
        engine = LocalEngine(model, template.end_id, slots=2, context_tokens=500)
        return play(Told("one", "two", system_prompt=prompt), template, engine)

    hinted = episode("one: the answer is three")
    (row,) = make_segments(hinted, [1.0, 1.0])
    assert list(row.ids[: len(hinted.prompt_ids)]) == template.render(hinted.prompt)
    assert "the answer is three" in template.decode(row.ids)
    assert learner.logprobs(model, [row])[0] == pytest.approx(row.sampled_logprobs, abs=1e-4)
    assert tokenize_trajectory(hinted, template).prompt_ids == hinted.prompt_ids


def test_half_a_surrogate_pair_in_a_world_s_text_is_replaced_before_anybody_reads_it():
    played = play(Told("a\ud800b", "c"), LongHeader(), Saying((100, 1), (101, 1)))
    assert played.turns[0].observation == "a\ufffdb"
    assert 0xFFFD in played.turns[0].observation_ids


@pytest.mark.parametrize("mode", ["full", "window", "summary"])
def test_an_episode_whose_prompt_alone_fills_the_context_ends_before_its_first_action(mode, template):
    world, engine = Told("one", "two", system_prompt="hello world " * 40), Saying()
    policy = TokenPolicy("p", template, engine, SamplingParams(8), ContextWindow(60, mode))
    played = asyncio.run(run_episode(world, TASK, policy, Limits(), EpisodeKey("t", 1)))
    assert (played.stop_reason, played.turns) == (StopReason.context_full, ())


def test_an_empty_reply_is_a_turn_like_any_other(template):
    action = (*template.encode("hello"), template.end_id)
    played = Rubric().score(play(Told("", "", cut=True), template, Saying(action, action)))
    assert [turn.observation for turn in played.turns] == ["", ""]
    assert all(turn.observation_ids for turn in played.turns)
    assert played.reward_parts["format"] == 1.0
    (row,) = make_segments(played, [1.0, 1.0])
    assert sum(row.action_mask) == 2 * len(action)


def test_a_flood_of_blanks_is_cut_and_ends_the_episode(template):
    blank = template.encode("\n" * 8)[:1]
    engine = Saying(*[tuple(blank * 100)] * 9, reason="length")
    task = make_env("orders").make_task(1)
    policy = TokenPolicy("p", template, engine, SamplingParams(100), ContextWindow(9_000))
    played = asyncio.run(run_episode(make_env("orders"), task, policy, Limits(), EpisodeKey("t", 1)))
    assert (played.stop_reason, len(played.turns)) == (StopReason.invalid_action, 3)
    assert [turn.facts.error for turn in played.turns] == ["truncated"] * 3
