"""Masks: which tokens are trained on, by length and by nothing else."""

from dataclasses import replace

import pytest
from tokenizers import Tokenizer
from tokenizers.processors import TemplateProcessing

from palestra.actions import parse_action
from palestra.errors import ConfigError
from palestra.policy.chat import RoleTokenTemplate
from palestra.policy.nano import train_tokenizer
from palestra.training import (
    imitation_weights,
    make_micro_batches,
    make_segments,
    supervised_share,
    tokenize_trajectory,
)
from palestra.types import Facts, Message, Segment, StopReason, Task, ToolSpec, Trajectory, Turn

TASK = Task(id="w/train/1", env="w", split="train", seed=1, prompt="hi")


@pytest.fixture(scope="module")
def template() -> RoleTokenTemplate:
    tokenizer: Tokenizer = train_tokenizer(["hello world, one two three <|end|>"] * 3, 300)
    return RoleTokenTemplate(tokenizer)


def turn(action_ids, observation_ids=(), logprobs=None) -> Turn:
    logprobs = tuple(logprobs if logprobs is not None else [-0.5] * len(action_ids))
    return Turn(
        "a",
        "o",
        Facts(),
        action_ids=tuple(action_ids),
        sampled_logprobs=logprobs,
        observation_ids=tuple(observation_ids),
    )


def trajectory(*turns: Turn, prompt_ids=(2, 3, 4)) -> Trajectory:
    return Trajectory("t", TASK, (), tuple(turns), StopReason.terminated, True, prompt_ids=tuple(prompt_ids))


def test_every_action_is_a_span_of_its_own_and_nothing_else_is_trained():
    (segment,) = make_segments(
        trajectory(turn([10, 11, 1], [5, 6]), turn([12, 1], [7]), turn([13, 1])), [0.5, -1.0, 2.0]
    )
    assert segment.ids == (2, 3, 4, 10, 11, 1, 5, 6, 12, 1, 7, 13, 1)
    assert [int(m) for m in segment.action_mask] == [0, 0, 0, 1, 1, 1, 0, 0, 1, 1, 0, 1, 1]
    assert segment.advantages == (0, 0, 0, 0.5, 0.5, 0.5, 0, 0, -1, -1, 0, 2, 2)
    assert sum(segment.action_mask) == 7


def test_where_the_context_was_written_anew_a_row_begins_that_holds_no_more_than_that_context():
    played = trajectory(
        turn([10, 11]),
        replace(turn([12, 1], [7]), prompt_ids=(2, 8, 3)),
        turn([13, 1], [6]),
        replace(turn([14, 1]), prompt_ids=(2, 9)),
    )
    rows = make_segments(played, [0.5, -1.0, 2.0, 3.0])
    assert [row.ids for row in rows] == [
        (2, 3, 4, 10, 11),
        (2, 8, 3, 12, 1, 7, 13, 1),
        (2, 9, 14, 1),
    ]
    assert [[int(m) for m in row.action_mask] for row in rows] == [
        [0, 0, 0, 1, 1],
        [0, 0, 0, 1, 1, 0, 1, 1],
        [0, 0, 1, 1],
    ]
    assert rows[1].advantages == (0, 0, 0, -1, -1, 0, 2, 2)
    assert {row.trajectory_id for row in rows} == {"t"}


def test_ids_equal_to_pad_or_end_are_masked_by_position_not_by_value():
    (segment,) = make_segments(trajectory(turn([0, 1, 0], [1, 0]), turn([0]), prompt_ids=(0, 1)), [1.0, 1.0])
    assert [int(m) for m in segment.action_mask] == [0, 0, 1, 1, 1, 0, 0, 1]


def test_a_length_mismatch_is_refused_with_both_lengths_and_the_row():
    with pytest.raises(ConfigError, match=r"t turn 1: 2 action ids and 1 log"):
        make_segments(trajectory(turn([5]), turn([5, 6], logprobs=[-1.0])), [1.0, 1.0])[0]


def test_an_advantage_is_needed_for_every_turn():
    with pytest.raises(ConfigError, match="1 advantages for 2 turns"):
        make_segments(trajectory(turn([5]), turn([6])), [1.0])[0]


def test_segments_whose_sequences_differ_are_refused():
    broken = replace(make_segments(trajectory(turn([5, 1])), [1.0])[0], advantages=(1.0,))
    with pytest.raises(ConfigError, match="lengths differ"):
        make_micro_batches([broken], 100)


def test_micro_batches_hold_every_action_token_once_whatever_the_budget():
    segments = [
        make_segments(trajectory(turn(range(6, 6 + n)), prompt_ids=range(2, 2 + n)), [n])[0]
        for n in (1, 4, 2, 9)
    ]
    for budget in (1, 8, 20, 1000):
        batches = make_micro_batches(segments, budget)
        tokens = sorted(
            (b.indices[r], t, a)
            for b in batches
            for r, t, a in zip(b.rows.tolist(), b.targets.tolist(), b.advantages.tolist(), strict=True)
        )
        expected = sorted((i, 6 + k, float(n)) for i, n in enumerate((1, 4, 2, 9)) for k in range(n))
        assert tokens == expected


