"""Every detector speaks for what it is for and is silent on a run that learns."""

import math
from dataclasses import replace
from pathlib import Path

import pytest

from palestra.monitor import DETECTORS, Watch, Window, detect, first_alarms, run_windows
from palestra.store import RunFolder
from palestra.types import Facts, StopReason, Task, Trajectory, TrajectoryGroup, Turn

WEIGHTS = {"outcome": 1.0, "process": 0.25, "format": 0.1}


def healthy(update: int) -> dict[str, float]:
    """A run as the quickstart's: success rises, entropy falls, invalid actions get fewer."""
    share = min(update / 20, 1.0)
    return {
        "update": update,
        "success/mean": 0.3 + 0.6 * share + 0.04 * (-1) ** update,
        "reward/part/process": 0.5 + 0.4 * share,
        "policy/entropy": 0.10 - 0.08 * share,
        "actions/distinct_sequences": 0.5 - 0.3 * share,
        "actions/invalid": 1.2 - share,
        "format/compliance": 0.9 + 0.1 * share,
        "groups/unsolved": 0.3 - 0.3 * share,
        "groups/zero_spread": 0.1 + 0.3 * share,
        "policy/kl_reference": 0.02 + 0.05 * share,
        "policy/kl_mismatch": 1e-6,
        "gradient/norm": 0.5 + 0.1 * (-1) ** update,
        "validation/success": 0.4 + 0.5 * share,
    }


def rows(count: int = 20, **changed) -> list[dict[str, float]]:
    """Healthy rows in which some metrics are functions of the update's number."""
    return [
        healthy(update) | {name.replace("__", "/"): of(update) for name, of in changed.items()}
        for update in range(1, count + 1)
    ]


def attempt(name: str, *actions: str, success: bool = True, task: int = 0, **parts: float) -> Trajectory:
    given = Task(id=f"w/train/{task}", env="w", split="train", seed=task, prompt="hi", optimal_turns=3)
    turns = tuple(
        Turn(action, "o", Facts(tool_name=action, parameters={"n": action}), reward=0.0) for action in actions
    )
    reward_parts = {"outcome": float(success), "process": 0.5, "format": 1.0} | parts
    return Trajectory(
        name, given, (), turns, StopReason.terminated, success, reward=1.0, reward_parts=reward_parts
    )


def grouped(*attempts: Trajectory) -> list[TrajectoryGroup]:
    return [TrajectoryGroup(f"g{n}", each.task, (each,)) for n, each in enumerate(attempts)]


FINE = grouped(
    *(attempt(f"t{n}", f"look{n}", f"do{n}", "finish", task=n, success=n % 2 == 0) for n in range(8))
)


def names(given: list[dict[str, float]], groups=FINE) -> list[str]:
    return [alarm.detector for alarm in detect(Window("rl", given, groups, WEIGHTS))]


def test_a_run_that_learns_alarms_nobody_at_any_update():
    whole = rows()
    assert first_alarms(Window("rl", whole[:end], FINE, WEIGHTS) for end in range(1, 21)) == []


