"""The parsing policy, case by case: what is run, what is text, and which error the model sees."""
# ruff: noqa: E501 - a table of texts reads better unbroken

import json
import time
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from palestra.actions import ActionFormat, ParsedAction, parse_action, parse_all
from palestra.errors import ActionError, WorldError
from palestra.types import FinishReason, ToolSpec


def closed(required: list[str], **properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


TEXT = {"type": "string"}
TOOLS = [
    ToolSpec(
        "search", "", closed(["query"], query=TEXT, limit={"type": "integer", "minimum": 1}), {"q": "query"}
    ),
    ToolSpec("get_time", "", closed([])),
    ToolSpec("write_file", "", closed(["path", "content"], path=TEXT, content=TEXT)),
    ToolSpec(
        "ship",
        "",
        closed(
            ["zip"],
            zip=TEXT,
            qty={"type": "integer"},
            express={"type": "boolean"},
            price={"type": "number"},
            tags={"type": "array", "items": TEXT},
            plan={"type": "object"},
            note={"type": ["string", "null"]},
            size={"enum": [1, 2]},
            until={"anyOf": [{"type": "integer"}, {"type": "null"}]},
            unit={"$ref": "#/$defs/unit"},
        )
        | {"$defs": {"unit": {"type": "string", "enum": ["C", "F"]}}},
    ),
]
CALL = '{"name": "search", "arguments": {"query": "a"}}'
TIME = '{"name": "get_time"}'
A = ("search", {"query": "a"})
NOW: tuple[str, dict[str, Any]] = ("get_time", {})


def wrapped(text: str) -> str:
    return f"<tool_call>\n{text}\n</tool_call>"


def ship(**parameters: str) -> str:
    """A call of ship in JSON; values are given as JSON text."""
    inside = ", ".join(f'"{key}": {value}' for key, value in {"zip": '"1"', **parameters}.items())
    return wrapped(f'{{"name": "ship", "arguments": {{{inside}}}}}')


def tag(name: str, **parameters: str) -> str:
    inside = "".join(f"<parameter={key}>{value}</parameter>" for key, value in parameters.items())
    return f"<function={name}>{inside}</function>"


def react(action: str, written: str) -> str:
    return f"Thought: go\nAction: {action}\nAction Input: {written}"


def outcome(text: str, action_format: ActionFormat, finish_reason: FinishReason = "stop") -> Any:
    try:
        result = parse_action(text, TOOLS, format=action_format, finish_reason=finish_reason)
    except ActionError as error:
        return error.name
    return result.call.tool_name, dict(result.call.parameters)


JSON_CASES: list[tuple[str, Any]] = [
    # Shapes of an action object.
    ('{"tool_name": "search", "parameters": {"query": "a"}}', A),
    ('{"reasoning": "r", "tool_name": "search", "parameters": {"query": "a"}}', A),
    (wrapped('{"function": "search", "input": {"query": "a"}}'), A),
    (wrapped('{"action": "search", "action_input": {"query": "a"}}'), A),
    (wrapped('{"type": "tool_use", "id": "t1", "name": "search", "input": {"query": "a"}}'), A),
    (wrapped('{"type": "function", "function": {"name": "search", "arguments": "{\\"query\\": \\"a\\"}"}}'), A),
    (wrapped('{"tool_calls": [{"id": "1", "function": {"name": "search", "arguments": {"query": "a"}}}]}'), A),
    (wrapped('{"function_call": {"name": "search", "arguments": {"query": "a"}}}'), A),
    (wrapped(f"[{CALL}, {TIME}]"), A),
    (wrapped('search\n{"query": "a"}'), A),
    (wrapped("get_time"), NOW),
    (wrapped('{"name": "search", "parameters": null, "arguments": {"query": "a"}}'), A),
    (wrapped('{"name": "search", "tool": "search", "arguments": {"query": "a"}}'), A),
    (wrapped('{"name": "search", "tool": "get_time", "arguments": {"query": "a"}}'), "duplicate_key"),
    (wrapped('{"name": "", "arguments": {}}'), "missing_name"),
    (wrapped('{"name": 5, "arguments": {}}'), "missing_name"),
    (wrapped("{}"), "missing_name"),
    (wrapped("[]"), "no_call"),
    (wrapped("[1]"), "malformed"),
    (wrapped('"search"'), "malformed"),
    (wrapped("search for cats"), "malformed"),
    # Parameters.
    (wrapped('{"name": "search", "arguments": "\\"{\\\\\\"query\\\\\\": \\\\\\"a\\\\\\"}\\""}'), A),
    (wrapped('{"name": "search", "arguments": "{\'query\': \'a\'}"}'), A),
    (wrapped('{"name": "search", "arguments": "bert"}'), "malformed"),
    (wrapped('{"name": "search", "arguments": "{} {}"}'), "malformed"),
    (wrapped('{"name": "search", "arguments": "3"}'), "type_mismatch"),
    (wrapped('{"name": "search", "arguments": ["a"]}'), "type_mismatch"),
    (wrapped('{"name": "search", "arguments": "{\\"query\\": 1, \\"query\\": 2}"}'), "duplicate_key"),
    (wrapped('{"name": "search", "query": "a"}'), "missing_parameter"),
    (wrapped('{"name": "get_time", "zone": "a"}'), "unexpected_parameter"),
    (wrapped('{"name": "search", "arguments": {"query": "a"}, "limit": 3}'), "unexpected_parameter"),
    (wrapped('{"name": "search", "arguments": {"query": "a"}, "confidence": 1}'), A),
    (wrapped('{"name": "search", "arguments": {"querry": "a"}}'), "unexpected_parameter"),
    (wrapped('{"name": "search", "arguments": {"q": "a"}}'), A),
    (wrapped('{"name": "search", "arguments": {"q": "b", "query": "a"}}'), A),
    (wrapped('{"name": "search", "arguments": {"query": "a", "query": "a"}}'), A),
    (wrapped('{"name": "search", "arguments": {"query": "a", "query": "b"}}'), "duplicate_key"),
    (wrapped('{"name": "search", "arguments": {"query": null}}'), "type_mismatch"),
    # Names.
    (wrapped('{"name": "SEARCH", "arguments": {"query": "a"}}'), A),
    (wrapped('{"name": "search ", "arguments": {"query": "a"}}'), "unknown_tool"),
    (wrapped('{"name": "functions.search", "arguments": {"query": "a"}}'), "unknown_tool"),
    (wrapped('{"name": "search<|channel|>", "arguments": {"query": "a"}}'), "unknown_tool"),
    # Types come from the schema.
    (ship(qty='"3"'), ("ship", {"zip": "1", "qty": 3})),
    (ship(qty='" 3 "'), ("ship", {"zip": "1", "qty": 3})),
    (ship(qty="3.0"), ("ship", {"zip": "1", "qty": 3})),
    (ship(qty='"3.5"'), "type_mismatch"),
    (ship(qty="3.5"), "type_mismatch"),
    (ship(qty='"1_000"'), "type_mismatch"),
    (ship(qty='"３"'), "type_mismatch"),
    (ship(qty='""'), "type_mismatch"),
    (ship(qty="[3]"), "type_mismatch"),
    (ship(zip="10001"), "type_mismatch"),
    (ship(price='"2.50"'), ("ship", {"zip": "1", "price": 2.5})),
    (ship(price='"NaN"'), "type_mismatch"),
    (ship(price='"1e999"'), "type_mismatch"),
    (ship(price="NaN"), "malformed"),
    (ship(price="-Infinity"), "malformed"),
    (ship(price="1e999"), "invalid_value"),
    (ship(express='"True"'), ("ship", {"zip": "1", "express": True})),
    (ship(express='"yes"'), "type_mismatch"),
    (ship(express="1"), "type_mismatch"),
    (ship(tags='"[\\"a\\"]"'), ("ship", {"zip": "1", "tags": ["a"]})),
    (ship(tags='"a, b"'), "type_mismatch"),
    (ship(tags="[1]"), "type_mismatch"),
    (ship(plan='"{\\"a\\": 1}"'), ("ship", {"zip": "1", "plan": {"a": 1}})),
    (ship(plan='"{\\"a\\": 1, \\"a\\": 2}"'), "duplicate_key"),
    (ship(note='"null"'), ("ship", {"zip": "1", "note": "null"})),
    (ship(until='"null"'), ("ship", {"zip": "1", "until": None})),
    (ship(until='"7"'), ("ship", {"zip": "1", "until": 7})),
    (ship(until='"x"'), "type_mismatch"),
    (ship(size='"2"'), ("ship", {"zip": "1", "size": 2})),
    (ship(size="3"), "invalid_value"),
    (ship(unit='"K"'), "invalid_value"),
    (ship(unit='"C"'), ("ship", {"zip": "1", "unit": "C"})),
    # Wrappers, fences, bare objects, and what is only text.
    ("\ufeff" + wrapped(CALL).replace("\n", "\r\n"), A),
    (f"```json\r\n{CALL}\r\n```", A),
    (f"~~~\n{CALL}\n~~~", A),
    (f"```json {CALL}```", A),
    (f"```json\n{CALL}", A),
    (f"```xml\n{wrapped(CALL)}\n```", A),
    (wrapped(f"```json\n{CALL}\n```"), A),
    (f"[TOOL_CALLS] [{CALL}]", A),
    (f"<function_call>{CALL}</function_call>", A),
    (f"{CALL}\n{wrapped(TIME)}", NOW),
    (f"{TIME}\n```\n{CALL}\n```", A),
    (f"[{CALL}, {TIME}]", A),
    (CALL[:-1], A),
    (CALL + "}", A),
    (wrapped(CALL[:-2]), A),
    (wrapped(CALL + "}"), A),
    (wrapped('{"name": "search", "arguments": {"query": "a"}}, "limit": 3}'), "malformed"),
    ('{"name": "search", "arguments": {"query": "a"}}, "limit": 3}', "malformed"),
    ('{"name": "search", "arguments": {"query": }}', "malformed"),
    ('{"name": "demo", "arguments": {"query": }}', "no_call"),
    ('{"tool_name": "serach", "parameters": {}}', "unknown_tool"),
    ('{"tool_name": "serach", "parameters": {}} or ' + CALL, A),
    ('{"name": "serach", "parameters": {}}', "no_call"),
    ('{"name": "demo", "body": {"name": "get_time"}}', "no_call"),
    ('{"name": "demo", "body": oops {"name": "get_time"}}', "no_call"),
    ("{'tis the season} " + CALL, A),
    (f"Use `{CALL}` for that.", "no_call"),
    (f"Write `<tool_call>{CALL}</tool_call>` for that.", "no_call"),
    ("Put it between <tool_call> and </tool_call> tags.", "no_call"),
    ('<tool_call>\n{"name": <function-name>, "arguments": <args>}\n</tool_call>', "no_call"),
    (wrapped('{"name": "<tool>", "arguments": {}}') + wrapped(CALL), A),
    (f"```python\nprint({CALL})\n```", "no_call"),
    (f"<tools>\n{CALL}\n</tools>", "no_call"),
    (f"<tool_response>{CALL}</tool_response>", "no_call"),
    ('{"type": "function", "function": {"name": "get_time", "parameters": {"type": "object", "properties": {}}}}', "no_call"),
    ('{"name": "write_file", "arguments": {"path": "p", "content": "<tool_call>{\'name\': \'get_time\'}</tool_call>"}}',
     ("write_file", {"path": "p", "content": "<tool_call>{'name': 'get_time'}</tool_call>"})),
    ('{"name": "write_file", "arguments": {"path": "p", "content": "```json {\'name\': \'get_time\'}```"}}',
     ("write_file", {"path": "p", "content": "```json {'name': 'get_time'}```"})),
    # Reasoning.
    (f"<think>{wrapped(CALL)}</think>{wrapped(TIME)}", NOW),
    (f"<THINK>{wrapped(CALL)}</THINK>{wrapped(TIME)}", NOW),
    (f"<thinking>{wrapped(CALL)}</thinking>{wrapped(TIME)}", NOW),
    (f"<think>{wrapped(CALL)}", "no_call"),
    (f"<think>a <think>b</think> {wrapped(CALL)}</think>{wrapped(TIME)}", NOW),
    (f"the <think> tag {wrapped(CALL)}</think>{wrapped(TIME)}", NOW),
    (f"{wrapped(CALL)}</think> The answer is 4.", "no_call"),
    (f"{wrapped(CALL)}\n<think>and now?</think>", A),
    ('{"name": "search", "arguments": {"query": "</think>"}}', ("search", {"query": "</think>"})),
    # Ends.
    ("<tool_call>", "truncated"),
    ('<tool_call>{"name": "search", "arguments": {"query": "San Fran', "truncated"),
    ('<tool_call>{"name": "search", "arguments": {"query": "a", "limit": 1', "truncated"),
    ('<tool_call>{"name": "search", "arguments": {"query": "a",', "truncated"),
    ("", "no_call"),
    ("No action.", "no_call"),
    ('{"tool_name": "search", "parameters": {"query": "a\ud83d"}}', ("search", {"query": "a\ufffd"})),
    ('{"tool_name": "search", "parameters": {"query": "\ud83d\ude00"}}', ("search", {"query": "😀"})),
]  # fmt: skip

XML_CASES: list[tuple[str, Any]] = [
    (tag("search", query="a"), A),
    (wrapped(tag("search", query="\na\n")), A),
    (tag("search", query="\r\na\r\n"), A),
    (tag("search", query="\n\n a < b &amp; c\n\n"), ("search", {"query": "\n a < b &amp; c\n"})),
    (tag("search", query=""), ("search", {"query": ""})),
    (tag("search", query="a", limit=" 7 "), ("search", {"query": "a", "limit": 7})),
    ('<function="search"><parameter="query">a</parameter></function>', A),
    ('<invoke name="search">\n<parameter name="query">a</parameter>\n</invoke>', A),
    ("<function=search><parameter=query>a</parameter>", A),
    ('<function=search>{"query": "a"}</function>', A),
    ("<tool_call>get_time\n</tool_call>", NOW),
    ("<tool_call>search<arg_key>query</arg_key>\n<arg_value>a</arg_value></tool_call>", A),
    ("<tool_call>search<arg_key>query</arg_key></tool_call>", "malformed"),
    ("<tool_call>search<arg_key>query</arg_key><arg_value>a", "truncated"),
    (wrapped(CALL), A),
    (CALL, "no_call"),
    ("Use `<function=search>` for that.", "no_call"),
    (tag("write_file", path="p", content="a </function> b </tool_call> c"), ("write_file", {"path": "p", "content": "a </function> b </tool_call> c"})),
    (tag("write_file", path="p", content="a </parameter> b"), "malformed"),
    (tag("write_file", path="p", content="a <parameter=x> b"), "malformed"),
    ("<function=write_file><parameter=path>p</parameter><parameter=content>half", "truncated"),
    ("<function=write_file><parameter=path>p</parameter><parameter=content>half</function>", "malformed"),
    ("<function=search>", "truncated"),
    ("<function=search>a<parameter=query>b</parameter></function>", "malformed"),
    ("<function=search><query>a</query></function>", "malformed"),
    (tag("serach", query="a"), "unknown_tool"),
    (tag("search", querry="a"), "unexpected_parameter"),
    (tag("search", limit="1"), "missing_parameter"),
    (tag("search", q="a"), A),
    ("<function=search><parameter=query>a</parameter><parameter=query>a</parameter></function>", A),
    (tag("ship", zip="04101", express="False", price="1.50", note="null"), ("ship", {"zip": "04101", "express": False, "price": 1.5, "note": "null"})),
    (tag("ship", zip="1", tags="('a', \"b\")"), ("ship", {"zip": "1", "tags": ["a", "b"]})),
    (tag("ship", zip="1", tags="{'a'}"), "type_mismatch"),
    (tag("ship", zip="1", tags="['a' 'b']"), "type_mismatch"),
    (tag("ship", zip="1", tags="['a'] + ['b']"), "type_mismatch"),
    (tag("ship", zip="1", plan="{'a': 1j}"), "type_mismatch"),
    (tag("ship", zip="1", plan='{"a": 1, "a": 2}'), "duplicate_key"),
    (tag("ship", zip="1", qty="9" * 5000), "type_mismatch"),
    (f"<think>{tag('search', query='a')}</think>{tag('get_time')}", NOW),
    (tag("search", query="</think>"), ("search", {"query": "</think>"})),
]  # fmt: skip

REACT_CASES: list[tuple[str, Any]] = [
    (react("search", '{"query": "a"}'), A),
    (react("search", "{'query': 'a'}"), A),
    (react("search", '{"query": "a"'), A),
    (react("search", '{"query": "a"\nObservation: x'), A),
    (react("search", '"{\\"query\\": \\"a\\"}"'), A),
    (react("search", '```json\n{"query": "a"}'), A),
    (react("search", '{"query": "a"}\nAction: get_time'), A),
    (react("`search`", '{"query": "a"}'), A),
    (react("[search]", '{"query": "a"}'), A),
    (react("get_time", ""), NOW),
    (react("get_time", "None"), NOW),
    (react("search", "cats"), "malformed"),
    (react("search", '{"query": "a"}, "limit": 3}'), "malformed"),
    (react("search", '{"query": "San Fran'), "truncated"),
    (react("serach", '{"query": "a"}'), "unknown_tool"),
    (react("write_file", '{"path": "p", "content": "1\nObservation: 2\nAction: 3"}'), ("write_file", {"path": "p", "content": "1\nObservation: 2\nAction: 3"})),
    ("Action:\nsearch\nAction Input:\n" + '{"query":\n"a"}', A),
    ('Action: {"tool_name": "search", "parameters": {"query": "a"}}', A),
    ('Action:\n```json\n{"action": "search", "action_input": {"query": "a"}}\n```', A),
    ('Action: search(query="a")', A),
    ("Action: get_time()", NOW),
    ('Action: search("a")', "malformed"),
    ("Action: search[a]", "unknown_tool"),
    ('action: search\naction input: {"query": "a"}', A),
    ('Action：search\nAction Input：{"query": "a"}', A),
    ('Action: search\nThought: hm\nAction Input: {"query": "a"}', "missing_parameter"),
    ("Thought: like\n```\nAction: get_time\n```\n" + react("search", '{"query": "a"}'), A),
    ("```\n" + react("search", '{"query": "a"}') + "\n```", A),
    ("<think>Action: get_time</think>\n" + react("search", '{"query": "a"}'), A),
    ("Final Answer: 4\n" + react("search", '{"query": "a"}'), "no_call"),
    ("Thought: done\nAction: None", "no_call"),
    ("Action:", "missing_name"),
    ("I take no Action: today", "no_call"),
]  # fmt: skip

PYTHONIC_CASES: list[tuple[str, Any]] = [
    ('[search(query="a")]', A),
    ("[search(query='a',)]", A),
    ("search(query='a')", A),
    ("```python\nsearch(query='a')\n```", A),
    ("<|python_tag|>search(query='a')", A),
    ("Sure: [search(query='a')]", A),
    ("[search(query='a'), get_time()]", A),
    ('[search(**{"query": "a"})]', A),
    ('[search({"query": "a"})]', A),
    ("[search(query='a', query='a')]", A),
    ("[search(query='a', query='b')]", "duplicate_key"),
    ("[search(query='a'", A),
    ("[search(query='a", "truncated"),
    ("[search(query='a', limit=1", "truncated"),
    ('[search("a")]', "malformed"),
    ("[search(query=a)]", "malformed"),
    ("[search(query='a' 'b')]", "malformed"),
    ("[search(query='a' + 'b')]", "malformed"),
    ("[search(query=('a'))]", "malformed"),
    ("[search(query=f'a')]", "malformed"),
    ("[search(query=search(query='a'))]", "malformed"),
    ("[search(query='a').run()]", "malformed"),
    ("[search(query='a'), broken(]", A),
    ("[ship(zip='1', price=1+2)]", "malformed"),
    ("[ship(zip='1', price=1j)]", "malformed"),
    ("[ship(zip='1', tags={'a'})]", "malformed"),
    ("[ship(zip=b'1')]", "malformed"),
    ("[ship(zip='1', express=True, note=None, tags=['a', \"b\"])]", ("ship", {"zip": "1", "express": True, "note": None, "tags": ["a", "b"]})),
    ('[write_file(path="p", content="""1\n"2" 3""")]', ("write_file", {"path": "p", "content": '1\n"2" 3'})),
    ("[search(query='a', limit=True)]", "type_mismatch"),
    ("[serach(query='a')]", "unknown_tool"),
    ("I call search(query='a') now.", "no_call"),
    ("Use `search(query='a')` for that.", "no_call"),
    ("Note(s): none", "no_call"),
    ("x = search(query='a')", "no_call"),
    ("<think>[search(query='a')]</think>[get_time()]", NOW),
    ("[]", "no_call"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "expected"), JSON_CASES)
def test_json(text: str, expected: Any) -> None:
    assert outcome(text, "json") == expected


@pytest.mark.parametrize(("text", "expected"), XML_CASES)
def test_xml(text: str, expected: Any) -> None:
    assert outcome(text, "xml") == expected


@pytest.mark.parametrize(("text", "expected"), REACT_CASES)
def test_react(text: str, expected: Any) -> None:
    assert outcome(text, "react") == expected


@pytest.mark.parametrize(("text", "expected"), PYTHONIC_CASES)
def test_pythonic(text: str, expected: Any) -> None:
    assert outcome(text, "pythonic") == expected


@pytest.mark.parametrize(
    ("text", "expected"), [(wrapped(CALL), A), (CALL, "no_call"), (f"```\n{CALL}\n```", "no_call")]
)
def test_hermes_needs_the_wrapper(text: str, expected: Any) -> None:
    assert outcome(text, "hermes") == expected


@pytest.mark.parametrize("text", [CALL, wrapped(CALL), CALL[:-9], "", "Let me think"])
def test_a_text_cut_at_the_length_limit_is_never_run(text: str) -> None:
    assert outcome(text, "json", "length") == "truncated"


@pytest.mark.parametrize(
    ("text", "tier"),
    [
        (CALL, "strict"),
        (f"\n{CALL}\n", "strict"),
        (f"<think>hm</think>\n{wrapped(CALL)}", "strict"),
        (wrapped(CALL) + "<|im_end|>", "strict"),
        (f"Here: {CALL}", "repaired"),
        (f"```json\n{CALL}\n```", "repaired"),
        (wrapped(CALL + "}"), "repaired"),
        (f"<tool_call>{CALL}", "repaired"),
        (CALL.replace('"', "'"), "repaired"),
        (wrapped('{"name": "search", "arguments": {"q": "a"}}'), "repaired"),
        (wrapped('{"name": "Search", "arguments": {"query": "a"}}'), "repaired"),
        (ship(qty='"3"'), "repaired"),
    ],
)
def test_the_tier_is_strict_only_when_nothing_was_changed(text: str, tier: str) -> None:
    result = parse_action(text, TOOLS)
    assert result.tier == tier
    assert bool(result.notes) == (tier == "repaired")


def test_further_calls_are_counted_and_not_run() -> None:
    text = wrapped(CALL) + wrapped(TIME) + wrapped('{"name": }')
    assert parse_action(text, TOOLS).left_over == 2
    first, second, third = parse_all(text, TOOLS)
    assert isinstance(first, ParsedAction)
    assert isinstance(second, ParsedAction)
    assert isinstance(third, ActionError)
    assert third.name == "malformed"


def test_a_call_after_a_broken_one_is_found_but_the_broken_one_comes_first() -> None:
    first, second = parse_all(wrapped('{"name": }') + wrapped(CALL), TOOLS)
    assert isinstance(first, ActionError)
    assert isinstance(second, ParsedAction)


def test_what_stood_inside_a_broken_call_is_not_run() -> None:
    broken = '{"name": "write_file", "arguments": {"content": "<tool_call>{\'name\': \'get_time\'}</tool_call>", oops}}'
    (only,) = parse_all(wrapped(broken), TOOLS)
    assert isinstance(only, ActionError)


@pytest.mark.parametrize(
    ("text", "action_format", "reasoning"),
    [
        ('{"reasoning": "r", "tool_name": "get_time", "parameters": {}}', "json", "r"),
        ('{"thought": "r", "name": "get_time"}', "json", "r"),
        (f"<think>\nr\n</think>{wrapped(TIME)}", "json", "r"),
        (f"r</think>{wrapped(TIME)}", "json", "r"),
        (wrapped(TIME), "json", None),
        ("Thought: r\nAction: get_time", "react", "r"),
        ("r\n\nAction: get_time", "react", "r"),
        ("Action: get_time", "react", None),
        (f"<think>r</think>{tag('get_time')}", "xml", "r"),
        ("<think>r</think>[get_time()]", "pythonic", "r"),
    ],
)
def test_the_reasoning_is_kept(text: str, action_format: ActionFormat, reasoning: str | None) -> None:
    assert parse_action(text, TOOLS, format=action_format).call.reasoning == reasoning


@pytest.mark.parametrize(
    "value", ["((7**99)**99)**99", "().__class__.__bases__[0]", "__import__('os')", "1+1"]
)
def test_no_expression_is_ever_computed(value: str) -> None:
    began = time.perf_counter()
    for text, action_format in (
        (f'{{"name": "search", "arguments": {{"query": {value}}}}}', "json"),
        (f"search(query={value})", "pythonic"),
        (f"{{'name': 'search', 'arguments': {{'query': {value}}}}}", "json"),
    ):
        with pytest.raises(ActionError) as caught:
            parse_action(text, TOOLS, format=action_format)  # type: ignore[arg-type]
        assert caught.value.name == "malformed"
    assert time.perf_counter() - began < 1


def test_two_tools_that_differ_by_case_are_not_guessed_between() -> None:
    tools = [ToolSpec("run", "", closed([])), ToolSpec("Run", "", closed([]))]
    with pytest.raises(ActionError, match="no tool"):
        parse_action('{"tool_name": "RUN", "parameters": {}}', tools)
    assert parse_action('{"tool_name": "Run", "parameters": {}}', tools).call.tool_name == "Run"


def test_undeclared_parameters_pass_only_where_the_schema_says_so() -> None:
    text = '{"tool_name": "t", "parameters": {"x": 1}}'
    with pytest.raises(ActionError) as caught:
        parse_action(text, [ToolSpec("t", "", {"type": "object"})])
    assert caught.value.name == "unexpected_parameter"
    opened = ToolSpec("t", "", {"type": "object", "additionalProperties": True})
    assert parse_action(text, [opened]).call.parameters == {"x": 1}


def test_a_schema_that_is_none_is_the_worlds_mistake() -> None:
    with pytest.raises(WorldError, match="tool t"):
        parse_action('{"tool_name": "t", "parameters": {}}', [ToolSpec("t", "", {"type": "no such type"})])


PIECES = st.sampled_from(
    ["<tool_call>", "</tool_call>", "<think>", "</think>", "```", "```json\n", "{", "}", "[", "]", '"', "'", ":", ",", "\\", "\n",
     '"name"', '"search"', '"arguments"', '"query"', CALL, "<function=search>", "<parameter=query>", "</parameter>", "</function>",
     "Action:", "Action Input:", "Thought:", "Observation:", "search(", "query=", ")", "1", "e", ".", " ", "\ud800", "“", "：", "<|python_tag|>"]
)  # fmt: skip


@given(
    st.text() | st.lists(PIECES, max_size=30).map("".join),
    st.sampled_from(get_args(ActionFormat)),
)
def test_no_text_raises_anything_else_and_every_call_is_valid(text: str, action_format: ActionFormat) -> None:
    for result in parse_all(text, TOOLS, format=action_format):
        if isinstance(result, ParsedAction):
            again = json.dumps(
                {"tool_name": result.call.tool_name, "parameters": dict(result.call.parameters)},
                ensure_ascii=False,
            )
            again.encode()
            assert parse_action(again, TOOLS).call.parameters == result.call.parameters
