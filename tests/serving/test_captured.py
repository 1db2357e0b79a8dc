"""Episodes of outside programs: the rows that are trained on are the ones that were sampled."""

import asyncio

import pytest

from palestra.errors import ConfigError, ContextFull, EngineError
from palestra.policy import Generation, SamplingParams
from palestra.policy.chat import RoleTokenTemplate
from palestra.policy.nano import train_tokenizer
from palestra.serving.captured import CapturedEpisode
from palestra.serving.desk import Desk, Limits
from palestra.training import make_segments
from palestra.types import Message, StopReason

TEMPLATE = RoleTokenTemplate(train_tokenizer(["look left", "nothing there"], 300))
SYSTEM, ASKED = Message("system", "Find it."), Message("user", "Where?")


def said(text: str) -> Generation:
    ids = (*TEMPLATE.encode(text), TEMPLATE.end_id)
    return Generation(ids, tuple(-0.1 * n for n in range(1, len(ids) + 1)), "stop", 0)


def played(*steps: tuple[list[Message], str]) -> CapturedEpisode:
    episode = CapturedEpisode("e1", "g1", 0)
    for messages, action in steps:
        episode.context(messages, TEMPLATE)
        episode.act(said(action), action)
    return episode


LOOK, LEFT = Message("assistant", "look"), Message("assistant", "left")
THERE = Message("user", "nothing there")


def test_a_conversation_that_grows_by_one_message_is_one_row_of_the_ids_as_sampled():
    episode = played(([SYSTEM, ASKED], "look"), ([SYSTEM, ASKED, LOOK, THERE], "left"))
    trajectory = episode.finish(1.0, True)
    (row,) = make_segments(trajectory, [1.0, 2.0])
    assert list(row.ids) == TEMPLATE.render([SYSTEM, ASKED, LOOK, THERE]) + list(said("left").ids)
    trained = [token for token, acted in zip(row.ids, row.action_mask, strict=True) if acted]
    assert trained == [*said("look").ids, *said("left").ids]
    assert [t.reward for t in trajectory.turns] == [0.0, 1.0]
    assert (trajectory.reward, trajectory.success, trajectory.stop_reason) == (
        1.0,
        True,
        StopReason.terminated,
    )


def test_what_was_sampled_is_kept_though_its_text_would_be_encoded_otherwise():
    episode = CapturedEpisode("e1", "g1", 0)
    episode.context([ASKED], TEMPLATE)
    odd = tuple(TEMPLATE.encode(letter)[0] for letter in "look")
    episode.act(Generation(odd, (-0.1,) * 4, "length", 0), "look")
    ids = episode.context([ASKED, LOOK, THERE], TEMPLATE)
    start = len(TEMPLATE.render([ASKED]))
    assert tuple(ids[start : start + 4]) == odd
    assert ids[start + 4] == TEMPLATE.end_id
    assert odd != tuple(TEMPLATE.encode("look"))


@pytest.mark.parametrize(
    "second",
    [
        [SYSTEM, Message("user", "Where now?")],
        [SYSTEM, ASKED, Message("assistant", "look, shortened"), THERE],
        [SYSTEM, ASKED, LOOK, THERE, Message("user", "and?")],
    ],
    ids=["another conversation", "a rewritten answer", "two messages at once"],
)
def test_anything_else_begins_a_row_of_its_own(second):
    trajectory = played(([SYSTEM, ASKED], "look"), (second, "left")).finish(0.5, None)
    first, other = make_segments(trajectory, [1.0, 1.0])
    assert list(first.ids) == TEMPLATE.render([SYSTEM, ASKED]) + list(said("look").ids)
    assert list(other.ids) == TEMPLATE.render(second) + list(said("left").ids)
    assert sum(first.action_mask) == len(said("look").ids)
    assert sum(other.action_mask) == len(said("left").ids)


def test_a_request_that_comes_again_takes_the_place_of_the_lost_answer():
    steps = [([SYSTEM, ASKED], "look"), ([SYSTEM, ASKED], "left")]
    trajectory = played(*steps).finish(1.0, True)
    assert [turn.action for turn in trajectory.turns] == ["left"]
    (row,) = make_segments(trajectory, [1.0])
    assert list(row.ids) == TEMPLATE.render([SYSTEM, ASKED]) + list(said("left").ids)


def test_an_episode_that_failed_has_no_reward_and_is_never_trained_on():
    trajectory = played(([ASKED], "look")).finish(None, None)
    assert (trajectory.reward, trajectory.success) == (None, None)
    assert trajectory.stop_reason is StopReason.env_error


