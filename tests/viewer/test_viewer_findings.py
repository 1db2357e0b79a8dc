from dataclasses import replace
from typing import Any

import pytest

from palestra.types import StopReason, Task, Trajectory
from palestra.viewer.curves import learning_curves, level, sft_curves, smooth
from palestra.viewer.episodes import pick
from palestra.viewer.findings import Evidence, headline, notes
from palestra.viewer.words import duration, number, percent, percent_with_interval

TASK = Task(id="w/test/0", env="w", split="test", seed=0, prompt="p")
SOLVED = Trajectory("a", TASK, (), (), StopReason.terminated, True)
FAILED = replace(SOLVED, success=False, stop_reason=StopReason.max_turns)


def scored(success: float, low: float, high: float, **more: Any) -> dict[str, Any]:
    return {"success": success, "success_ci95": [low, high], "split": "test", **more}


@pytest.mark.parametrize(
    ("share", "words"),
    [(0.52, "52 %"), (1.0, "100 %"), (0.999, "99.9 %"), (0.0, "0 %"), (0.002, "0.2 %"), (None, "–")],
)
def test_a_percentage_says_all_or_nothing_only_when_it_is(share: float | None, words: str) -> None:
    assert percent(share) == words


def test_numbers_are_written_with_the_digits_that_matter() -> None:
    numbers = (None, 3, 4.254, -31.24, 1240.0, 0.00004, 0.0)
    assert [number(value) for value in numbers] == ["–", "3", "4.25", "−31.2", "1,240", "4.0e−05", "0.00"]
    assert [duration(value) for value in (None, 4.2, 42, 200, 7500)] == [
        "–",
        "4.2 s",
        "42 s",
        "3 min 20 s",
        "2 h 5 min",
    ]
    assert percent_with_interval(0.52, [0.45, 0.59]) == "52 % (45–59)"


@pytest.mark.parametrize(
    ("evals", "words"),
    [
        ({"rl": scored(0.94, 0.9, 0.97)}, "Success on held-out tasks is 94 % (90–97) after RL."),
        (
            {"sft": scored(0.6, 0.5, 0.7), "rl": scored(0.4, 0.3, 0.5)},
            "Success on held-out tasks fell from 60 % (50–70) after SFT to 40 % (30–50) after RL.",
        ),
        (
            {"base": scored(0.6, 0.5, 0.7), "sft": scored(0.601, 0.5, 0.7)},
            "Success on held-out tasks stayed at 60 % (50–70) from before training to after SFT.",
        ),
        (
            {"teacher": scored(0.71, 0.6, 0.8), "oracle": scored(1, 0.9, 1)},
            "The teacher manages 71 %; the oracle 100 %; no trained policy has been evaluated yet.",
        ),
    ],
)
def test_the_headline_fits_what_was_evaluated(evals: dict[str, Any], words: str) -> None:
    assert headline(Evidence(evals)) == words


def test_without_evaluations_the_headline_says_how_far_the_run_is() -> None:
    collected = Evidence(episodes=[SOLVED, FAILED, replace(SOLVED, success=None)])
    assert headline(collected) == "3 episodes collected, 50 % of them solved; nothing has been evaluated yet."
    assert headline(Evidence(curves={"loss/sft": {0: 1.0}})).startswith("Training has begun")
    assert headline(Evidence()).startswith("Nothing has been collected")


def test_a_gain_that_may_be_chance_is_said_to_be_so() -> None:
    evals = {"sft": scored(0.5, 0.4, 0.6), "rl": scored(0.6, 0.5, 0.7)}
    assert "overlap: evaluate more tasks" in notes(Evidence(evals))[0]


def test_trouble_in_the_curves_is_put_into_words() -> None:
    updates = range(20)
    curves = {
        "reward/mean": {at: 0.05 * at for at in updates},
        "success/mean": dict.fromkeys(updates, 0.9),
        "validation/success": dict.fromkeys(updates, 0.4),
        "policy/entropy": {at: 1.0 - 0.05 * at for at in updates},
        "groups/zero_spread": dict.fromkeys(updates, 1 / 3),
    }
    text = "\n".join(notes(Evidence(curves=curves)))
    assert "In 33 % of groups" in text
    assert "validation success did not" in text
    assert "90 % in training but 40 % in validation" in text
    assert "Entropy fell from 0.97 to 0.07" in text


def test_a_good_run_without_anything_odd_has_no_complaints() -> None:
    curves = {"groups/zero_spread": {0: 0.1}, "policy/entropy": {0: 0.5, 1: 0.4}, "success/mean": {0: 0.5}}
    assert notes(Evidence({"rl": scored(1.0, 0.9, 1.0, excluded=0)}, curves, [SOLVED])) == []


def test_episodes_lost_to_the_world_are_named() -> None:
    found = notes(Evidence({"rl": scored(0.8, 0.7, 0.9, excluded=5, episodes=50)}))
    assert found[0].startswith("5 of 50 evaluation episodes were lost")


def test_a_later_stage_continues_the_axis_whether_or_not_it_counts_anew() -> None:
    rows = [{"stage": "rl", "update": at, "success/mean": 0.5} for at in (1, 2, 3)]
    anew = [{"stage": "mine", "update": at, "success/mean": 0.6} for at in (1, 2)]
    onward = [{"stage": "mine", "update": at, "success/mean": 0.6} for at in (4, 5)]
    expected = {1: 0.5, 2: 0.5, 3: 0.5, 4: 0.6, 5: 0.6}
    assert learning_curves([*rows, *anew])["success/mean"] == expected
    assert learning_curves([*rows, *onward])["success/mean"] == expected


def test_unmeasured_values_leave_a_gap_and_never_a_zero() -> None:
    rows = [
        {"stage": "sft", "update": 0, "loss/sft": 2.0},
        {"stage": "sft", "update": 1, "loss/sft": None},
        {"stage": "sft", "update": 2, "loss/sft": 1.0, "done": True},
        {"stage": "sft", "loss/sft": 9.0},
    ]
    assert sft_curves(rows) == {"loss/sft": {0: 2.0, 2: 1.0}}


def test_levels_and_smoothing_are_plain_means() -> None:
    curve = dict(enumerate([0.0, 1.0] + [5.0] * 16 + [2.0, 4.0]))
    assert level(curve, end=False) == 0.5
    assert level(curve, end=True) == 3.0
    assert level({}, end=True) is None
    assert smooth([1.0, 3.0, 5.0, 7.0], 2) == [1.0, 2.0, 4.0, 6.0]


def test_failures_come_first_and_a_few_successes_stay_for_contrast() -> None:
    rl, sft = [SOLVED] * 8 + [FAILED] * 2, [replace(FAILED, policy="sft")] * 9
    picked = pick([rl, sft])
    assert [each.success for each in picked] == [False] * 7 + [True] * 3
    assert [each.policy for each in picked[:3]] == ["", "", "sft"]
    assert len(pick([[FAILED] * 30])) == 10
    assert len(pick([[SOLVED] * 30])) == 10
    assert [each.success for each in pick([[SOLVED] * 9, [FAILED] * 4])] == [False] * 4 + [True] * 6
    assert pick([]) == []
