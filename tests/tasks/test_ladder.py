"""Numbers that grow as training goes on."""

import pytest

from palestra.errors import ConfigError
from palestra.tasks import Ladder


def climbed(ladder: Ladder, shares: list[tuple[float | None, float | None]]) -> list[int]:
    """The step of each update, given how it went: successes and episodes cut."""
    seen = []
    for success, cut in shares:
        seen.append(ladder.value)
        ladder.observe(success, cut)
    return seen


def test_by_updates_every_step_lasts_as_long():
    ladder = Ladder([2, 5, 9], "updates", after=2, threshold=0.7)
    assert climbed(ladder, [(0.0, 1.0)] * 7) == [2, 2, 5, 5, 9, 9, 9]


def test_by_success_a_step_is_left_once_it_is_mastered_and_not_before_its_time():
    ladder = Ladder([2, 5, 9], "success", after=2, threshold=0.7)
    shares = [(s, 0.0) for s in (0.9, 0.9, 0.3, 0.6, 0.69, 0.7, 0.9)]
    assert climbed(ladder, shares) == [2, 2, 5, 5, 5, 5, 9]


def test_by_truncation_a_step_is_left_once_it_cuts_too_many_short():
    ladder = Ladder([2, 5], "truncation", after=1, threshold=0.3)
    assert climbed(ladder, [(1.0, cut) for cut in (0.0, 0.29, 0.3, 0.9)]) == [2, 2, 2, 5]


def test_an_update_without_scores_climbs_nothing_but_by_updates():
    assert climbed(Ladder([1, 2], "success", after=1, threshold=0.0), [(None, None)] * 3) == [1, 1, 1]
    assert climbed(Ladder([1, 2], "updates", after=1, threshold=0.0), [(None, None)] * 3) == [1, 2, 2]


@pytest.mark.parametrize("stopped", range(8))
@pytest.mark.parametrize("by", ["updates", "success", "truncation"])
def test_it_continues_from_its_state_wherever_it_stopped(by: str, stopped: int):
    shares = [(0.1 * n, 0.9 - 0.1 * n) for n in range(8)]
    whole = climbed(Ladder([1, 2, 3, 4], by, after=2, threshold=0.3), shares)
    first = Ladder([1, 2, 3, 4], by, after=2, threshold=0.3)
    before = climbed(first, shares[:stopped])
    second = Ladder([1, 2, 3, 4], by, after=2, threshold=0.3)
    second.load(first.state())
    assert before + climbed(second, shares[stopped:]) == whole


@pytest.mark.parametrize("steps", [[], [3, 2], [2, 2]])
def test_steps_that_do_not_grow_are_refused(steps: list[int]):
    with pytest.raises(ConfigError, match="must grow"):
        Ladder(steps, "updates", after=1, threshold=0.5)