class Echoing:
    """An engine that says one word, after as long as it is told to wait."""

    policy_version = 3

    def __init__(self):
        self.sampling = asyncio.Event()
        self.sampling.set()
        self.versions = []

    async def generate(self, prompt_ids, params, session):
        await self.sampling.wait()
        return said("look")

    def release(self, session):
        pass

    def weights_changed(self, version):
        self.versions.append(version)


PARAMS = SamplingParams(8)


def make_desk(**settings) -> tuple[Desk, Echoing]:
    engine = Echoing()
    return Desk(engine, TEMPLATE, Limits(200, 8), **settings), engine


async def attempt(desk: Desk, name: str, group: str, reward: float) -> dict:
    await desk.chat([ASKED], PARAMS, name, group)
    return await desk.finish(name, reward, reward > 0)


def test_groups_are_gathered_whole_and_named_by_the_run():
    async def go():
        desk, _ = make_desk(group_size=2)
        waiting = asyncio.create_task(desk.gather(2, 3, "rl/1"))
        for name, group, reward in (("a", "x", 0.0), ("b", "y", 1.0), ("c", "y", 0.5), ("d", "x", 1.0)):
            assert (await attempt(desk, name, group, reward))["taken"]
        return await waiting

    groups = asyncio.run(go())
    assert [group.id for group in groups] == ["rl/1/0", "rl/1/1"]
    found = [[(t.id, t.reward) for t in group.trajectories] for group in groups]
    assert found == [[("rl/1/0/0", 0.0), ("rl/1/0/1", 1.0)], [("rl/1/1/0", 1.0), ("rl/1/1/1", 0.5)]]
    assert groups[0].task.id == "outside/train/x"


def test_nothing_is_sampled_while_weights_change_and_nobody_is_turned_away():
    async def go():
        desk, engine = make_desk(group_size=1)
        gathering = asyncio.create_task(desk.gather(1, 3, "rl/1"))
        await asyncio.sleep(0)
        engine.sampling.clear()
        slow = asyncio.create_task(desk.chat([ASKED], PARAMS, "slow", None))
        await asyncio.sleep(0)
        engine.sampling.set()
        await attempt(desk, "a", "x", 1.0)
        await slow
        await gathering
        late = asyncio.create_task(desk.chat([ASKED], PARAMS, "late", None))
        await asyncio.sleep(0.02)
        assert not late.done()
        asyncio.create_task(desk.gather(1, 4, "rl/2"))  # noqa: RUF006
        await late
        old, new = await desk.finish("slow", 1.0, True), await desk.finish("late", 1.0, True)
        return old, new, desk.state()

    old, new, state = asyncio.run(go())
    assert old == {"taken": False, "reason": "the policy has been updated since it began"}
    assert new == {"taken": True, "policy_version": 4}
    assert (state["episodes_too_old"], state["episodes_used"]) == (1, 1)


def test_attempts_beyond_a_group_begin_it_anew_and_old_ones_are_dropped():
    async def go():
        desk, _ = make_desk(group_size=2)
        waiting = asyncio.create_task(desk.gather(1, 3, "rl/1"))
        await asyncio.gather(*(attempt(desk, str(n), "x", float(n)) for n in range(3)))
        await waiting
        left = desk.state()["groups_being_played"]
        asyncio.create_task(desk.gather(1, 4, "rl/2"))  # noqa: RUF006
        await asyncio.sleep(0)
        return left, desk.state()

    left, state = asyncio.run(go())
    assert left == 1
    assert (state["groups_being_played"], state["episodes_too_old"]) == (0, 1)


def test_an_unknown_episode_and_a_prompt_without_room_are_refused():
    async def go():
        desk, _ = make_desk()
        with pytest.raises(ConfigError, match="no episode 'nobody' is being played"):
            await desk.finish("nobody", 1.0, True)
        with pytest.raises(ContextFull, match="the context 200"):
            await desk.chat([Message("user", "look " * 300)], PARAMS, "a", None)
        with pytest.raises(ConfigError, match="no episode 'a' is being played"):
            await desk.finish("a", 1.0, True)

    asyncio.run(go())