CURVES = {
    "not_finite": rows(loss__total=lambda update: math.nan if update == 20 else 0.1),
    "entropy_collapse": rows(
        success__mean=lambda update: 0.3, policy__entropy=lambda update: 0.1 * 0.85**update
    ),
    "fell_back": rows(success__mean=lambda update: 0.8 if update < 12 else 0.2),
    "guessing": rows(actions__invalid=lambda update: 0.2 + 0.05 * update),
    "process_without_success": rows(success__mean=lambda update: 0.3, policy__entropy=lambda update: 0.1),
    "flat_groups": rows(groups__zero_spread=lambda update: 0.9),
    "out_of_reach": rows(groups__unsolved=lambda update: 0.25),
    "format_low": rows(format__compliance=lambda update: 0.7),
    "mismatch": rows(policy__kl_mismatch=lambda update: 0.05),
    "far_from_reference": rows(policy__kl_reference=lambda update: 1.4 if update >= 19 else 0.05),
    "gradient_spike": rows(gradient__norm=lambda update: 40.0 if update == 20 else 0.5),
    "validation_gap": rows(validation__success=lambda update: 0.5),
    "plateau": rows(1100, success__mean=lambda update: 0.6 if update > 20 else 0.3),
}
EPISODES = {
    "shortcut": grouped(*(attempt(f"t{n}", f"guess{n}", "finish", task=n) for n in range(8))),
    "one_action": grouped(*(attempt(f"t{n}", *["wait"] * 3, f"do{n}", task=n) for n in range(8))),
    "looping": grouped(*(attempt(f"t{n}", *[f"a{n}", f"b{n}"] * 3, task=n) for n in range(8))),
    "duplicate_calls": grouped(
        *(attempt(f"t{n}", "a", f"b{n}", "c", "a", f"d{n}", "c", "a", task=n) for n in range(8))
    ),
    "part_dominates": grouped(
        *(attempt(f"t{n}", "a", f"b{n}", "c", task=n, process=8.0 * (n % 2)) for n in range(8))
    ),
    "scales_apart": grouped(
        *(
            attempt(f"t{n}", "a", f"b{n}", "c", task=n, success=n == 0, process=40.0 * (n % 2))
            for n in range(8)
        )
    ),
    "world_fails": [
        *grouped(*(attempt(f"t{n}", f"look{n}", f"do{n}", "finish", task=n) for n in range(7))),
        *grouped(replace(attempt("t7", "look", "do", "finish", task=7), retries=1, error="KeyError: 'till'")),
    ],
}


def test_every_detector_has_its_case():
    assert {detector.name for detector in DETECTORS} == CURVES.keys() | EPISODES.keys()


@pytest.mark.parametrize("name", CURVES)
def test_a_detector_of_curves_speaks_for_its_case(name: str):
    assert name in names(CURVES[name])


@pytest.mark.parametrize("name", EPISODES)
def test_a_detector_of_episodes_speaks_for_its_case_and_names_episodes_or_parts(name: str):
    found = [a for a in detect(Window("rl", rows(), EPISODES[name], WEIGHTS)) if a.detector == name]
    assert len(found) == 1
    assert all((found[0].evidence, found[0].cause, found[0].remedy))
    if name not in {"part_dominates", "scales_apart"}:
        assert found[0].replay
        assert set(found[0].replay) <= {f"t{n}" for n in range(8)}


def test_success_that_falls_where_the_curriculum_climbs_alarms_nobody(tmp_path: Path):
    run = new_run(tmp_path / "run")
    said: list[str] = []
    watch = Watch(run, "rl", WEIGHTS, lambda alarm: said.append(alarm.detector))
    solved = {"success__mean": lambda update: 0.9 if update < 12 else 0.5}
    for row in rows(**solved, reward__part__process=lambda update: 0.8):
        step = {"curriculum/difficulty": 1.0 + (row["update"] > 11), "curriculum/complete": 0.0}
        watch({"stage": "rl", **row, **step}, FINE)
    assert said == []


def test_flat_groups_are_no_alarm_where_credit_learns_from_them_all_the_same():
    flat = CURVES["flat_groups"]
    assert "flat_groups" not in names([row | {"episodes/trained": 1.0} for row in flat])
    assert "flat_groups" in names([row | {"episodes/trained": 0.1} for row in flat])


def test_a_detector_that_fails_is_named_and_the_others_still_look():
    wild = grouped(*(attempt(f"t{n}", "a", f"b{n}", "c", task=n, process=1e300 * (n % 2)) for n in range(8)))
    with pytest.warns(UserWarning, match="part_dominates could not look"):
        found = names(CURVES["format_low"], wild)
    assert "format_low" in found