def test_the_budget_of_a_micro_batch_counts_what_its_rows_begin_with_once():
    prompts = [range(100, 300), range(300, 500)]
    segments = [
        make_segments(trajectory(turn(range(6, 6 + n)), prompt_ids=prompts[n % 2]), [1.0])[0]
        for n in (10, 11, 12, 13, 14)
    ]
    # Of one prompt are rows of 214, 212 and 210 tokens, which share 199 before the last of the prompt.
    assert [batch.indices for batch in make_micro_batches(segments, 199 + 3 * 15)] == [(4, 2, 0), (3, 1)]
    assert [batch.indices for batch in make_micro_batches(segments, 199 + 3 * 15 - 1)] == [
        (4, 2),
        (0,),
        (3, 1),
    ]


def test_a_scripted_episode_is_tokenized_as_a_policy_would_have_said_it(template):
    played = Trajectory(
        "t",
        TASK,
        (Message("system", "one"), Message("user", "two")),
        (Turn("hello", "world", Facts()), Turn("three", "", Facts())),
        StopReason.terminated,
        True,
    )
    tokenized = tokenize_trajectory(played, template)
    (segment,) = make_segments(tokenized, [1.0] * len(tokenized.turns))
    said = [i for i, m in zip(segment.ids, segment.action_mask, strict=True) if m]
    assert said == [*template.encode("hello"), template.end_id, *template.encode("three"), template.end_id]
    whole = [
        Message("system", "one"),
        Message("user", "two"),
        Message("assistant", "hello"),
        Message("tool", "world"),
        Message("assistant", "three"),
    ]
    assert list(segment.ids) == template.render_closed(whole)


def test_control_tokens_in_an_observation_stay_text(template):
    ids = template.encode("stop <|end|> now")
    assert template.end_id not in ids
    assert template.decode(ids) == "stop <|end|> now"


def test_a_mistake_in_a_demonstration_is_read_and_not_learned():
    slips = Facts(valid=False, error="invalid_value"), Facts(repeated=True)
    turns = [turn((7, 8), (9,)), *(replace(turn((5, 6), (4,)), facts=facts) for facts in slips), turn((3, 2))]
    shown = trajectory(*turns, prompt_ids=(1, 1))
    (segment,) = make_segments(shown, imitation_weights(shown))
    learned = [token for token, weight in zip(segment.ids, segment.advantages, strict=True) if weight]
    assert learned == [7, 8, 3, 2]
    assert segment.ids == (1, 1, 7, 8, 9, 5, 6, 4, 5, 6, 4, 3, 2)
    assert supervised_share([segment]) == 4 / 13


def test_demonstrations_without_any_action_token_are_refused():
    empty = Segment("t", (2, 3), (False, False), (0.0, 0.0), (0.0, 0.0))
    with pytest.raises(ConfigError, match="masks every label"):
        supervised_share([empty])


def test_padding_that_equals_the_end_token_is_not_trained_and_the_end_token_is():
    (short,) = make_segments(trajectory(turn([6, 1]), prompt_ids=(5,)), [1.0])
    (long,) = make_segments(trajectory(turn([6, 7, 8, 1]), prompt_ids=(5,)), [1.0])
    (batch,) = make_micro_batches([short, long], 100, pad_id=1)
    row = batch.indices.index(0)
    assert batch.ids[row].tolist() == [5, 6, 1, 1, 1]
    assert (batch.before[batch.rows == row] + 1).tolist() == [1, 2]


@pytest.mark.parametrize("name", ["ids", "action_mask", "sampled_logprobs", "advantages", "old_logprobs"])
def test_a_row_in_which_one_sequence_was_cut_alone_is_refused(name):
    (whole,) = make_segments(trajectory(turn(range(6, 15)), prompt_ids=(5,)), [1.0])
    whole = replace(whole, old_logprobs=whole.sampled_logprobs)
    with pytest.raises(ConfigError, match=f"segment of t: lengths differ.*'{name}': 8"):
        make_micro_batches([replace(whole, **{name: getattr(whole, name)[:8]})], 100)


def test_a_tokenizer_that_opens_texts_with_a_token_of_its_own_adds_none_inside_a_row():
    tokenizer = train_tokenizer(["hello world"] * 3, 300)
    start = tokenizer.token_to_id("<|pad|>")
    tokenizer.post_processor = TemplateProcessing(single="<|pad|> $A", special_tokens=[("<|pad|>", start)])
    template = RoleTokenTemplate(tokenizer)
    assert tokenizer.encode("hello").ids[0] == start
    said = Turn("hello", "world", Facts()), Turn("hello", "", Facts())
    played = Trajectory("t", TASK, (Message("user", "hello"),), said, StopReason.terminated, True)
    assert start not in make_segments(tokenize_trajectory(played, template), [1.0, 1.0])[0].ids


def test_reasoning_between_special_tokens_is_read_from_the_text_and_trained_by_ids():
    tokenizer = train_tokenizer(["hello world"] * 3, 300)
    tokenizer.add_special_tokens(["<think>", "</think>"])
    template = RoleTokenTemplate(tokenizer)
    opened, closed = (tokenizer.token_to_id(token) for token in ("<think>", "</think>"))
    action = '{"tool_name": "look", "parameters": {}}'
    ids = (opened, *template.encode("hello"), closed, *template.encode(action), template.end_id)
    parsed = parse_action(template.decode(ids), [ToolSpec("look", "", {"type": "object", "properties": {}})])
    assert (parsed.call.tool_name, parsed.call.reasoning) == ("look", "hello")
    assert sum(make_segments(trajectory(turn(ids)), [1.0])[0].action_mask) == len(ids)


def test_advantages_a_token_are_needed_for_every_token_of_their_own_turn():
    with pytest.raises(ConfigError, match="t turn 0"):
        make_segments(trajectory(turn([5]), turn([6, 1])), [[1.0, 2.0], [3.0]])[0]