def test_a_request_that_fails_leaves_the_episode_as_it_was():
    async def go():
        desk, _ = make_desk()
        first = [ASKED]
        await desk.chat(first, PARAMS, "a", None)
        grown = [*first, LOOK, THERE]
        with pytest.raises(ContextFull):
            await desk.chat([*first, LOOK, Message("user", "look " * 300)], PARAMS, "a", None)
        with pytest.raises(ContextFull):
            await desk.chat([Message("user", "look " * 300)], PARAMS, "a", None)
        await desk.chat(grown, PARAMS, "a", None)
        gathering = asyncio.create_task(desk.gather(1, 3, "rl/1"))
        await desk.finish("a", 1.0, True)
        return (await gathering)[0].trajectories[0]

    played = asyncio.run(go())
    (row,) = make_segments(played, [1.0, 1.0])
    assert list(row.ids) == TEMPLATE.render([ASKED, LOOK, THERE]) + list(said("look").ids)


def test_a_reward_that_comes_again_or_for_a_forgotten_episode_makes_no_further_attempt():
    async def go():
        desk, _ = make_desk(group_size=3, max_lag=1)
        asyncio.create_task(desk.gather(1, 3, "rl/1"))  # noqa: RUF006
        await attempt(desk, "a", "x", 1.0)
        with pytest.raises(ConfigError, match="it is rewarded once"):
            await desk.finish("a", 1.0, True)
        await desk.chat([ASKED], PARAMS, "slow", "x")
        asyncio.create_task(desk.gather(1, 15, "rl/13"))  # noqa: RUF006
        await asyncio.sleep(0)
        with pytest.raises(ConfigError, match="no episode 'slow' is being played"):
            await desk.finish("slow", 1.0, True)
        return desk.state()

    state = asyncio.run(go())
    assert (state["episodes_being_played"], state["groups_being_played"]) == (0, 0)
    assert state["episodes_too_old"] == 2


def test_an_answer_may_be_as_long_as_the_context_has_room():
    class Listening(Echoing):
        async def generate(self, prompt_ids, params, session):
            self.asked = len(prompt_ids), params.max_tokens
            return said("look")

    async def go():
        engine = Listening()
        desk = Desk(engine, TEMPLATE, Limits(100, 8))
        await desk.complete([5] * 90, SamplingParams(20), None)
        return engine.asked

    assert asyncio.run(go()) == (90, 10)


def test_attempts_of_a_group_may_be_asked_in_other_words():
    async def go():
        desk, _ = make_desk(group_size=2)
        gathering = asyncio.create_task(desk.gather(1, 3, "rl/1"))
        for name, prompt in (("a", "today is Monday"), ("b", "today is Sunday")):
            await desk.chat([Message("user", prompt)], PARAMS, name, "x")
            await desk.finish(name, 1.0, True)
        return (await gathering)[0]

    group = asyncio.run(go())
    assert all(each.task == group.task for each in group.trajectories)
    assert [each.prompt[0].content for each in group.trajectories] == ["today is Monday", "today is Sunday"]


def test_an_episode_of_another_temperature_than_the_learner_s_is_refused():
    async def go():
        desk = Desk(Echoing(), TEMPLATE, Limits(200, 8, temperature=0.5))
        with pytest.raises(ConfigError, match=r"temperature 0.5 \(rl.temperature\), not 1"):
            await desk.chat([ASKED], PARAMS, "a", None)
        await desk.chat([ASKED], PARAMS, None, None)
        await desk.chat([ASKED], SamplingParams(8, 0.5), "a", None)

    asyncio.run(go())


def test_a_reward_waits_for_the_answer_it_is_for_and_what_comes_later_is_refused():
    async def go():
        desk, engine = make_desk()
        await desk.chat([ASKED], PARAMS, "a", None)
        engine.sampling.clear()
        running = asyncio.create_task(desk.chat([ASKED, LOOK, THERE], PARAMS, "a", None))
        late = asyncio.create_task(desk.chat([ASKED, LOOK, THERE], PARAMS, "a", None))
        await asyncio.sleep(0)
        rewarding = asyncio.create_task(desk.finish("a", 1.0, True))
        await asyncio.sleep(0.01)
        assert not rewarding.done()
        engine.sampling.set()
        await running
        await late
        return await rewarding, desk.state()

    taken, state = asyncio.run(go())
    assert taken["taken"]
    assert state["episodes_being_played"] == 0


def test_whoever_waits_is_turned_away_when_the_server_ends():
    async def go():
        desk, _ = make_desk()
        await desk.hold()
        waiting = asyncio.create_task(desk.chat([ASKED], PARAMS, "a", None))
        learner = asyncio.create_task(desk.gather(1, 3, "rl/1"))
        await asyncio.sleep(0.01)
        await desk.hold()
        await desk.close()
        with pytest.raises(EngineError, match="the server is ending"):
            await desk.chat([ASKED], PARAMS, "b", None)
        await waiting  # the learner had opened the door for it
        learner.cancel()

    asyncio.run(go())
