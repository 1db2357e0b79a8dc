"""Which attempts make a pair, where they part, and what of them is learned from."""

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from preference_cases import attempt, group

from palestra.training import (
    first_difference,
    judged_segment,
    pair_batches,
    pair_rows,
    preference_loss,
    preference_pairs,
    preference_pull,
)

LOOK, ASK, STOP = ((10, 11, 1), (8, 9)), ((10, 12, 1), (8, 7)), ((13, 1), (5,))


def names(pairs) -> list[tuple[str, str, int]]:
    return [(pair.chosen.id, pair.rejected.id, pair.turn) for pair in pairs]


def test_a_failure_is_compared_with_the_success_it_stayed_with_longest():
    early = attempt("early", ASK, STOP, success=True, reward=1.4)
    late = attempt("late", LOOK, ASK, STOP, success=True, reward=1.3)
    failed = attempt("failed", LOOK, STOP, reward=0.1)
    assert names(preference_pairs([group(early, late, failed)], 0.5)) == [("late", "failed", 1)]


def test_success_decides_whatever_the_rewards():
    solved = attempt("solved", LOOK, success=True, reward=0.2)
    tidy = attempt("tidy", ASK, reward=0.9)
    assert names(preference_pairs([group(tidy, solved)], 0.1)) == [("solved", "tidy", 0)]


def test_of_equal_outcomes_a_reward_higher_by_the_margin_is_preferred():
    low, high = attempt("low", LOOK, reward=0.3), attempt("high", ASK, reward=0.4)
    assert names(preference_pairs([group(low, high)], 0.1)) == [("high", "low", 0)]
    assert preference_pairs([group(low, high)], 0.11) == []


def test_equal_rewards_make_no_pair_even_without_a_margin():
    assert preference_pairs([group(attempt("a", LOOK), attempt("b", ASK))], 0.0) == []


def test_equal_texts_make_no_pair_and_an_attempt_that_repeats_a_sibling_adds_none():
    solved = attempt("solved", LOOK, success=True, reward=1.0)
    failed, again = attempt("failed", ASK), attempt("again", ASK)
    assert names(preference_pairs([group(solved, failed, again)], 0.1)) == [("solved", "failed", 0)]
    assert preference_pairs([group(solved, attempt("lucky", LOOK))], 0.1) == []


def test_attempts_that_were_answered_differently_first_make_no_pair():
    answered = ((10, 11, 1), (6, 6))
    solved, failed = attempt("a", LOOK, STOP, success=True, reward=1.0), attempt("b", answered, ASK)
    assert first_difference(solved, failed) is None
    assert preference_pairs([group(solved, failed)], 0.1) == []


def test_unscored_attempts_and_attempts_without_ids_make_no_pair():
    solved = attempt("solved", LOOK, success=True, reward=1.0)
    lost = replace(attempt("lost", ASK), reward=None, success=None)
    scripted = attempt("scripted", ((), ()))
    assert preference_pairs([group(solved, lost, scripted)], 0.1) == []


def test_an_attempt_that_another_one_continues_makes_no_pair():
    short = attempt("short", LOOK, reward=0.0)
    assert first_difference(short, attempt("long", LOOK, STOP, reward=1.0)) is None


def test_rows_count_the_actions_from_the_turn_where_they_part_and_nothing_else():
    chosen = attempt("c", LOOK, ASK, STOP, success=True, reward=1.0)
    (pair,) = preference_pairs([group(chosen, attempt("r", LOOK, STOP))], 0.1)
    (one,), (other,) = pair_rows(pair)
    assert one.ids == (2, 3, 4, 10, 11, 1, 8, 9, 10, 12, 1, 8, 7, 13, 1)
    assert [at for at, marked in enumerate(one.action_mask) if marked] == [8, 9, 10, 13, 14]
    assert [at for at, marked in enumerate(other.action_mask) if marked] == [8, 9]
    assert one.sampled_logprobs[:8] == (0.0,) * 8


def test_where_a_context_was_written_anew_every_row_from_the_turn_where_they_part_on_counts():
    shown, later = (2, 9, 4), (2, 7, 7)
    chosen = attempt(
        "c", ((10, 1), ()), (*LOOK, shown), (*ASK, later), STOP, (*STOP, shown), success=True, reward=1.0
    )
    rejected = attempt("r", ((10, 1), ()), (*LOOK, shown), STOP)
    assert first_difference(chosen, rejected) is None, "their contexts differ before they act differently"
    rejected = attempt("r", ((10, 1), ()), (*LOOK, shown), (*STOP, later), ASK)
    (pair,) = preference_pairs([group(chosen, rejected)], 0.1)
    assert pair.turn == 2
    rows, others = pair_rows(pair)
    assert [row.ids for row in rows] == [(*later, 10, 12, 1, 8, 7, 13, 1), (*shown, 13, 1)]
    assert [row.ids for row in others] == [(*later, 13, 1, 5, 10, 12, 1)]
    marked = [[at for at, counts in enumerate(row.action_mask) if counts] for row in (*rows, *others)]
    assert marked == [[3, 4, 5, 8, 9], [3, 4], [3, 4, 6, 7, 8]]
    assert {row.trajectory_id for row in rows} == {"c"}


