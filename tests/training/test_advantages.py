"""Group advantages against numbers worked by hand."""

import random
import struct

import pytest

from palestra.errors import ConfigError
from palestra.training import group_zscore, has_spread


def float32(value: float) -> float:
    return struct.unpack("f", struct.pack("f", value))[0]


def test_a_success_and_a_failure_get_plus_and_minus_one():
    assert group_zscore([1.0, 0.0]) == [1.0, -1.0]


def test_one_success_in_four_by_hand():
    # mean .25, deviation sqrt(3)/4: (.75, -.25) / .4330127
    assert group_zscore([1.0, 0.0, 0.0, 0.0]) == pytest.approx(
        [1.7320508, -0.5773503, -0.5773503, -0.5773503]
    )


@pytest.mark.parametrize("value", [0.7, 0.1])
def test_seven_equal_float32_rewards_give_exactly_zero(value):
    advantages = group_zscore([float32(value)] * 7)
    assert advantages == [0.0] * 7
    assert not has_spread(advantages)


def test_an_unscored_attempt_is_left_out_of_mean_and_deviation():
    assert group_zscore([1.0, None, 0.0]) == [1.0, None, -1.0]


def test_a_single_scored_attempt_teaches_nothing():
    assert group_zscore([1.0, None]) == [0.0, None]


def test_a_group_of_one_is_refused():
    with pytest.raises(ConfigError, match="group_size"):
        group_zscore([1.0])


def test_advantages_do_not_depend_on_scale_or_shift_and_sum_to_zero():
    rng = random.Random(0)
    for _ in range(50):
        rewards = [rng.uniform(-1, 1) for _ in range(rng.randint(2, 9))]
        moved = [3.0 * reward + 5.0 for reward in rewards]
        assert group_zscore(moved) == pytest.approx(group_zscore(rewards), abs=1e-9)
        assert sum(group_zscore(rewards)) == pytest.approx(0.0, abs=1e-9)


def test_rewards_that_differ_by_the_order_of_additions_are_equal():
    assert group_zscore([1.45] * 7 + [1.4500000000000002]) == [0.0] * 8
