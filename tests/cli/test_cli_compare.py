"""``palestra compare``: two evaluations, task by task, from stored episodes."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from palestra.store import RunFolder
from viewer.viewer_runs import evaluate, new_run


@pytest.fixture
def runs(tmp_path: Path) -> tuple[Path, Path]:
    """A run whose policy slips often, and one whose policy never does and was tested on more tasks."""
    weak, strong = new_run(tmp_path / "weak"), new_run(tmp_path / "strong")
    evaluate(weak, "sft", 0.6, mode="greedy", count=20)
    evaluate(weak, "rl", 0.3, mode="greedy", count=20)
    evaluate(strong, "rl", 0.0, mode="greedy", count=25)
    return weak.path, strong.path


def test_the_final_policies_are_compared_on_the_tasks_that_both_played(palestra, runs) -> None:
    done = palestra("compare", *runs, "--json")
    assert done.code == 0, done.err
    found = json.loads(done.out)
    assert (found["tasks"], found["only_in_one"]) == (20, 5)
    assert found["metrics"]["success"]["after"] == 1.0
    assert found["difference"] == pytest.approx(1 - found["metrics"]["success"]["before"])
    assert found["ci95"][0] > 0


def test_two_evaluations_of_one_run_are_compared_by_name(palestra, runs) -> None:
    weak = runs[0]
    done = palestra("compare", weak, weak, "--before", "sft-greedy", "--after", "rl-greedy")
    assert done.code == 0, done.err
    assert "over 20 tasks, p = " in done.out


def test_of_a_run_with_dpo_it_is_that_policy_which_is_compared(palestra, runs) -> None:
    weak, strong = runs
    evaluate(RunFolder.open(strong), "dpo", 0.3, mode="greedy", count=25)
    found = json.loads(palestra("compare", weak, strong, "--json").out)
    assert found["metrics"]["success"]["after"] < 1.0  # which it is of rl


def test_a_run_against_itself_shows_no_difference(palestra, runs) -> None:
    done = palestra("compare", runs[0], runs[0])
    assert "Success +0.0 points (+0.0 to +0.0) over 20 tasks, p = 1: no difference" in done.out


def test_what_cannot_be_compared_is_said(palestra, runs, tmp_path: Path) -> None:
    done = palestra("compare", *runs, "--after", "sft-greedy")
    assert done.code == 2
    assert "There: rl-greedy" in done.err
    empty = new_run(tmp_path / "empty").path
    assert "none; `palestra eval` makes one" in palestra("compare", empty, runs[0]).err


def test_tasks_of_a_world_that_has_changed_are_not_compared(palestra, runs, tmp_path: Path) -> None:
    changed = new_run(tmp_path / "changed")
    groups = [
        replace(
            group,
            task=(task := replace(group.task, content_hash="other")),
            trajectories=tuple(replace(each, task=task) for each in group.trajectories),
        )
        for group in RunFolder.open(runs[0]).read_groups("eval-rl")
    ]
    changed.write_groups("eval-rl", "greedy", groups)
    done = palestra("compare", runs[0], changed.path)
    assert done.code == 2
    assert "the world's state has changed" in done.err
