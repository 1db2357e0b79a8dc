"""Credit: what the estimators are given by a batch of groups."""

import pytest

from palestra.errors import ConfigError
from palestra.training import ALGORITHMS, advantage_segments, find_algorithm, group_zscore, summarize_groups
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


GROUP_METHODS = [name for name, algorithm in ALGORITHMS.items() if algorithm.critic is None]


def credit_of(name: str, gamma: float | None = None):
    return ALGORITHMS[name].with_credit(gamma=gamma, gae_lambda=None).make_credit()


def test_a_mistyped_algorithm_is_refused_with_the_nearest_name():
    with pytest.raises(ConfigError, match="Did you mean 'turn_rloo'"):
        find_algorithm("turn-rloo")


def test_a_discount_is_refused_where_it_would_do_nothing():
    with pytest.raises(
        ConfigError, match="those that use it are reinforce, ppo, ppo_token, gigpo, turn_rloo"
    ):
        credit_of("grpo", 0.9)
    two = [group(attempt(("x", 0.0), ("y", 1.0)), attempt(("x", 0.5)))]
    assert credit_of("turn_rloo", 0.5)(two)[0][0] == pytest.approx([0.5 - 0.5, 1.0 - 0.5])


def test_reinforce_compares_discounted_returns_over_the_whole_batch():
    two = [group(attempt(("x", 0.0), ("y", 1.0))), group(attempt(("x", 0.5)))]
    found = credit_of("reinforce", 0.5)(two)
    deviation = (2 * (1 / 6) ** 2 + (1 / 3) ** 2) ** 0.5 / 3**0.5
    assert found[0][0] == pytest.approx([-1 / 6 / deviation, 1 / 3 / deviation])
    assert found[1][0] == pytest.approx([-1 / 6 / deviation])


@pytest.mark.parametrize("name", GROUP_METHODS)
def test_an_unscored_attempt_gets_no_credit_and_no_row(name: str):
    groups = [
        group(attempt(("x", 0.1), ("y", 1.0)), attempt(("x", 0.0), success=False), attempt(scored=False))
    ]
    credited = credit_of(name)(groups)
    assert [None if each is None else len(each) for each in credited[0]] == [2, 1, None]
    rows = advantage_segments(groups, credit_of(name))
    assert 1 <= len(rows) <= 2
    assert all(any(row.advantages) for row in rows)


@pytest.mark.parametrize("name", GROUP_METHODS)
def test_credit_does_not_care_for_what_else_is_in_the_batch_unless_it_says_so(name: str):
    first = group(attempt(("x", 1.0)), attempt(("x", 0.0), success=False))
    second = group(attempt(("x", 0.5)), attempt(("x", 0.4), success=False))
    credit = credit_of(name)
    alone = credit([first]) + credit([second])
    assert (credit([first, second]) == alone) is not name.startswith("reinforce")


def test_grpo_gives_every_turn_of_an_attempt_the_same():
    credited = credit_of("grpo")([group(attempt(("x", 0.5), ("y", 0.5)), attempt(("x", 0.0)))])
    assert credited == [[[1.0, 1.0], [-1.0]]]


def test_raft_leaves_failures_out_even_where_all_failed():
    failed = group(attempt(("x", 0.2), success=False), attempt(("x", 0.1), success=False))
    assert advantage_segments([failed], credit_of("raft")) == []


def test_gigpo_adds_what_a_turn_gained_over_others_from_the_same_state():
    # The second attempt wastes a turn in the first state, so three turns start there.
    one = attempt(("opened", 0.0), ("done", 1.0))
    two = attempt(("start", 0.0), ("opened", 0.0), ("done", 0.2))
    first, second = credit_of("gigpo")([group(one, two)])[0]
    from_start = group_zscore([0.95, 0.2 * 0.95**2, 0.2 * 0.95])
    from_opened = group_zscore([1.0, 0.2])
    assert first == pytest.approx([1.0 + from_start[0], 1.0 + from_opened[0]])
    assert second == pytest.approx([-1.0 + from_start[1], -1.0 + from_start[2], -1.0 + from_opened[1]])


