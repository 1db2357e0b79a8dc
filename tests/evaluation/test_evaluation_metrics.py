import json
from dataclasses import replace

import pytest

from palestra.actions import render_call
from palestra.envs import ToolEnv, make_env, play, run_oracle
from palestra.evaluation import compare, evaluate_trajectories, task_success
from palestra.types import Facts, StopReason, Task, Trajectory, Turn

GOOD = Facts(tool_name="look")
MALFORMED = Facts(parse_tier="error", valid=False, error="malformed")
REPAIRED = Facts(parse_tier="repaired", tool_name="look")
REFUSED = Facts(valid=False, error="invalid_value", tool_name="look")


def episode(
    *facts: Facts,
    success: bool | None = True,
    reward: float | None = None,
    task: str = "w/test/0",
    optimal: int | None = None,
    stop: StopReason = StopReason.terminated,
    tokens: int = 0,
) -> Trajectory:
    turns = tuple(Turn("a", "o", each, action_ids=tuple(range(tokens))) for each in facts)
    return Trajectory(
        id=f"eval/{task}",
        task=Task(id=task, env="w", split="test", seed=0, prompt="p", optimal_turns=optimal),
        prompt=(),
        turns=turns,
        stop_reason=stop,
        success=success,
        reward=reward,
    )


def lost() -> Trajectory:
    return episode(success=None, stop=StopReason.env_error)


def test_episodes_lost_to_the_world_are_in_neither_numerator_but_both_rates_are_given() -> None:
    runs = [episode(GOOD)] * 36 + [episode(GOOD, success=False)] * 9 + [lost()] * 5
    report = evaluate_trajectories(runs)
    assert (report.episodes, report.scored, report.excluded) == (50, 45, 5)
    assert report.success == pytest.approx(0.80)
    assert report.success_of_attempted == pytest.approx(0.72)
    assert report.success_ci95 == pytest.approx([0.6617, 0.8910], abs=1e-3)
    assert report.stop_reasons == {"terminated": 45, "env_error": 5}


def test_a_long_episode_weighs_no_more_than_a_short_one() -> None:
    runs = [episode(GOOD, reward=1.0), episode(GOOD, reward=1.0), episode(*[GOOD] * 8, reward=0.0)]
    report = evaluate_trajectories(runs)
    assert report.reward == pytest.approx(2 / 3)
    assert report.turns == pytest.approx(10 / 3)


def test_uneven_attempts_give_two_named_success_rates() -> None:
    uneven = [episode(GOOD, task="a")]
    uneven += [episode(GOOD, task="b", success=won) for won in (True, False, False, False)]
    report = evaluate_trajectories(uneven)
    assert report.success == pytest.approx(0.4)
    assert report.success_by_task == pytest.approx(0.625)
    assert report.tasks == 2


def test_action_metrics_count_what_they_say() -> None:
    repeated, cut = replace(GOOD, repeated=True), replace(MALFORMED, error="truncated")
    runs = [episode(GOOD, MALFORMED, REPAIRED, REFUSED), episode(GOOD, repeated, cut, GOOD)]
    report = evaluate_trajectories(runs)
    assert report.invalid_actions == 1.5
    assert report.repeated_actions == 0.5
    assert report.truncated_actions == 0.5
    assert report.format_compliance == 6 / 8
    assert report.strict_format == 5 / 8
    assert report.tool_call_accuracy == 5 / 6


def test_step_efficiency_looks_at_successes_only_and_never_exceeds_one() -> None:
    runs = [
        episode(*[GOOD] * 4, optimal=3),
        episode(*[GOOD] * 2, optimal=3),
        episode(*[GOOD] * 9, optimal=3, success=False),
        episode(GOOD),
    ]
    assert evaluate_trajectories(runs).step_efficiency == pytest.approx((0.75 + 1) / 2)


def test_milestones_are_shares_of_the_episodes_that_have_them() -> None:
    first, both = replace(GOOD, new_milestones=("opened",)), replace(GOOD, new_milestones=("handled",))
    runs = [
        replace(each, milestones=("opened", "handled")) for each in (episode(first, both), episode(first))
    ]
    report = evaluate_trajectories([*runs, lost()])
    assert report.milestone_rates == {"opened": 1.0, "handled": 0.5}
    assert report.milestone_counts == {"opened": 2, "handled": 1}


def test_recovery_is_success_after_trouble() -> None:
    disturbed = replace(GOOD, fault="delay")
    runs = [episode(GOOD), episode(REFUSED, GOOD), episode(disturbed, GOOD, success=False)]
    assert evaluate_trajectories(runs).recovery == 0.5
    assert evaluate_trajectories([episode(GOOD)]).recovery is None


def test_an_unmeasured_reward_part_is_left_out_of_its_mean() -> None:
    parts = [
        {"outcome": 1.0, "judge": None},
        {"outcome": 0.0, "judge": None},
        {"outcome": None, "judge": None},
    ]
    runs = [replace(episode(GOOD), reward_parts=each) for each in parts]
    assert evaluate_trajectories(runs).reward_parts == {"outcome": 0.5, "judge": None}


def test_tokens_are_counted_an_episode_and_unknown_for_text_without_tokens() -> None:
    assert evaluate_trajectories([episode(GOOD, tokens=4), episode(GOOD, GOOD, tokens=4)]).action_tokens == 6
    assert evaluate_trajectories([episode(GOOD)]).action_tokens is None


def test_nothing_measured_is_none_and_never_zero() -> None:
    for runs in ([], [lost()]):
        report = evaluate_trajectories(runs).to_dict()
        counts = {"episodes", "scored", "excluded", "tasks", "success_of_attempted"}
        assert all(
            value in (None, {}) for key, value in report.items() if key not in {*counts, "stop_reasons"}
        )
    assert evaluate_trajectories([]).success_of_attempted is None


def test_the_oracle_of_a_real_world_scores_perfectly() -> None:
    env = make_env("orders")
    assert isinstance(env, ToolEnv)
    runs = []
    for seed in range(4):
        task = env.make_task(seed, "test")
        played = play(env, task, [render_call(call) for call in run_oracle(env, task)])
        turns = tuple(Turn(each.action, each.observation, Facts(**each.info)) for each in played)
        done = played[-1].info["success"]
        runs.append(Trajectory(task.id, task, (), turns, StopReason.terminated, done))
    report = evaluate_trajectories(runs)
    perfect = (report.success, report.step_efficiency, report.strict_format, report.tool_call_accuracy)
    assert perfect == (1, 1, 1, 1)
    assert report.invalid_actions == 0
    assert set(report.milestone_rates.values()) == {1.0}
    assert json.loads(json.dumps(report.to_dict())) == report.to_dict()


def test_a_comparison_shows_rows_and_tests_success_task_by_task() -> None:
    before = [episode(GOOD, GOOD, task=f"t{i}", success=i == 0) for i in range(6)]
    after = [episode(GOOD, task=f"t{i}") for i in range(6)]
    result = compare(before, after, seed=0)
    rows = {row.metric: row for row in result.rows}
    assert rows["turns"].change == -1
    assert rows["reward"].change is None
    assert result.success.difference == pytest.approx(5 / 6)
    assert result.success.p == 2 / 2**5


def test_task_success_is_none_where_every_attempt_was_lost() -> None:
    assert task_success([episode(GOOD, task="a"), episode(GOOD, task="a", success=False)]) == {"a": 0.5}
    assert task_success([lost()]) == {"w/test/0": None}
