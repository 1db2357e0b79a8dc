"""What of a teacher's attempts is imitated."""

from dataclasses import replace

from palestra.envs import make_env
from palestra.pipeline.collecting import keep_demonstrations
from palestra.policy import NoisyTeacher, ScriptedPolicy
from palestra.rewards import Rubric
from palestra.rollout import Limits, Rollout, collect_groups
from palestra.tasks import GeneratedTasks
from palestra.types import StopReason, TrajectoryGroup


def attempts(teacher: NoisyTeacher, count: int = 10) -> list[TrajectoryGroup]:
    tasks = GeneratedTasks(make_env("orders").make_task).take("train", count)
    rollout = Rollout(lambda: make_env("orders"), ScriptedPolicy("teacher", teacher), Rubric(), Limits())
    return collect_groups(rollout, tasks, 3, stage="collect", seed=0)


def test_failures_and_detours_and_what_was_said_before_are_not_imitated():
    groups = attempts(NoisyTeacher(0.1, 0.1, 0.1))
    played = [t for group in groups for t in group.trajectories]
    assert 0 < sum(bool(t.success) for t in played) < len(played)
    for min_efficiency in (0.0, 1.0):
        kept = [t for g in keep_demonstrations(groups, 100, min_efficiency) for t in g.trajectories]
        short = [t for t in played if t.success and t.task.optimal_turns / len(t.turns) >= min_efficiency]
        assert {(t.task.id, tuple(turn.action for turn in t.turns)) for t in short} == {
            (t.task.id, tuple(turn.action for turn in t.turns)) for t in kept
        }
        assert len({(t.task.id, tuple(turn.action for turn in t.turns)) for t in kept}) == len(kept)
        assert all(t.success for t in kept)


def test_an_episode_that_its_world_lost_is_no_demonstration():
    (group,) = attempts(NoisyTeacher(0.0, 0.0, 0.0), 1)
    lost = replace(group.trajectories[0], success=None, stop_reason=StopReason.env_error)
    assert keep_demonstrations([replace(group, trajectories=(lost,) * 3)], 100, 0.0) == []
