"""What is rendered is read back unchanged; what the model sees of an error is short and clean."""
# ruff: noqa: E501 - a table of texts reads better unbroken

import json
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from palestra.actions import ActionFormat, error_observation, parse_action, render_call
from palestra.errors import ActionError
from palestra.types import ToolCall, ToolSpec

KINDS: dict[str, st.SearchStrategy[Any]] = {
    "string": st.text(st.characters(exclude_categories=["Cs"])),
    "integer": st.integers(),
    "number": st.floats(allow_nan=False, allow_infinity=False),
    "boolean": st.booleans(),
    "array": st.lists(
        st.text(st.characters(exclude_categories=["Cs"])) | st.integers() | st.none(), max_size=3
    ),
    "object": st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), st.booleans(), max_size=3),
}
MARKUP = st.lists(
    st.sampled_from(["</parameter>", "<parameter=a>", "</function>", "</tool_call>", "</think>", "<think>", "\n", "\r", "Action: x", '"', "`", "\\", "{"]),
    max_size=6,
).map("".join)  # fmt: skip
NAMES = st.from_regex(r"[a-z_][a-z0-9_]{0,8}", fullmatch=True).filter(
    lambda name: name not in {"none", "null", "nothing", "finish"}
)


@st.composite
def calls(draw: st.DrawFn) -> tuple[ToolCall, ToolSpec]:
    kinds = draw(
        st.dictionaries(
            NAMES | st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=4),
            st.sampled_from(sorted(KINDS)),
            max_size=4,
        )
    )
    parameters = {
        key: draw(MARKUP | KINDS[kind] if kind == "string" else KINDS[kind]) for key, kind in kinds.items()
    }
    schema = {"type": "object", "properties": {key: {"type": kind} for key, kind in kinds.items()}}
    name = draw(NAMES)
    return ToolCall(name, parameters), ToolSpec(name, "", schema)


@pytest.mark.parametrize("action_format", get_args(ActionFormat))
@given(pair=calls())
def test_a_rendered_call_is_read_back_at_tier_strict(
    action_format: ActionFormat, pair: tuple[ToolCall, ToolSpec]
) -> None:
    call, tool = pair
    text = render_call(call, action_format)
    parsed = parse_action(text, [tool], format=action_format)
    assert parsed.call == call
    assert json.dumps(parsed.call.parameters) == json.dumps(dict(call.parameters))
    assert (parsed.tier, parsed.left_over) == ("strict", 0)


@pytest.mark.parametrize("action_format", ["json", "hermes", "qwen", "llama"])
@given(reasoning=MARKUP | KINDS["string"])
def test_reasoning_in_json_is_exact(action_format: ActionFormat, reasoning: str) -> None:
    call = ToolCall("t", {}, reasoning)
    assert (
        parse_action(render_call(call, action_format), [ToolSpec("t", "", {})], format=action_format).call
        == call
    )


@pytest.mark.parametrize("action_format", ["xml", "react", "pythonic"])
@given(reasoning=MARKUP | KINDS["string"])
def test_reasoning_as_prose_never_changes_the_call(action_format: ActionFormat, reasoning: str) -> None:
    text = render_call(ToolCall("t", {}, reasoning), action_format)
    parsed = parse_action(text, [ToolSpec("t", "", {})], format=action_format)
    assert (parsed.call.tool_name, parsed.call.parameters, parsed.tier) == ("t", {}, "strict")


@pytest.mark.parametrize("action_format", get_args(ActionFormat))
def test_plain_reasoning_is_read_back(action_format: ActionFormat) -> None:
    call = ToolCall("track", {"order_id": "48213"}, "First find the parcel.")
    tool = ToolSpec("track", "", {"properties": {"order_id": {"type": "string"}}})
    assert parse_action(render_call(call, action_format), [tool], format=action_format).call == call


def test_the_canonical_texts() -> None:
    call = ToolCall("track", {"id": "é", "n": 2, "all": True}, "r")
    assert (
        render_call(call)
        == '{"reasoning": "r", "tool_name": "track", "parameters": {"id": "é", "n": 2, "all": true}}'
    )
    assert render_call(call, "hermes") == f"<tool_call>\n{render_call(call)}\n</tool_call>"
    assert render_call(call, "qwen") == (
        '<tool_call>\n{"reasoning": "r", "name": "track", "arguments": {"id": "é", "n": 2, "all": true}}'
        "\n</tool_call>"
    )
    assert (
        render_call(call, "llama")
        == '{"reasoning": "r", "name": "track", "parameters": {"id": "é", "n": 2, "all": true}}'
    )
    assert (
        render_call(call, "react")
        == 'Thought: r\nAction: track\nAction Input: {"id": "é", "n": 2, "all": true}'
    )
    assert render_call(call, "pythonic") == '<think>\nr\n</think>\n[track(id="é", n=2, all=True)]'
    assert render_call(ToolCall("track", {"id": "x"}), "xml") == (
        "<tool_call>\n<function=track>\n<parameter=id>\nx\n</parameter>\n</function>\n</tool_call>"
    )


TOOL = ToolSpec(
    "track",
    "",
    {
        "type": "object",
        "properties": {
            "order_id": {"type": "string"},
            "unit": {"enum": ["kg", "lb"]},
            "n": {"type": "integer", "maximum": 9},
        },
        "required": ["order_id"],
        "additionalProperties": False,
    },
)


@pytest.mark.parametrize(
    ("text", "name", "part"),
    [
        ('{"tool_name": "trakc", "parameters": {}}', "unknown_tool", "Did you mean track?"),
        ('{"tool_name": "track", "parameters": {}}', "missing_parameter", "order_id"),
        (
            '{"tool_name": "track", "parameters": {"order": "1"}}',
            "unexpected_parameter",
            "Did you mean order_id?",
        ),
        ('{"tool_name": "track", "parameters": {"order_id": 1}}', "type_mismatch", "order_id must be string"),
        (
            '{"tool_name": "track", "parameters": {"order_id": "1", "unit": "g"}}',
            "invalid_value",
            '"kg", "lb"',
        ),
        ('{"tool_name": "track", "parameters": {"order_id": "1", "n": 10}}', "invalid_value", "maximum: 9"),
        ("I wait.", "no_call", '"tool_name"'),
    ],
)
def test_an_error_tells_the_model_how_to_write_it_right(text: str, name: str, part: str) -> None:
    with pytest.raises(ActionError) as caught:
        parse_action(text, [TOOL])
    seen = json.loads(error_observation(caught.value))
    assert seen["error"] == name
    assert part in seen["message"]
    assert len(seen["message"]) < 300


@given(st.text(), st.text(), st.text())
def test_no_error_repeats_markup_that_the_model_wrote(name: str, key: str, value: str) -> None:
    marker = "<|im_start|>"
    texts = [
        json.dumps({"tool_name": marker + name, "parameters": {}}),
        json.dumps({"tool_name": "track", "parameters": {marker + key: 1}}),
        json.dumps({"tool_name": "track", "parameters": {"order_id": "1", "unit": marker + value}}),
    ]
    for text in texts:
        with pytest.raises(ActionError) as caught:
            parse_action(text, [TOOL])
        assert marker not in error_observation(caught.value)
