"""Credit: what the estimators are given by a batch of groups."""

from typing import get_args

import pytest

from palestra.pipeline.config import AlgorithmName
from palestra.training import ALGORITHMS, advantage_segments, group_zscore
from palestra.types import Facts, StopReason, Task, Trajectory, TrajectoryGroup, Turn

TASK = Task(id="w/train/1", env="w", split="train", seed=1, prompt="hi", content_hash="start")


def attempt(*turns: tuple[str, float], success: bool | None = True, scored: bool = True) -> Trajectory:
    """Turns as (state after it, reward)."""
    made = tuple(
        Turn(
            "a", "o", Facts(state_hash=state), reward=reward, action_ids=(5, 1), sampled_logprobs=(-0.5, -0.5)
        )
        for state, reward in turns
    )
    total = sum(reward for _, reward in turns) if scored else None
    stop = StopReason.terminated if scored else StopReason.env_error
    return Trajectory("t", TASK, (), made, stop, success, prompt_ids=(2, 3), reward=total)


def group(*attempts: Trajectory) -> TrajectoryGroup:
    return TrajectoryGroup("g", TASK, attempts)


def test_the_configuration_names_every_algorithm_and_no_other():
    assert set(get_args(AlgorithmName)) == set(ALGORITHMS)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_an_unscored_attempt_gets_no_credit_and_no_row(name: str):
    groups = [
        group(attempt(("x", 0.1), ("y", 1.0)), attempt(("x", 0.0), success=False), attempt(scored=False))
    ]
    credited = ALGORITHMS[name].credit(groups)
    assert [None if each is None else len(each) for each in credited[0]] == [2, 1, None]
    rows = advantage_segments(groups, ALGORITHMS[name])
    assert 1 <= len(rows) <= 2
    assert all(any(row.advantages) for row in rows)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_credit_does_not_care_for_what_else_is_in_the_batch_unless_it_says_so(name: str):
    first = group(attempt(("x", 1.0)), attempt(("x", 0.0), success=False))
    second = group(attempt(("x", 0.5)), attempt(("x", 0.4), success=False))
    credit = ALGORITHMS[name].credit
    alone = credit([first]) + credit([second])
    assert (credit([first, second]) == alone) is not name.startswith("reinforce_pp")


def test_grpo_gives_every_turn_of_an_attempt_the_same():
    credited = ALGORITHMS["grpo"].credit([group(attempt(("x", 0.5), ("y", 0.5)), attempt(("x", 0.0)))])
    assert credited == [[[1.0, 1.0], [-1.0]]]


def test_raft_leaves_failures_out_even_where_all_failed():
    failed = group(attempt(("x", 0.2), success=False), attempt(("x", 0.1), success=False))
    assert advantage_segments([failed], ALGORITHMS["raft"]) == []


def test_gigpo_adds_what_a_turn_gained_over_others_from_the_same_state():
    # The second attempt wastes a turn in the first state, so three turns start there.
    one = attempt(("opened", 0.0), ("done", 1.0))
    two = attempt(("start", 0.0), ("opened", 0.0), ("done", 0.2))
    first, second = ALGORITHMS["gigpo"].credit([group(one, two)])[0]
    from_start = group_zscore([0.95, 0.2 * 0.95**2, 0.2 * 0.95])
    from_opened = group_zscore([1.0, 0.2])
    assert first == pytest.approx([1.0 + from_start[0], 1.0 + from_opened[0]])
    assert second == pytest.approx([-1.0 + from_start[1], -1.0 + from_start[2], -1.0 + from_opened[1]])


def test_turn_rloo_discounts_and_compares_turn_by_turn():
    one, two = attempt(("x", 0.0), ("y", 1.0)), attempt(("x", 0.5))
    first, second = ALGORITHMS["turn_rloo"].credit([group(one, two)])[0]
    assert first == pytest.approx([0.99 - 0.5, 1.0 - 0.5])
    assert second == pytest.approx([0.5 - 0.99])


def test_negative_weight_scales_only_what_was_worse():
    rows = advantage_segments([group(attempt(("x", 1.0)), attempt(("x", 0.0)))], ALGORITHMS["grpo"], 0.25)
    assert [row.advantages[-1] for row in rows] == [1.0, -0.25]
