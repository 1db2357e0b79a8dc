import pytest

from palestra.errors import ConfigError
from palestra.evaluation import (
    bootstrap_interval,
    paired_difference,
    pass_at_k,
    pass_hat_k,
    wilson_interval,
)


@pytest.mark.parametrize(
    ("successes", "n", "low", "high"),
    [
        (81, 263, 0.2553, 0.3662),  # these four: Newcombe 1998, table I, method 3
        (15, 148, 0.0624, 0.1605),
        (0, 20, 0.0, 0.1611),
        (1, 29, 0.0061, 0.1718),
        (20, 20, 0.8389, 1.0),
    ],
)
def test_wilson_gives_the_published_numbers(successes: int, n: int, low: float, high: float) -> None:
    assert wilson_interval(successes, n) == pytest.approx((low, high), abs=5e-5)


def test_wilson_of_no_episodes_is_unknown() -> None:
    assert wilson_interval(0, 0) is None


def test_more_confidence_is_a_wider_interval() -> None:
    narrow, wide = wilson_interval(7, 10, 0.8), wilson_interval(7, 10, 0.99)
    assert narrow
    assert wide
    assert wide[0] < narrow[0] < narrow[1] < wide[1]


def test_impossible_counts_are_refused() -> None:
    with pytest.raises(ConfigError, match="11 successes of 10"):
        wilson_interval(11, 10)
    with pytest.raises(ConfigError, match="k must be at least 1"):
        pass_at_k(5, 2, 0)


def test_pass_at_k_is_unbiased() -> None:
    assert pass_at_k(5, 2, 2) == pytest.approx(0.7)
    assert pass_at_k(5, 2, 5) == 1
    assert pass_at_k(5, 0, 5) == 0
    assert pass_at_k(5, 4, 2) == 1


def test_pass_at_k_with_too_few_attempts_is_unknown() -> None:
    assert pass_at_k(3, 0, 8) is None
    assert pass_at_k(3, 3, 8) is None
    assert pass_hat_k(3, 3, 8) is None


def test_pass_hat_k_asks_that_all_attempts_succeed() -> None:
    assert pass_hat_k(5, 4, 2) == pytest.approx(0.6)
    assert pass_hat_k(5, 1, 2) == 0
    assert pass_hat_k(5, 5, 5) == 1


def test_bootstrap_is_the_same_for_one_seed_and_holds_the_mean() -> None:
    values = [0.0, 1.0, 1.0, 0.0, 1.0] * 8
    first = bootstrap_interval(values, seed=3)
    assert first == bootstrap_interval(values, seed=3)
    assert first is not None
    assert first[0] < 0.6 < first[1]
    assert first == pytest.approx((0.45, 0.75), abs=0.03)  # 0.6 ± 1.96 · sqrt(0.24 / 40)


def test_bootstrap_of_less_than_two_values_is_unknown() -> None:
    assert bootstrap_interval([], seed=0) is None
    assert bootstrap_interval([1.0], seed=0) is None


def test_five_tasks_that_all_got_better_have_p_one_in_sixteen() -> None:
    result = paired_difference(dict.fromkeys("abcde", 0.0), dict.fromkeys("abcde", 1.0), seed=0)
    assert result.difference == 1
    assert result.p == 2 / 2**5
    assert result.interval == (1, 1)


def test_equal_runs_have_no_difference_and_p_one() -> None:
    run = {"a": 1.0, "b": 0.0}
    result = paired_difference(run, run, seed=0)
    assert (result.difference, result.p) == (0, 1)


def test_many_tasks_are_tested_by_sampled_flips() -> None:
    before = {f"t{i}": 0.0 for i in range(60)}
    after = {f"t{i}": float(i < 40) - float(i >= 50) for i in range(60)}
    result = paired_difference(before, after, seed=1)
    assert result.difference == pytest.approx(0.5)
    assert result.p is not None
    assert 0 < result.p < 0.001


def test_tasks_that_were_not_scored_are_left_out_and_counted() -> None:
    result = paired_difference({"a": 1.0, "b": None, "c": 0.0}, {"a": 1.0, "b": 1.0, "c": 1.0}, seed=0)
    assert (result.tasks, result.unscored, result.difference) == (2, 1, 0.5)
    nothing = paired_difference({"a": None}, {"a": 1.0}, seed=0)
    assert (nothing.difference, nothing.interval, nothing.p) == (None, None, None)


def test_runs_on_different_tasks_are_refused() -> None:
    with pytest.raises(ConfigError, match="such as \\['b', 'c'\\]"):
        paired_difference({"a": 1.0, "b": 1.0}, {"a": 1.0, "c": 1.0}, seed=0)