@pytest.mark.parametrize(("reached", "found"), [(0.4, True), (0.7, False)])
def test_entropy_that_is_gone_is_a_collapse_unless_success_is_high(reached: float, found: bool):
    gone = rows(
        policy__sampled_entropy=lambda update: 0.1 * 0.7**update,
        actions__distinct_sequences=lambda update: 0.5 * 0.8**update,
        success__mean=lambda update: 0.2 + (reached - 0.2) * update / 20,
    )
    assert ("entropy_collapse" in names(gone)) is found


@pytest.mark.parametrize(("success", "found"), [(0.8, True), (0.92, False)])
def test_entropy_that_falls_where_nearly_all_succeed_is_no_collapse(success: float, found: bool):
    settled = rows(
        policy__sampled_entropy=lambda update: 0.1 * 0.9**update,
        actions__distinct_sequences=lambda update: 0.5 * 0.95**update,
        success__mean=lambda update: success,
    )
    assert ("entropy_collapse" in names(settled)) is found


def test_one_update_far_from_the_reference_is_no_alarm():
    once = rows(policy__kl_reference=lambda update: 1.4 if update in (10, 20) else 0.05)
    assert first_alarms(Window("rl", once[:end], FINE, WEIGHTS) for end in range(1, 21)) == []


def test_unscored_episodes_and_unmeasured_values_say_nothing():
    failed = replace(FINE[0].trajectories[0], reward=None)
    assert names([{"update": 1.0}], grouped(failed)) == []
    assert names([{"update": 1.0}], []) == []


def watched(run: RunFolder, until: int, start: int = 1) -> list[str]:
    said: list[str] = []
    watch = Watch(run, "rl", WEIGHTS, lambda alarm: said.append(f"{alarm.update} {alarm.detector}"))
    broken = CURVES["flat_groups"][:6] + rows(10)[6:8] + CURVES["flat_groups"][8:14]
    for row in broken[start - 1 : until]:
        run.write_groups("rl", f"update-{row['update']}", FINE)
        run.append_metrics({"stage": "rl", **row})
        watch({"stage": "rl", **row}, FINE)
    return said


def new_run(path: Path) -> RunFolder:
    return RunFolder.create(
        path, config_text="", resolved={"rubric": {"weights": WEIGHTS}}, command="palestra train"
    )


def test_an_alarm_is_given_when_it_begins_and_again_only_after_a_pause(tmp_path: Path):
    run = new_run(tmp_path / "run")
    assert watched(run, 14) == ["3 flat_groups", "11 flat_groups"]
    assert [(alarm["update"], alarm["detector"]) for alarm in run.read_alarms()[0]] == [
        (3, "flat_groups"),
        (11, "flat_groups"),
    ]


@pytest.mark.parametrize("stopped", [1, 2, 3, 5, 7, 10, 11, 13])
def test_a_resumed_watch_gives_the_alarms_of_an_uninterrupted_one(tmp_path: Path, stopped: int):
    run = new_run(tmp_path / "run")
    first = watched(run, stopped)
    assert first + watched(run, 14, stopped + 1) == ["3 flat_groups", "11 flat_groups"]


def test_a_stored_run_shows_what_the_watch_saw(tmp_path: Path):
    run = new_run(tmp_path / "run")
    watched(run, 14)
    assert [(a.update, a.detector) for a in first_alarms(run_windows(run, WEIGHTS))] == [(3, "flat_groups")]


def test_farmed_milestones_name_the_failures_that_were_paid_most_for_process():
    played = grouped(
        *(
            attempt(f"t{n}", f"a{n}", task=n, success=n == 0, process=(1.0, 0.2, 0.9, 0.5)[n])
            for n in range(4)
        )
    )
    found = detect(Window("rl", CURVES["process_without_success"], played, WEIGHTS))
    (replay,) = [alarm.replay for alarm in found if alarm.detector == "process_without_success"]
    assert replay == ("t2", "t3", "t1")
