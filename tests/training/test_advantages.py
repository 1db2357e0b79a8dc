"""Advantages against numbers worked by hand and against brute force."""

import itertools
import math
import random
import statistics
import struct

import pytest

from palestra.errors import ConfigError
from palestra.training import (
    anchored_zscore,
    batch_zscore,
    best_success,
    discounted_returns,
    group_mean,
    group_mean_batch_scale,
    group_zscore,
    leave_one_out,
    turn_leave_one_out,
)

WITHIN_A_GROUP = (group_zscore, group_mean, leave_one_out)


def float32(value: float) -> float:
    return struct.unpack("f", struct.pack("f", value))[0]


@pytest.mark.parametrize("estimate", WITHIN_A_GROUP)
@pytest.mark.parametrize("place", [0, 1])
def test_a_reward_that_is_no_number_is_not_taken_for_calm(estimate, place: int):
    rewards = [1.0, 1.0, 1.0]
    rewards[place] = math.nan
    assert any(math.isnan(advantage) for advantage in estimate(rewards))


def test_a_success_and_a_failure_get_plus_and_minus_one():
    assert group_zscore([1.0, 0.0]) == [1.0, -1.0]


def test_one_success_in_four_by_hand():
    # mean .25, deviation sqrt(3)/4: (.75, -.25) / .4330127
    assert group_zscore([1.0, 0.0, 0.0, 0.0]) == pytest.approx(
        [1.7320508, -0.5773503, -0.5773503, -0.5773503]
    )


@pytest.mark.parametrize("value", [0.7, 0.1])
def test_seven_equal_float32_rewards_give_exactly_zero(value):
    rewards = [float32(value)] * 7
    for estimate in WITHIN_A_GROUP:
        assert estimate(rewards) == [0.0] * 7
    assert batch_zscore([rewards] * 3) == group_mean_batch_scale([rewards] * 3) == [[0.0] * 7] * 3
    assert turn_leave_one_out([[reward, reward] for reward in rewards]) == [[0.0, 0.0]] * 7


def test_an_unscored_attempt_is_left_out_of_mean_and_deviation():
    assert group_zscore([1.0, None, 0.0]) == [1.0, None, -1.0]


@pytest.mark.parametrize("estimate", WITHIN_A_GROUP)
def test_a_single_scored_attempt_teaches_nothing(estimate):
    assert estimate([1.0, None]) == [0.0, None]
    assert estimate([None, None]) == [None, None]


@pytest.mark.parametrize("estimate", WITHIN_A_GROUP)
def test_a_group_of_one_is_refused(estimate):
    with pytest.raises(ConfigError, match="group_size"):
        estimate([1.0])


def test_advantages_do_not_depend_on_scale_or_shift_and_sum_to_zero():
    rng = random.Random(0)
    for _ in range(50):
        rewards = [rng.uniform(-1, 1) for _ in range(rng.randint(2, 9))]
        moved = [3.0 * reward + 5.0 for reward in rewards]
        assert group_zscore(moved) == pytest.approx(group_zscore(rewards), abs=1e-9)
        assert sum(group_zscore(rewards)) == pytest.approx(0.0, abs=1e-9)


def test_rewards_that_differ_by_the_order_of_additions_are_equal():
    assert group_zscore([1.45] * 7 + [1.4500000000000002]) == [0.0] * 8


def random_rewards(rng: random.Random, n: int) -> list[float | None]:
    return [None if rng.random() < 0.15 else rng.uniform(-1, 1) for _ in range(n)]


def test_dr_grpo_is_the_distance_from_the_mean():
    assert group_mean([1.0, 0.0, 0.0, None]) == pytest.approx([2 / 3, -1 / 3, -1 / 3, None])


def test_rloo_is_the_distance_from_the_mean_of_the_others():
    rng = random.Random(1)
    for _ in range(50):
        rewards = random_rewards(rng, rng.randint(3, 9))
        scored = [reward for reward in rewards if reward is not None]
        if len(scored) < 2:
            continue
        for index, advantage in enumerate(leave_one_out(rewards)):
            if advantage is None:
                assert rewards[index] is None
                continue
            others = [r for place, r in enumerate(rewards) if place != index and r is not None]
            assert advantage == pytest.approx(rewards[index] - statistics.fmean(others), abs=1e-12)


def test_raft_keeps_the_best_success_and_no_failure():
    assert best_success([1.4, 1.45, 0.3, None], [True, True, False, None]) == [0.0, 1.0, 0.0, None]
    assert best_success([0.3, 0.35], [False, False]) == [0.0, 0.0]
    assert best_success([1.45, 1.45 + 1e-12, 2.0], [True, True, False]) == [1.0, 1.0, 0.0]
    with pytest.raises(ConfigError, match="group_size"):
        best_success([1.0], [True])


def test_reinforce_pp_normalises_over_the_whole_batch():
    rng = random.Random(2)
    groups = [random_rewards(rng, 4) for _ in range(5)]
    scored = [reward for rewards in groups for reward in rewards if reward is not None]
    mean, deviation = statistics.fmean(scored), statistics.pstdev(scored)
    for rewards, advantages in zip(groups, batch_zscore(groups), strict=True):
        expected = [None if reward is None else (reward - mean) / deviation for reward in rewards]
        assert advantages == pytest.approx(expected, abs=1e-12)