def test_a_row_holds_turns_before_they_part_unmarked_where_it_goes_on():
    context = (2, 9, 4)
    chosen = attempt("c", ((10, 1), ()), (*LOOK, context), ASK, success=True, reward=1.0)
    (pair,) = preference_pairs([group(chosen, attempt("r", ((10, 1), ()), (*LOOK, context), STOP))], 0.1)
    (row,), _ = pair_rows(pair)
    assert row.ids == (*context, 10, 11, 1, 8, 9, 10, 12, 1)
    assert [at for at, counts in enumerate(row.action_mask) if counts] == [8, 9, 10]


action = st.lists(st.integers(0, 3), min_size=1, max_size=3).map(tuple)
observation = st.lists(st.integers(0, 3), max_size=3).map(tuple)
turns = st.lists(st.tuples(action, observation), min_size=1, max_size=4)
outcome = st.tuples(turns, st.booleans(), st.floats(-1, 2))


@given(turns, st.lists(outcome, min_size=2, max_size=6), st.floats(0, 0.5))
def test_masks_keep_to_actions_contexts_are_equal_and_pairs_are_fewer_than_attempts(
    opening, outcomes, margin
):
    attempts = [
        attempt(str(number), *opening, *own, success=success, reward=reward)
        for number, (own, success, reward) in enumerate(outcomes)
    ]
    pairs = preference_pairs([group(*attempts)], margin)
    assert len(pairs) < len(attempts)
    assert len({pair.rejected.id for pair in pairs}) == len(pairs)
    for pair in pairs:
        assert pair.turn >= len(opening)
        assert pair.chosen.success or not pair.rejected.success
        sides = pair_rows(pair)
        assert [len(side) for side in sides] == [1, 1]
        rows = [side[0] for side in sides]
        starts = [row.action_mask.index(True) for row in rows]
        assert starts[0] == starts[1]
        assert rows[0].ids[: starts[0]] == rows[1].ids[: starts[1]]
        for row, trajectory in zip(rows, (pair.chosen, pair.rejected), strict=True):
            assert row.action_mask == actions_from(trajectory, pair.turn)
            assert all(v == 0.0 for v, m in zip(row.sampled_logprobs, row.action_mask, strict=True) if not m)


def actions_from(trajectory, turn: int) -> tuple[bool, ...]:
    """The mask written out: prompt, then each action and, but for the last, its reply."""
    mask = [False] * len(trajectory.prompt_ids)
    for index, each in enumerate(trajectory.turns):
        mask += [index >= turn] * len(each.action_ids)
        mask += [False] * len(each.observation_ids) * (index + 1 < len(trajectory.turns))
    return tuple(mask)


def test_a_whole_attempt_is_judged_after_its_last_action_token():
    row = judged_segment(attempt("a", LOOK, STOP))
    assert row.ids == (2, 3, 4, 10, 11, 1, 8, 9, 13, 1, 0)
    assert [at for at, marked in enumerate(row.action_mask) if marked] == [10]


def test_the_loss_of_a_margin_and_its_slope_by_hand_and_without_overflow():
    assert preference_loss(0.0) == pytest.approx(math.log(2))
    assert preference_loss(1.5) == pytest.approx(-math.log(1 / (1 + math.exp(-1.5))))
    assert preference_loss(-2000.0) == 2000.0
    for margin in (-30.0, -1.0, 0.0, 0.7, 25.0):
        slope = (preference_loss(margin + 1e-5) - preference_loss(margin - 1e-5)) / 2e-5
        assert -preference_pull(margin) == pytest.approx(slope, abs=1e-9, rel=1e-5)
    assert preference_pull(2000.0) == 0.0


def test_a_pass_goes_over_every_pair_once_in_an_order_of_its_seed():
    batches = list(pair_batches(7, 3, "a"))
    assert [len(batch) for batch in batches] == [3, 3, 1]
    assert sorted(number for batch in batches for number in batch) == list(range(7))
    assert batches == list(pair_batches(7, 3, "a")) != list(pair_batches(7, 3, "b"))
