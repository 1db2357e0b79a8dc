"""Reward parts by hand, and rubrics that are refused."""

from dataclasses import replace

import numpy as np
import pytest

from palestra.errors import ConfigError
from palestra.rewards import BUILTIN_PARTS, RewardPart, Rubric
from palestra.types import Facts, StopReason, Task, Trajectory, Turn

TASK = Task(id="w/train/1", env="w", split="train", seed=1, prompt="hi", optimal_turns=2)


def trajectory(
    *facts: Facts, success: bool | None = True, stop: StopReason = StopReason.terminated
) -> Trajectory:
    turns = tuple(Turn("a", "o", fact) for fact in facts)
    return Trajectory("t", TASK, (), turns, stop, success, milestones=("seen", "done"))


def test_a_perfect_episode_earns_every_part_and_nothing_for_repetition():
    scored = Rubric().score(
        trajectory(Facts(new_milestones=("seen",)), Facts(new_milestones=("done",), success=True))
    )
    assert scored.reward_parts == {
        "outcome": 1.0,
        "process": 1.0,
        "format": 1.0,
        "efficiency": 1.0,
        "repetition": 0.0,
    }
    assert scored.reward == pytest.approx(1.45)
    assert [turn.reward for turn in scored.turns] == pytest.approx([0.125 + 0.05, 1.0 + 0.125 + 0.05 + 0.1])


def test_a_detour_costs_efficiency_format_and_repetition():
    scored = Rubric().score(
        trajectory(
            Facts(new_milestones=("seen",)),
            Facts(parse_tier="repaired", repeated=True),
            Facts(parse_tier="error", valid=False),
            Facts(success=True),
        )
    )
    assert scored.reward_parts == {
        "outcome": 1.0,
        "process": 0.5,
        "format": pytest.approx(2.5 / 4),
        "efficiency": 0.5,
        "repetition": 0.25,
    }


def test_failing_fast_earns_no_efficiency():
    scored = Rubric().score(trajectory(Facts(), success=False))
    assert scored.reward_parts["efficiency"] == 0.0
    assert scored.reward_parts["outcome"] == 0.0


def test_a_failed_world_is_unscored_and_never_zero():
    scored = Rubric().score(trajectory(success=None, stop=StopReason.env_error))
    assert scored.reward is None
    assert set(scored.reward_parts.values()) == {None}


def test_a_part_that_cannot_be_measured_is_none_and_left_out_of_the_sum():
    unknown = replace(trajectory(Facts(success=True)), task=replace(TASK, optimal_turns=None), milestones=())
    scored = Rubric().score(unknown)
    assert scored.reward_parts["efficiency"] is None
    assert scored.reward_parts["process"] is None
    assert scored.reward == pytest.approx(1.1)


def test_every_builtin_part_stays_in_its_stated_range():
    for facts in (
        [Facts()],
        [Facts(repeated=True, valid=False)] * 5,
        [Facts(new_milestones=("seen", "done"), success=True)],
    ):
        for part in BUILTIN_PARTS.values():
            contributions = part.measure(trajectory(*facts))
            assert contributions is not None
            assert part.low - 1e-9 <= sum(contributions) <= part.high + 1e-9


def test_an_unknown_part_is_refused_with_the_nearest_name():
    with pytest.raises(ConfigError, match="Did you mean 'process'"):
        Rubric({"outcome": 1.0, "proces": 0.2})


def test_scales_more_than_ten_times_apart_are_refused_unless_allowed():
    weights = {"outcome": 1.0, "format": 0.05}
    with pytest.raises(ConfigError, match="20 times"):
        Rubric(weights)
    Rubric(weights, allow_uneven_scales=True)
    loud = RewardPart("loud", 0.0, 100.0, lambda t: [0.0] * len(t.turns))
    with pytest.raises(ConfigError, match="loud"):
        Rubric({"outcome": 1.0, "loud": 1.0}, extra_parts=[loud])


def test_a_rubric_of_zeros_is_refused():
    with pytest.raises(ConfigError, match="every weight is 0"):
        Rubric({"outcome": 0.0})


def test_a_custom_part_is_a_few_lines():
    short = RewardPart("short", 0.0, 1.0, lambda t: [1.0 / len(t.turns) ** 2] * len(t.turns))
    scored = Rubric({"outcome": 1.0, "short": 0.5}, extra_parts=[short]).score(
        trajectory(Facts(), Facts(success=True))
    )
    assert scored.reward == pytest.approx(1.25)


def test_numbers_of_numpy_become_plain_ones():
    part = RewardPart("half", 0.0, 1.0, lambda t: list(np.full(len(t.turns), 0.25, np.float32)))
    scored = Rubric({"half": 1.0}, extra_parts=[part]).score(trajectory(Facts(), Facts()))
    assert [type(value) for value in (scored.reward, scored.reward_parts["half"])] == [float, float]
    assert [type(turn.reward) for turn in scored.turns] == [float, float]


@pytest.mark.parametrize(
    ("measure", "message"),
    [
        (lambda t: [1.0 / 0], "ZeroDivisionError"),
        (lambda t: 1.0, "TypeError"),
        (lambda t: [1.0], "each of the 2 turns"),
        (lambda t: [1.0, float("nan")], "a finite number"),
    ],
    ids=["raises", "gives one number", "gives too few", "gives no number"],
)
def test_a_part_that_goes_wrong_is_named_with_its_episode(measure, message):
    rubric = Rubric({"mine": 1.0}, extra_parts=[RewardPart("mine", 0.0, 1.0, measure)])
    with pytest.raises(ConfigError, match=f"'mine' on episode t of task w/train/1 .*{message}"):
        rubric.score(trajectory(Facts(), Facts()))