def test_reinforce_pp_baseline_takes_the_mean_from_the_group_and_the_scale_from_the_batch():
    advantages = group_mean_batch_scale([[1.0, 0.0], [0.6, 0.4]])
    deviation = math.sqrt((0.25 + 0.25 + 0.01 + 0.01) / 4)
    assert advantages[0] == pytest.approx([0.5 / deviation, -0.5 / deviation])
    assert advantages[1] == pytest.approx([0.1 / deviation, -0.1 / deviation])


def test_returns_are_discounted_a_turn_at_a_time():
    assert discounted_returns([1.0, 0.0, 2.0], 0.5) == [1.5, 1.0, 2.0]
    assert discounted_returns([], 0.9) == []
    rng = random.Random(3)
    rewards = [rng.uniform(-1, 1) for _ in range(9)]
    brute = [sum(0.9**k * r for k, r in enumerate(rewards[turn:])) for turn in range(9)]
    assert discounted_returns(rewards, 0.9) == pytest.approx(brute, abs=1e-12)


def test_gigpo_compares_returns_from_equal_states_across_attempts_and_turns():
    # State a: returns 1, 0 and, met again in the second attempt, .5; state b once; state c twice, equal.
    states = [["a", "b", "c"], ["a", "a", "c"]]
    returns = [[1.0, 3.0, 2.0], [0.0, 0.5, 2.0]]
    deviation = statistics.pstdev([1.0, 0.0, 0.5])
    first, second = anchored_zscore(states, returns)
    assert first == pytest.approx([0.5 / deviation, 0.0, 0.0])
    assert second == pytest.approx([-0.5 / deviation, 0.0, 0.0])


def test_a_turn_is_compared_with_the_others_that_reached_it():
    returns = [[1.0, 1.0, 0.8], [0.2], [0.6, 0.4]]
    first, second, third = turn_leave_one_out(returns)
    assert first == pytest.approx([1.0 - 0.4, 1.0 - 0.4, 0.8 - 0.4])  # nobody else at turn 3: whole returns
    assert second == pytest.approx([0.2 - 0.8])
    assert third == pytest.approx([0.6 - 0.6, 0.4 - 1.0])


# A world in which the policy decides when to stop: at turns 0 and 1 it stops with a reward or goes on, at
# turn 2 it picks one of two endings. GO holds the probability of the second choice at each turn.
GO = (0.6, 0.3, 0.5)
STOP_REWARD = (0.3, 1.0)
END_REWARD = (0.0, 0.7)

Episode = tuple[float, tuple[int, ...], float]
"""Probability, choice at each turn, reward at the end."""


def episodes() -> list[Episode]:
    return [
        (1 - GO[0], (0,), STOP_REWARD[0]),
        (GO[0] * (1 - GO[1]), (1, 0), STOP_REWARD[1]),
        (GO[0] * GO[1] * (1 - GO[2]), (1, 1, 0), END_REWARD[0]),
        (GO[0] * GO[1] * GO[2], (1, 1, 1), END_REWARD[1]),
    ]


def score(choices: tuple[int, ...], turn: int) -> float:
    """Derivative of the log-probability of the choice with respect to that turn's logit."""
    return choices[turn] - GO[turn]


def true_gradient() -> list[float]:
    return [
        sum(p * reward * score(choices, turn) for p, choices, reward in episodes() if turn < len(choices))
        for turn in range(3)
    ]


def expected_gradient(estimate, attempts: int) -> list[float]:
    """Of the estimator, exactly: the mean over every possible group, weighted by its probability."""
    total = [0.0, 0.0, 0.0]
    for group in itertools.product(episodes(), repeat=attempts):
        probability = math.prod(p for p, _, _ in group)
        advantages = estimate([[reward] * len(choices) for _, choices, reward in group])
        for (_, choices, _), credited in zip(group, advantages, strict=True):
            for turn, advantage in enumerate(credited):
                total[turn] += probability * advantage * score(choices, turn) / attempts
    return total


def zscore_at_each_turn(returns: list[list[float]]) -> list[list[float]]:
    """What is often done: compare the attempts that are still running at a turn, themselves included."""
    advantages = [[0.0] * len(each) for each in returns]
    for turn in range(max(map(len, returns))):
        running = [index for index, each in enumerate(returns) if len(each) > turn]
        if len(running) > 1:
            compared = group_zscore([returns[index][turn] for index in running])
            for index, value in zip(running, compared, strict=True):
                advantages[index][turn] = value
    return advantages


def mean_at_each_turn(returns: list[list[float]]) -> list[list[float]]:
    advantages = [[0.0] * len(each) for each in returns]
    for turn in range(max(map(len, returns))):
        running = [index for index, each in enumerate(returns) if len(each) > turn]
        mean = statistics.fmean(returns[index][turn] for index in running)
        for index in running:
            advantages[index][turn] = returns[index][turn] - mean
    return advantages


@pytest.mark.parametrize("attempts", [2, 3, 4])
def test_turn_rloo_is_unbiased_when_the_policy_controls_termination(attempts):
    assert expected_gradient(turn_leave_one_out, attempts) == pytest.approx(true_gradient(), abs=1e-12)


@pytest.mark.parametrize("attempts", [2, 3, 4])
@pytest.mark.parametrize("naive", [zscore_at_each_turn, mean_at_each_turn])
def test_normalising_each_turn_among_those_that_reached_it_is_biased(naive, attempts):
    # Not only in length: late turns, which few attempts reach, are shrunk more than early ones.
    true, biased = true_gradient(), expected_gradient(naive, attempts)
    shrunk = [estimated / right for estimated, right in zip(biased, true, strict=True)]
    assert shrunk[2] < 0.8 * shrunk[0]
