"""A changed surface: other words for the same problem."""

import pytest

from palestra.audit import AuditSettings, audit
from palestra.envs import FaultSchedule, check_env, make_env, run_oracle
from palestra.types import ToolCall

NAMES = ("orders", "meeting_room", "alerts", "code_repair", "research_report")


@pytest.mark.parametrize("name", NAMES)
def test_the_same_tasks_are_solved_in_as_many_actions_under_other_names(name):
    own, other = make_env(name), make_env(name, changed_surface=True)
    check_env(other, seeds=range(3))
    for seed in range(10):
        task = own.make_task(seed)
        assert other.make_task(seed) == task
        assert run_oracle(other, task) == run_oracle(own, task)


@pytest.mark.parametrize("name", NAMES)
def test_no_tool_or_parameter_keeps_its_name_where_the_agent_looks(name):
    own, other = make_env(name), make_env(name, changed_surface=True)
    task = own.make_task(3)
    other.reset(seed=3, options={"task": task})
    mine = {spec.name for spec in other.tool_specs}
    assert not mine & set(own.tools)
    assert len(mine) == len(own.tools)
    shown = other.system_prompt
    for tool in own.tools:
        assert f"- {tool}(" not in shown
    call = next(iter(other.oracle(other.state)))
    text = other.action_text(call)
    assert call.tool_name not in text
    reply, _, _, _, info = other.step(text)
    assert reply.startswith("[")
    assert "\n* " in reply
    assert (info["tool_name"], info["parameters"]) == (call.tool_name, dict(call.parameters))


def test_a_call_by_its_old_name_is_an_unknown_tool_and_errors_speak_the_new_language():
    world = make_env("orders", changed_surface=True)
    task = world.make_task(3)
    world.reset(seed=3, options={"task": task})
    _, _, _, _, info = world.step('{"tool_name": "get_order", "parameters": {"order_id": "1"}}')
    assert info["error"] == "unknown_tool"
    refusal, _, _, _, info = world.step(world.action_text(ToolCall("get_order", {"order_id": "nobody"})))
    assert (info["error"], info["tool_name"]) == ("invalid_value", "get_order")
    assert "nobody is unknown" in refusal


def test_a_changed_surface_may_have_faults_and_has_no_holes():
    world = make_env("orders", changed_surface=True, faults=FaultSchedule(("timeout",), 1.0))
    task = world.make_task(1)
    world.reset(seed=1, options={"task": task})
    action = world.action_text(next(iter(world.oracle(world.state))))
    assert world.step(action)[4]["fault"] == "timeout"
    assert world.step(action)[0].startswith("[")
    result = audit(
        lambda: make_env("orders", changed_surface=True),
        "orders",
        settings=AuditSettings(tasks=8, episodes=60),
    )
    assert result.findings == (), [finding.symptom for finding in result.findings]
