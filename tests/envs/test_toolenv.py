"""The toolkit: what it derives from a world of a few lines."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal, Optional, get_args

import pytest

from palestra.actions import ActionFormat, render_call
from palestra.envs import ToolEnv, ToolError, call, make_env, play, run_oracle, tool
from palestra.errors import ConfigError, UnsolvableTask, WorldError
from palestra.types import Action, Facts, Task, ToolCall


@dataclass
class Box:
    code: str
    draw: int = 0
    read: set[str] = field(default_factory=set)
    opened: str = ""


class Safe(ToolEnv[Box]):
    """Read the note, then open the safe."""

    milestones: ClassVar = {
        "read": lambda state: bool(state.read),
        "closed_case": lambda state: bool(state.opened),
    }
    required_tools = ("read_note",)

    def generate(self, rng: random.Random, difficulty: int) -> Box:
        return Box(code=str(rng.randint(100, 999)))

    def observe(self, state: Box) -> str:
        return f"Open the safe with {len(state.code)} digits."

    def verify(self, state: Box) -> bool:
        return state.opened == state.code

    def done(self, state: Box) -> bool:
        return bool(state.opened)

    def oracle(self, state: Box) -> Iterator[ToolCall]:
        if not state.read:
            yield call("read_note", colour="red")
        yield call("open_safe", code=state.code)

    @tool
    def read_note(self, colour: Literal["red", "blue"], times: Optional[int] = None) -> str:  # noqa: UP045
        """Read a note.

        Args:
            colour: which of the two notes
            times: how often
        """
        self.state.read.add(colour)
        return f"the {colour} note says {self.state.code}"

    @tool(aliases={"number": "code"})
    def open_safe(self, code: str) -> str:
        """Open the safe."""
        if not code.isdigit():
            self.state.draw = 99
            self.state.read.clear()
            raise ToolError("a code has digits only")
        self.state.opened = code
        return "click"

    @tool
    def roll(self, sides: list[int], weight: float = 1.0, loud: bool = False) -> str:
        """Roll a die."""
        self.state.draw = self.rng.choice(sides)
        return f"rolled {self.state.draw}"


class Dial(Safe):
    """A safe whose dial turns on with every call."""

    @tool
    def turn(self) -> str:
        """Turn on."""
        self.state.draw += 1
        return f"at {self.state.draw}"


def say(name: str, **parameters: object) -> str:
    return render_call(ToolCall(name, parameters))


def started(seed: int = 3) -> Safe:
    env = Safe()
    env.reset(seed=seed)
    return env


def test_the_schema_comes_from_type_hints_and_the_docstring() -> None:
    schema = Safe.tools["read_note"].parameters
    assert schema["properties"]["colour"] == {
        "type": "string",
        "enum": ["red", "blue"],
        "description": "which of the two notes",
    }
    assert schema["properties"]["times"]["anyOf"] == [{"type": "integer"}, {"type": "null"}]
    assert schema["required"] == ["colour"]
    assert schema["additionalProperties"] is False
    roll = Safe.tools["roll"].parameters["properties"]
    assert roll["sides"] == {"type": "array", "items": {"type": "integer"}}
    assert (roll["weight"], roll["loud"]) == ({"type": "number"}, {"type": "boolean"})
    assert Safe.tools["open_safe"].aliases == {"number": "code"}


def test_the_system_prompt_has_one_short_line_a_tool() -> None:
    lines = Safe().system_prompt.splitlines()
    assert "- read_note(colour=red|blue, times?): read a note" in lines
    assert sum(line.startswith("- ") for line in lines) == 3
    assert "tool_name" in lines[-1]


@pytest.mark.parametrize("name", ["../../x", "my shop", "a\0b", "a/b", "", "\u00f6rtchen", ".."])
def test_a_world_s_name_can_be_part_of_a_file_s(name: str) -> None:
    with pytest.raises(WorldError, match="no name for a world"):
        type("Odd", (Safe,), {"name": name})


def test_a_tool_may_not_take_a_name_that_the_toolkit_uses() -> None:
    with pytest.raises(WorldError, match="close"):

        class Bad(ToolEnv[Box]):
            @tool
            def close(self) -> str:  # type: ignore[override]
                """End."""
                return ""


def test_an_oracle_that_calls_no_tool_is_refused_by_name() -> None:
    class Typo(Safe):
        def oracle(self, state: Box) -> Iterator[ToolCall]:
            yield call("read_nite")

    with pytest.raises(WorldError, match=r"Typo: its oracle calls 'read_nite'; its tools are .*read_note"):
        Typo().make_task(1)


def test_a_tool_without_a_docstring_or_with_an_unknown_type_is_refused() -> None:
    with pytest.raises(WorldError, match="docstring"):

        class Silent(ToolEnv[Box]):
            @tool
            def act(self) -> str:
                return ""

    with pytest.raises(WorldError, match="thing"):

        class Odd(ToolEnv[Box]):
            @tool
            def act(self, thing: dict[str, int]) -> str:
                """Act."""
                return ""


def test_info_holds_exactly_the_facts() -> None:
    env = started()
    info = env.step(say("read_note", colour="red"))[-1]
    assert Facts(**info) == Facts(
        tool_name="read_note",
        parameters={"colour": "red"},
        state_changed=True,
        new_milestones=("read",),
        state_hash=info["state_hash"],
    )


def test_what_a_tool_marks_is_in_the_facts_of_its_turn_and_a_refused_call_marks_nothing() -> None:
    class Marked(Safe):
        @tool
        def read_note(self, colour: Literal["red", "blue"]) -> str:
            """Read a note."""
            self.key_record(f"code {self.state.code}")
            if colour == "blue":
                raise ToolError("it is torn")
            self.state.read.add(colour)
            return f"code {self.state.code}"

    world = Marked()
    turns = play(
        world,
        world.make_task(7),
        [render_call(call("read_note", colour=colour)) for colour in ("blue", "red", "red")] + ["hm"],
    )
    code = world.state.code
    assert [turn.info["key_records"] for turn in turns] == [(), (f"code {code}",), (f"code {code}",), ()]


def test_success_pays_one_on_the_closing_turn_only() -> None:
    env = started()
    rewards = [env.step(render_call(made))[1] for made in list(env.oracle(env.state))]
    assert rewards == [0.0, 1.0]


def test_without_the_required_tool_neither_success_nor_a_closing_milestone_scores() -> None:
    env = started()
    _, reward, terminated, _, info = env.step(say("open_safe", code=env.state.code))
    assert terminated
    assert reward == 0.0
    assert not info["success"]
    assert info["new_milestones"] == ()


def test_a_milestone_scores_once_though_it_is_lost_and_regained() -> None:
    env = started()
    assert env.step(say("read_note", colour="red"))[-1]["new_milestones"] == ("read",)
    assert env.step(say("read_note", colour="blue"))[-1]["new_milestones"] == ()
    env.state.read.clear()
    assert env.step(say("read_note", colour="blue"))[-1]["new_milestones"] == ()


@pytest.mark.parametrize(
    ("text", "error"),
    [
        (say("fly"), "unknown_tool"),
        ("let me think", "no_call"),
        (say("open_safe"), "missing_parameter"),
        (say("read_note", colour="green"), "invalid_value"),
        (Action(say("read_note", colour="red"), "length"), "truncated"),
    ],
)
def test_an_action_that_is_no_valid_call_is_answered_and_the_episode_goes_on(text: str, error: str) -> None:
    env = started()
    before = env.state.read.copy()
    observation, reward, terminated, truncated, info = env.step(text)
    assert (info["valid"], info["parse_tier"], info["error"]) == (False, "error", error)
    assert (reward, terminated, truncated, info["state_changed"]) == (0.0, False, False, False)
    assert observation
    assert env.state.read == before
    assert env.step(say("read_note", colour="red"))[-1]["valid"]


def test_a_refused_call_restores_the_state_in_place() -> None:
    env = started()
    env.step(say("read_note", colour="red"))
    state = env.state
    observation, _, terminated, _, info = env.step(say("open_safe", code="abc"))
    assert "digits" in observation
    assert (info["valid"], info["error"], info["tool_name"]) == (False, "invalid_value", "open_safe")
    assert (info["state_changed"], terminated) == (False, False)
    assert env.state is state
    assert (state.draw, state.read) == (0, {"red"})


def test_a_tool_outside_the_tasks_list_is_masked() -> None:
    env = Safe()
    task = env.make_task(1)
    masked = Task(**{f: getattr(task, f) for f in task.__slots__} | {"tools": ("read_note", "open_safe")})
    env.reset(options={"task": masked})
    assert "roll" not in env.system_prompt
    info = env.step(say("roll", sides=[1, 2]))[-1]
    assert (info["valid"], info["error"]) == (False, "unknown_tool")


def test_a_prompt_seed_shuffles_the_tools_and_adds_distractors_that_are_masked() -> None:
    env = Safe(prompt_seed=1)
    prompts = set()
    for seed in range(20):
        env.reset(seed=seed)
        prompts.add(env.system_prompt)
        assert {spec.name for spec in env.tool_specs} >= set(env.tools)
        for spec in env.tool_specs:
            if spec.name not in env.tools:
                (parameter,) = spec.parameters["properties"]
                assert env.step(say(spec.name, **{parameter: "x"}))[-1]["error"] == "unknown_tool"
    assert len(prompts) > 10
    env.reset(seed=0)
    first = env.system_prompt
    env.reset(seed=0)
    assert env.system_prompt == first


def test_where_a_chat_template_declares_the_tools_the_prompt_says_nothing_of_them() -> None:
    world = make_env("orders", tool_schemas=True)
    world.reset(seed=1)
    assert world.system_prompt == world.instructions
    assert world.schema_tools == world.tool_specs == tuple(world.tools.values())
    plain = make_env("orders")
    plain.reset(seed=1)
    assert world.text_prompt == plain.text_prompt == plain.system_prompt
    assert plain.schema_tools == ()
    assert Safe(tool_schemas=True).system_prompt == ""


def test_what_a_chat_template_declares_is_what_the_episode_offers() -> None:
    env = Safe(tool_schemas=True, prompt_seed=1)
    offered = set()
    for seed in range(20):
        env.reset(seed=seed)
        assert env.schema_tools == env.tool_specs
        offered.add(tuple(spec.name for spec in env.schema_tools))
    assert len(offered) > 10
    assert any(len(names) > len(env.tools) for names in offered)
    env = Safe(tool_schemas=True)
    env.reset(options={"task": replace(env.make_task(1), tools=("read_note", "open_safe"))})
    assert [spec.name for spec in env.schema_tools] == ["read_note", "open_safe"]
    env = make_env("orders", tool_schemas=True, changed_surface=True)
    env.reset(seed=1)
    assert not {spec.name for spec in env.schema_tools} & set(env.tools)


@pytest.mark.parametrize("action_format", get_args(ActionFormat))
def test_a_prompt_without_tools_still_says_that_and_where_to_say_why(action_format: ActionFormat) -> None:
    env = make_env("orders", tool_schemas=True, require_reasoning=True, action_format=action_format)
    env.reset(seed=1)
    rules, why = env.system_prompt.rsplit("\n", 1)
    assert rules == env.instructions
    words = {"xml": "<think>", "pythonic": "<think>", "react": "Thought:"}.get(action_format, '"reasoning"')
    assert words in why
    assert words in env.action_text(next(iter(env.oracle(env.state))))
    assert len(run_oracle(env, env.make_task(3))) == env.make_task(3).optimal_turns


def test_a_call_is_repeated_when_made_before_from_the_same_state() -> None:
    env = started()
    assert not env.step(say("open_safe", code="a b"))[-1]["repeated"]
    assert env.step(say("open_safe", code="A  B"))[-1]["repeated"]
    assert [env.step(text)[-1]["repeated"] for text in ("hm", "Hm ")] == [False, True]


def test_a_call_is_repeated_when_made_twice_on_end_unless_it_changes_something_again() -> None:
    env = started()
    looks = [env.step(text)[-1] for text in [say("read_note", colour="red")] * 3]
    assert [info["state_changed"] for info in looks] == [True, False, False]
    assert [info["repeated"] for info in looks] == [False, True, True]
    dial = Dial()
    dial.reset(seed=3)
    assert not any(dial.step(say("turn"))[-1]["repeated"] for _ in range(3))


def test_the_seed_fixes_randomness_inside_the_episode() -> None:
    rolls = say("roll", sides=list(range(1000)))
    episodes = []
    for seed in (5, 5, 6):
        env = started(seed)
        episodes.append([env.step(rolls)[0] for _ in range(5)])
    assert episodes[0] == episodes[1] != episodes[2]


def test_the_seed_of_reset_makes_the_task_unless_one_is_given() -> None:
    env = Safe()
    _, info = env.reset(seed=11)
    assert info["task"] == env.make_task(11)
    assert info["task"].id == "safe/train/11"
    assert env.make_task(11, "test", difficulty=3).id == "safe/test/11/3"
    assert info["task"].optimal_turns == 2
    prompt, info = env.reset(seed=99, options={"task": env.make_task(11)})
    assert info["task"].seed == 11
    assert prompt == info["task"].prompt


def test_stepping_before_reset_and_after_the_end_is_refused() -> None:
    env = Safe()
    with pytest.raises(WorldError, match="not started"):
        env.step("x")
    env.reset(seed=0)
    env.step(say("open_safe", code="1"))
    with pytest.raises(WorldError, match="over"):
        env.step("x")


def test_a_task_of_another_world_or_version_is_refused() -> None:
    env = Safe()
    task = env.make_task(0)
    fields = {f: getattr(task, f) for f in task.__slots__}
    for change in ({"env": "other"}, {"content_hash": "0" * 64}, {"tools": ("fly",)}):
        with pytest.raises(WorldError):
            env.reset(options={"task": Task(**fields | change)})
    with pytest.raises(WorldError):
        env.reset(options={"task": {"seed": 1}})


def test_an_unknown_difficulty_is_refused() -> None:
    with pytest.raises(ConfigError, match="difficulties"):
        Safe(difficulty=9)
    with pytest.raises(ConfigError, match="difficulties"):
        Safe().make_task(0, difficulty=0)


class Hopeless(Safe):
    """A safe whose oracle is wrong."""

    def oracle(self, state: Box) -> Iterator[ToolCall]:
        yield call("open_safe", code="000")


def test_a_task_that_its_oracle_does_not_solve_is_named() -> None:
    env = Hopeless()
    task = env.make_task(4)
    assert task.optimal_turns is None
    with pytest.raises(UnsolvableTask, match="hopeless/train/4"):
        run_oracle(env, task)


class Fragile(Safe):
    """A safe with a defect."""

    @tool
    def kick(self) -> str:
        """Kick it."""
        raise KeyError("bolt")


def test_any_other_exception_of_a_tool_propagates() -> None:
    env = Fragile()
    env.reset(seed=0)
    with pytest.raises(KeyError, match="bolt"):
        env.step(say("kick"))


def test_tools_are_inherited_in_order() -> None:
    assert list(Fragile.tools) == ["read_note", "open_safe", "roll", "kick"]


@pytest.mark.parametrize("action_format", get_args(ActionFormat))
def test_every_action_format_is_shown_and_understood(action_format: str) -> None:
    env = Safe(action_format=action_format)
    task = env.make_task(2)
    assert len(run_oracle(env, task)) == 2
    script = [render_call(made, action_format) for made in run_oracle(env, task)]
    assert play(env, task, script)[-1].info["success"]
    assert env.system_prompt.endswith(render_call(ToolCall("NAME", {"KEY": "VALUE"}), action_format))


def test_facts_are_plain_values_that_can_be_stored() -> None:
    env = started()
    assert json.loads(json.dumps(env.step(say("read_note", colour="red"))[-1]))


def test_a_world_that_requires_reasoning_refuses_a_bare_action_and_the_oracle_gives_one():
    env = make_env("orders", require_reasoning=True)
    task = env.make_task(3)
    assert "reasoning" in env.system_prompt
    env.reset(options={"task": task})
    call = next(iter(env.oracle(env.state)))
    _, _, _, _, info = env.step(render_call(call))
    assert info["error"] == "missing_parameter"
    assert not info["state_changed"]
    assert len(run_oracle(env, task)) == task.optimal_turns
