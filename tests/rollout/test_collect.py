"""Episodes and collections with scripted policies in real worlds."""

import asyncio
import random
from dataclasses import replace

import pytest

from palestra.envs import make_env
from palestra.errors import TooManyFailures
from palestra.policy import NoisyTeacher, Sampled, ScriptedPolicy, oracle_script, random_script, replay_script
from palestra.policy.scripted import ScriptedConversation
from palestra.rewards import Rubric
from palestra.rollout import EpisodeKey, Limits, Rollout, collect_groups, run_episode
from palestra.tasks import GeneratedTasks
from palestra.types import StopReason, ToolSpec

ORACLE = ScriptedPolicy("oracle", oracle_script)


def tasks(count, name="orders"):
    return GeneratedTasks(make_env(name).make_task).take("train", count)


def play(policy, limits=Limits(), world=None, task=None):  # noqa: B008
    return asyncio.run(
        run_episode(world or make_env("orders"), task or tasks(1)[0], policy, limits, EpisodeKey("t", 1))
    )


class FailingWorld:
    """A real world whose tools fail at a given turn of given tasks."""

    def __init__(self, seeds, turn=1, times=None):
        self._world, self._seeds, self._turn, self._times = make_env("orders"), seeds, turn, times
        self.count = 0

    def __getattr__(self, name):
        return getattr(self._world, name)

    def reset(self, **kwargs):
        self.count = 0
        return self._world.reset(**kwargs)

    def step(self, action):
        self.count += 1
        due = self.count == self._turn and self._world._task.seed in self._seeds
        if due and (self._times is None or self._times.pop() if self._times != [] else False):
            raise ZeroDivisionError("the shop is on fire")
        return self._world.step(action)


@pytest.mark.parametrize("name", ["orders", "meeting_room", "alerts", "code_repair", "research_report"])
def test_the_oracle_earns_the_whole_reward_everywhere(name):
    groups = collect_groups(
        Rollout(lambda: make_env(name), ORACLE, Rubric(), Limits()), tasks(20, name), 1, stage="s", seed=0
    )
    for group in groups:
        assert group.trajectories[0].success
        assert group.trajectories[0].stop_reason is StopReason.terminated
        assert group.trajectories[0].reward == pytest.approx(1.45)


def test_each_limit_has_its_own_stop_reason():
    again = ScriptedPolicy(
        "replay", replay_script(['{"tool_name": "get_order", "parameters": {"order_id": "1"}}'])
    )
    assert play(again, Limits(max_turns=2)).stop_reason is StopReason.max_turns
    repeated = play(again, Limits(max_repeats=3, max_invalid=9))
    assert repeated.stop_reason is StopReason.repeated_action
    assert len(repeated.turns) == 4
    refused = play(again, Limits(max_repeats=9, max_invalid=3))
    assert refused.stop_reason is StopReason.invalid_action
    assert len(refused.turns) == 3
    assert play(ORACLE, Limits(max_seconds=0.0)).stop_reason is StopReason.timeout


def test_a_valid_action_between_invalid_ones_lets_the_episode_go_on():
    look = '{"tool_name": "find_orders", "parameters": {"customer": "X"}}'
    said = ["no", "json", look, "not", "json either", look, "nor this"]
    trajectory = play(ScriptedPolicy("odd", replay_script(said)))
    assert trajectory.stop_reason is StopReason.invalid_action
    assert len(trajectory.turns) == 9


def test_malformed_actions_are_kept_raw_and_the_episode_goes_on():
    script = replay_script(
        ["not json {", "<tool_call>", '{"tool_name": "finish", "parameters": {"verdict": "refused"}}']
    )
    trajectory = play(ScriptedPolicy("odd", script))
    assert trajectory.turns[0].action == "not json {"
    assert trajectory.turns[0].facts.error is not None
    assert len(trajectory.turns) == 3
    assert trajectory.success is False


def test_one_failing_world_does_not_disturb_its_siblings():
    chosen = tasks(6)
    rollout = Rollout(lambda: FailingWorld({chosen[2].seed}), ORACLE, Rubric(), Limits())
    groups = collect_groups(rollout, chosen, 1, stage="s", seed=0)
    reasons = [group.trajectories[0].stop_reason for group in groups]
    assert reasons[2] is StopReason.env_error
    assert reasons.count(StopReason.terminated) == 5
    failed = groups[2].trajectories[0]
    assert failed.success is None
    assert failed.reward is None
    assert "the shop is on fire" in failed.error


@pytest.mark.parametrize(
    "declared",
    ["look", {"look": 1}, ({"name": "look"},), (ToolSpec("look", "", {"properties": {"a": {1, 2}}}),)],
)
def test_tools_that_no_chat_template_could_declare_fail_the_episode(declared):
    world = FailingWorld(())
    world.schema_tools = declared
    trajectory = play(ORACLE, world=world)
    assert trajectory.stop_reason is StopReason.env_error
    assert "tool" in trajectory.error
    assert not trajectory.turns


