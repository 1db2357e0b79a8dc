"""``palestra replay`` shows the episodes that a detector names."""

from dataclasses import replace
from pathlib import Path

import pytest

from palestra.envs import make_env
from palestra.policy import ScriptedPolicy, oracle_script
from palestra.rewards import Rubric
from palestra.rollout import Limits, Rollout, collect_groups
from palestra.store import RunFolder
from palestra.tasks import GeneratedTasks


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run with the oracle's episodes of two tasks."""
    tasks = GeneratedTasks(make_env("research_report").make_task).take("train", 2)
    oracle = ScriptedPolicy("oracle", oracle_script)
    rollout = Rollout(lambda: make_env("research_report"), oracle, Rubric(), Limits())
    groups = collect_groups(rollout, tasks, 2, stage="rl/1", seed=0)
    made = RunFolder.create(tmp_path / "run", config_text="", resolved={}, command="test")
    made.write_groups("rl", "update-1", list(groups))
    return made.path


def test_an_episode_is_shown_turn_by_turn_with_what_it_earned(palestra, run: Path):
    done = palestra("replay", run, "rl/1/1/0")
    assert (done.code, done.err) == (0, "")
    (group,) = [g for g in RunFolder.open(run).read_groups("rl") if g.id == "rl/1/1"]
    for turn in group.trajectories[0].turns:
        assert turn.action in done.out
        assert turn.observation in done.out
    assert "milestone: informed" in done.out
    assert "ended: terminated · reward: 1.45 · outcome 1.00" in done.out


def test_several_ids_can_be_given_as_the_doctor_prints_them_or_by_how_they_begin(palestra, run: Path):
    done = palestra("replay", run, "rl/1/1/1,", "rl/1/0")
    assert [line.split()[1] for line in done.out.splitlines() if line.startswith("─")] == [
        "rl/1/1/1",
        "rl/1/0/0",
    ]


def test_an_episode_of_an_evaluation_is_found_by_its_id_and_1_is_not_the_beginning_of_10(palestra, run: Path):
    folder = RunFolder.open(run)
    (first, *_) = folder.read_groups("rl")
    for stage, name in (("eval-rl", "eval-rl-greedy"), ("eval-cli-rl", "eval-cli-rl-greedy-test-orders")):
        folder.write_groups(
            stage,
            "greedy",
            [
                replace(
                    first,
                    id=f"{name}/{n}",
                    trajectories=(replace(first.trajectories[0], id=f"{name}/{n}/0"),),
                )
                for n in (10, 1)
            ],
        )
        for wanted, shown in ((f"{name}/1", 1), (f"{name}/10/0", 10), (name, 10)):
            done = palestra("replay", run, wanted)
            assert (done.code, done.err) == (0, "")
            assert f" {name}/{shown}/0 " in done.out.splitlines()[0]


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        ("mine1/1", "has no stage 'mine1'; it has rl"),
        ("rl/9", "has no episode 'rl/9'; ids look like rl/1/0/0"),
    ],
)
def test_an_episode_that_is_not_there_is_refused_with_what_there_is(palestra, run: Path, wanted, message):
    done = palestra("replay", run, wanted)
    assert done.code == 2
    assert message in done.err.replace("\n", " ")