def test_turn_rloo_discounts_and_compares_turn_by_turn():
    one, two = attempt(("x", 0.0), ("y", 1.0)), attempt(("x", 0.5))
    first, second = credit_of("turn_rloo")([group(one, two)])[0]
    assert first == pytest.approx([0.99 - 0.5, 1.0 - 0.5])
    assert second == pytest.approx([0.5 - 0.99])


def test_negative_weight_scales_only_what_was_worse():
    rows = advantage_segments([group(attempt(("x", 1.0)), attempt(("x", 0.0)))], credit_of("grpo"), 0.25)
    assert [row.advantages[-1] for row in rows] == [1.0, -0.25]


def test_a_share_against_the_batch_pulls_a_group_that_fails_alike_down():
    solved = group(attempt(("x", 1.0)), attempt(("x", 0.0), success=False))
    failed = group(attempt(("x", 0.1), success=False), attempt(("x", 0.1), success=False))
    rloo = ALGORITHMS["rloo"].make_credit(0.25)([solved, failed])
    mean = (1.0 + 0.0 + 0.1 + 0.1) / 4
    assert rloo[0][0] == pytest.approx([0.75 * (1.0 - 0.0) + 0.25 * (1.0 - mean)])
    assert rloo[0][1] == pytest.approx([0.75 * (0.0 - 1.0) + 0.25 * (0.0 - mean)])
    assert rloo[1][0] == rloo[1][1] == pytest.approx([0.25 * (0.1 - mean)])
    deviation = (((1 - mean) ** 2 + mean**2 + 2 * (0.1 - mean) ** 2) / 4) ** 0.5
    grpo = ALGORITHMS["grpo"].make_credit(0.5)([solved, failed])
    assert grpo[0][0] == pytest.approx([0.5 * 1.0 + 0.5 * (1.0 - mean) / deviation])
    assert grpo[1][0] == pytest.approx([0.5 * (0.1 - mean) / deviation])


def test_mean_baselines_with_a_share_are_one_baseline_shrunk_toward_the_batch():
    first = group(attempt(("x", 1.0)), attempt(("x", 0.2)), attempt(scored=False))
    second = group(attempt(("x", 0.3)), attempt(("x", 0.9)))
    found = ALGORITHMS["dr_grpo"].make_credit(0.5)([first, second])
    everywhere = (1.0 + 0.2 + 0.3 + 0.9) / 4
    for credited, each in zip(found, (first, second), strict=True):
        rewards = [t.reward for t in each.trajectories if t.reward is not None]
        shrunk = 0.5 * sum(rewards) / len(rewards) + 0.5 * everywhere
        assert [turns[0] for turns in credited if turns] == pytest.approx([r - shrunk for r in rewards])
    assert found[0][2] is None


def test_a_share_is_refused_where_there_is_no_group_to_take_it_from():
    with pytest.raises(ConfigError, match="that use it are grpo, dr_grpo, gspo, cispo, rloo"):
        ALGORITHMS["raft"].make_credit(0.5)


def test_a_missing_reward_is_counted():
    groups = [group(attempt(("x", 1.0)), attempt(scored=False), attempt(("x", 0.0), success=False))]
    assert summarize_groups(groups)["episodes/excluded"] == 1.0
    assert credit_of("grpo")(groups) == [[[1.0], None, [-1.0]]]


def test_gigpo_gives_a_turn_from_a_state_met_once_the_attempt_s_own_advantage():
    # the start is shared by both, "a" and "b" were met once
    one, two = attempt(("a", 0.0), ("y", 1.0)), attempt(("b", 0.0), ("z", 0.0))
    first, second = credit_of("gigpo")([group(one, two)])[0]
    assert (first[1], second[1]) == (1.0, -1.0)