def test_the_last_action_that_the_limit_allows_is_run():
    task = tasks(1)[0]
    played = play(ORACLE, Limits(max_turns=task.optimal_turns), task=task)
    assert (played.success, played.stop_reason) == (True, StopReason.terminated)
    cut = play(ORACLE, Limits(max_turns=task.optimal_turns - 1), task=task)
    assert (cut.success, cut.stop_reason) == (False, StopReason.max_turns)
    assert cut.turns[-1].facts.valid


def test_a_call_is_run_whatever_is_said_around_it():
    stop = '{"tool_name": "finish", "parameters": {"verdict": "refused"}}\nI am done. Goodbye.'
    played = play(ScriptedPolicy("odd", replay_script([stop])))
    assert (played.turns[0].facts.tool_name, played.stop_reason) == ("finish", StopReason.terminated)


def test_what_a_policy_raises_comes_out_as_it_was_with_the_episode():
    class Broken(SlowPolicy):
        def open(self, prompt, world, seed, session):
            if session == "s/3/0":
                raise KeyError("no such role")
            return super().open(prompt, world, seed, session)

    rollout = Rollout(lambda: make_env("orders"), Broken(), Rubric(), Limits())
    chosen = tasks(8)
    with pytest.raises(KeyError, match="no such role") as caught:
        collect_groups(rollout, chosen, 1, stage="s", seed=0)
    assert caught.value.__notes__ == [f"in episode s/3/0 of task {chosen[3].id}"]


def test_a_failure_is_tried_again_on_a_fresh_world_with_the_same_seed():
    chosen, times = tasks(3), [True]
    rollout = Rollout(lambda: FailingWorld({t.seed for t in chosen}, times=times), ORACLE, Rubric(), Limits())
    groups = collect_groups(rollout, chosen, 1, stage="s", seed=0)
    assert [g.trajectories[0].success for g in groups] == [True] * 3
    assert [g.trajectories[0].id for g in groups] == ["s/0/0", "s/1/0", "s/2/0"]


def test_a_run_where_over_a_fifth_fails_stops_with_the_first_traceback():
    chosen = tasks(4)
    rollout = Rollout(lambda: FailingWorld({t.seed for t in chosen}), ORACLE, Rubric(), Limits())
    with pytest.raises(TooManyFailures, match="shop is on fire"):
        collect_groups(rollout, chosen, 1, stage="s", seed=0)


class SlowPolicy:
    """The oracle after a random number of turns of the event loop; ``closed`` lists episodes as they end."""

    name, version = "slow", 0

    def __init__(self):
        self.closed = []

    def open(self, prompt, world, seed, session):
        conversation = ScriptedConversation(oracle_script, world, random.Random(seed))
        act, rng = conversation.act, random.Random(seed)

        async def late() -> Sampled:
            for _ in range(rng.randint(0, 20)):
                await asyncio.sleep(0)
            return await act()

        conversation.act = late
        conversation.close = lambda: self.closed.append(session)
        return conversation


def test_results_come_in_the_order_asked_for_whatever_finishes_first():
    chosen, ended, policy = tasks(12), [], SlowPolicy()
    rollout = Rollout(lambda: make_env("orders"), policy, Rubric(), Limits(), concurrency=5)
    groups = collect_groups(rollout, chosen, 2, stage="s", seed=0, progress=ended.append)
    assert [group.task for group in groups] == chosen
    for index, group in enumerate(groups):
        assert [t.id for t in group.trajectories] == [f"s/{index}/0", f"s/{index}/1"]
        assert {t.task.id for t in group.trajectories} == {chosen[index].id}
    assert ended == [StopReason.terminated] * 24
    assert policy.closed != [t.id for group in groups for t in group.trajectories]


def test_a_collection_is_a_function_of_its_seed():
    def actions(seed):
        policy = ScriptedPolicy("teacher", NoisyTeacher(0.2, 0.2, 0.2))
        rollout = Rollout(lambda: make_env("alerts"), policy, Rubric(), Limits())
        groups = collect_groups(rollout, tasks(8, "alerts"), 3, stage="s", seed=seed)
        return [[turn.action for turn in t.turns] for g in groups for t in g.trajectories]

    assert actions(1) == actions(1)
    assert actions(1) != actions(2)


def test_the_noisy_teacher_is_imperfect_and_random_play_never_succeeds():
    for name in ("orders", "meeting_room", "alerts", "code_repair", "research_report"):

        def success(policy, name=name):
            rollout = Rollout(lambda: make_env(name), policy, Rubric(), Limits())
            groups = collect_groups(rollout, tasks(60, name), 1, stage="s", seed=0)
            return sum(bool(t.success) for g in groups for t in g.trajectories) / 60

        assert 0.5 < success(ScriptedPolicy("teacher", NoisyTeacher())) < 0.97
        assert success(ScriptedPolicy("random", random_script)) <= 0.05


def test_scoring_again_under_another_rubric_needs_no_rollout():
    trajectory = Rubric().score(play(ORACLE))
    again = Rubric({"outcome": 1.0}).score(replace(trajectory, reward=None))
    assert trajectory.reward == pytest.approx(1.45)
    assert again.reward == pytest.approx(1.0)
