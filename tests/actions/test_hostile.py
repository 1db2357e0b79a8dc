"""One megabyte of hostile text is answered in under a second, whatever the format."""

import time
from collections.abc import Callable
from typing import get_args

import pytest

from palestra.actions import ActionFormat, ParsedAction, parse_all
from palestra.types import ToolSpec

SIZE = 1_000_000
SEARCH = ToolSpec(
    "search",
    "Find pages.",
    {
        "type": "object",
        "properties": {"query": {"type": "string"}, "tags": {"type": "array", "uniqueItems": True}},
        "required": ["query"],
    },
)
CALL = '<tool_call>{"name": "search", "arguments": {"query": "'


def flood(piece: str, before: str = "", after: str = "") -> Callable[[], str]:
    return lambda: before + piece * (SIZE // len(piece)) + after


def growing_fences() -> str:
    return "\n".join("`" * (3 + i) for i in range(1400))


HOSTILE = {
    "spaces": flood(" "),
    "newlines": flood("\n"),
    "spaces inside an object": flood(" \n\t", '{"name"'),
    "no-break spaces": flood("\u00a0", '{"name"'),
    "letters": flood("a"),
    "braces": flood("{"),
    "brackets": flood("["),
    "closers": flood("]}"),
    "keys": flood('{"name":'),
    "keys with values": flood('{"name": "search", "arguments": '),
    "half objects": flood('{"name": "search", "arguments": {"query": "a" oops '),
    "unclosed keys": flood('{"a'),
    "single quotes": flood("{'"),
    "apostrophes": flood("{'a"),
    "typographic quotes": flood("{“"),
    "bare keys": flood("{a:"),
    "unclosed comments": flood('{"a"/*'),
    "comments": flood("/**/", '{"a": '),
    "line comments": flood("//\n", '{"a": '),
    "commas": flood("1,", '{"name": "search", "arguments": {"query": ['),
    "trailing commas": flood("[],", "[{", ",]"),
    "nested arrays": flood("[", '<tool_call>{"name": "search", "arguments": {"query": ', "</tool_call>"),
    "deep but closed": lambda: CALL[:-1] + "[" * 500_000 + "]" * 500_000 + "}}</tool_call>",
    "backslashes": flood("\\", CALL),
    "escapes": flood("\\n", CALL, '"}}</tool_call>'),
    "unknown escapes": flood("\\d", CALL, '"}}</tool_call>'),
    "surrogates": flood("\\ud800", CALL, '"}}</tool_call>'),
    "raw surrogates": flood("\ud800", CALL, '"}}</tool_call>'),
    "inner quotes": flood('"x" ', CALL, '"}}</tool_call>'),
    "inner quotes unclosed": flood(' "x"', CALL),
    "one long string": flood("x", CALL, '"}}</tool_call>'),
    "one long number": flood("9", '<tool_call>{"name": "search", "arguments": {"query": ', "}}</tool_call>"),
    "duplicate keys": flood(
        '"query": 1, ', '<tool_call>{"name": "search", "arguments": {', '"z": 1}}</tool_call>'
    ),
    "repeated items": flood(
        "{},", '<tool_call>{"name": "search", "arguments": {"query": "", "tags": [', "]}}"
    ),
    "encoded parameters": flood("[", '<tool_call>{"name": "search", "arguments": "', '"}</tool_call>'),
    "wrapper openers": flood("<tool_call>"),
    "wrapper openers with braces": flood("<tool_call>{"),
    "wrapper openers with strings": flood('<tool_call>{"a'),
    "wrapper openers with names": flood("<tool_call>search "),
    "wrapper openers and comments": flood("<tool_call>{/*"),
    "empty wrappers": flood("<tool_call></tool_call>"),
    "many calls": flood('<tool_call>{"name": "search", "arguments": {"query": "a"}}</tool_call>'),
    "python tags": flood("<|python_tag|>"),
    "list markers": flood("[TOOL_CALLS]"),
    "list markers with text": flood("[TOOL_CALLS] a "),
    "think openers": flood("<think>"),
    "think closers": flood("</think>"),
    "think pairs": flood("<think></think>"),
    "think closers after a call": flood("</think>", CALL + 'a"}}</tool_call>'),
    "echo openers": flood("<tools>"),
    "fences": flood("```\n"),
    "fences with json": flood('```json\n{"a": '),
    "fences on one line": flood("``` x "),
    "fences of growing length": growing_fences,
    "single backticks": flood("` {"),
    "backtick runs": flood("`a``"),
    "functions": flood("<function=search>"),
    "functions with parameters": flood("<function=search><parameter=query>"),
    "parameters": flood("<parameter=query>", "<function=search>"),
    "parameters closed once": flood("<parameter=query>", "<function=search>", "</parameter>"),
    "parameter pairs": flood("<parameter=query>a</parameter>", "<function=search>"),
    "long names": flood("a", "<function=", ">"),
    "many long names": flood("<function=" + "a" * 150),
    "invokes": flood('<invoke name="search">'),
    "argument pairs": flood("<arg_key>query</arg_key><arg_value>", "<tool_call>search"),
    "actions": flood("Thought: x\nAction: search\n"),
    "inputs": flood("Action Input: {\n"),
    "one action and many inputs": flood("Action Input: {\n", "Action: search\n"),
    "label markup": flood("*", "", "\nAction: search"),
    "indented labels": flood(" Action", "", ": search"),
    "labels in fences": flood("```\nAction: search\n"),
    "python calls": flood("search("),
    "python calls in lists": flood("[search(query="),
    "python calls in strings": flood("[search(query='"),
    "python arguments": flood("query=1, ", "[search("),
    "python lists": flood("[", "[search(query="),
    "python lines": flood("search(query='a')\n"),
    "indented python": flood("    \n"),
    "names with dots": flood("a.", "[", "("),
}


FORMATS: dict[str, tuple[ActionFormat, ...]] = {
    "functions": ("xml",),
    "functions with parameters": ("xml",),
    "parameters": ("xml",),
    "parameters closed once": ("xml",),
    "parameter pairs": ("xml",),
    "long names": ("xml", "pythonic"),
    "many long names": ("xml",),
    "invokes": ("xml",),
    "argument pairs": ("xml",),
    "think closers": get_args(ActionFormat),
    "backslashes": ("json", "react", "pythonic"),
    "actions": ("react",),
    "inputs": ("react",),
    "one action and many inputs": ("react",),
    "label markup": ("react",),
    "indented labels": ("react",),
    "labels in fences": ("react",),
    "python calls": ("pythonic",),
    "python calls in lists": ("pythonic",),
    "python calls in strings": ("pythonic",),
    "python arguments": ("pythonic",),
    "python lists": ("pythonic",),
    "python lines": ("pythonic",),
    "indented python": ("pythonic",),
    "names with dots": ("pythonic",),
    "spaces": get_args(ActionFormat),
}
"""Where a flood is aimed at; json elsewhere."""


@pytest.mark.parametrize("name", HOSTILE)
def test_a_megabyte_of_hostile_text_is_answered_at_once(name: str) -> None:
    text = HOSTILE[name]()
    for action_format in FORMATS.get(name, ("json",)):
        started = time.process_time()
        parse_all(text, [SEARCH], format=action_format)
        assert time.process_time() - started < 1.0, action_format


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_text_raises_nothing_in_any_format(name: str) -> None:
    text = HOSTILE[name]()[:20_000]
    for action_format in get_args(ActionFormat):
        assert parse_all(text, [SEARCH], format=action_format)


def test_a_valid_call_of_a_megabyte_is_read() -> None:
    text = '{"name": "search", "arguments": {"query": "' + "a" * SIZE + '"}}'
    (result,) = parse_all(text, [SEARCH])
    assert isinstance(result, ParsedAction)
    assert len(result.call.parameters["query"]) == SIZE
