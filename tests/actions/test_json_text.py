"""The reader of JSON: strict text unchanged, repairs with one reading, everything else refused."""

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from palestra.actions.json_text import MAX_DEPTH, Reader, Unreadable

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)
FRAGMENTS = [
    "{",
    "}",
    "[",
    "]",
    ",",
    ":",
    '"',
    "'",
    "\\",
    "a",
    "1",
    "-",
    ".5",
    "e9",
    "true",
    "None",
    " ",
    "\n",
    "//",
    "/*",
    "“",
    "：",
]


def refused(text: str) -> str:
    with pytest.raises(Unreadable) as caught:
        Reader(text).read(0)
    return caught.value.kind


@given(JSON, st.booleans())
def test_valid_json_is_read_as_it_is_and_without_notes(value: Any, ascii_only: bool) -> None:
    text = json.dumps(value, ensure_ascii=ascii_only)
    read = Reader(text).read(0)
    if not any("\ud800" <= char <= "\udfff" for char in json.dumps(value, ensure_ascii=False)):
        assert json.dumps(read.value) == json.dumps(value)
    assert read.notes == ()
    assert read.end == len(text)


@given(st.lists(st.sampled_from(FRAGMENTS), max_size=25).map("".join))
def test_no_notes_means_that_the_json_library_agrees(text: str) -> None:
    try:
        read = Reader(text).read(0)
    except Unreadable:
        return
    if not read.notes and read.duplicate is None:
        assert json.loads(text[: read.end]) == read.value


@given(JSON)
def test_python_literals_are_read_too(value: Any) -> None:
    if any("\ud800" <= char <= "\udfff" for char in repr(value)) or "\\" in repr(value):
        return
    assert json.dumps(Reader(repr(value)).read(0).value) == json.dumps(value)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('{"a": 1,}', {"a": 1}),
        ("[1, 2,]", [1, 2]),
        ("{'a': \"it's\"}", {"a": "it's"}),
        ("{'a': 'it\\'s \\x41'}", {"a": "it's A"}),
        ("{a: 1, $b: 2}", {"a": 1, "$b": 2}),
        ("[True, False, None]", [True, False, None]),
        ("(1, 'b')", [1, "b"]),
        ("()", []),
        ('{"a": "x\ny\tz"}', {"a": "x\ny\tz"}),
        ('{"a": "id \\d+"}', {"a": "id \\d+"}),
        ('{"a": "\\u12"}', {"a": "\\u12"}),
        ("{“a”：“b，c：d”，}", {"a": "b，c：d"}),
        ('{"a": “b "c" d”}', {"a": 'b "c" d'}),
        ('{\'\'\'a\'\'\': """b\n"c" d"""}', {"a": 'b\n"c" d'}),
        ('{"a": 1 /* one */, # two\n "b": "http://x" // three\n}', {"a": 1, "b": "http://x"}),
        ('\ufeff\u00a0{"a":\u00a01}', {"a": 1}),
        ('{"a": [1, {"b": "c"', {"a": [1, {"b": "c"}]}),
        ('{"a": [1\n</tool_call>', {"a": [1]}),
        ('{"a": true', {"a": True}),
        ('{"a": "say "hi" twice "ok" now"}', {"a": 'say "hi" twice "ok" now'}),
        ('{"a": "\\ud83d\\ude00 \\udce9", }', {"a": "😀 \ufffd"}),
        ("{'a': '\\ud83d\\ude00'}", {"a": "😀"}),
    ],
)
def test_a_repair_with_one_reading_is_made_and_noted(text: str, value: Any) -> None:
    read = Reader(text).read(0)
    assert read.value == value
    assert read.notes


@pytest.mark.parametrize(
    "text",
    [
        "{1, 2}",
        "{'a', 'b'}",
        "b'a'",
        "{'a': b'b'}",
        "[1j]",
        "[1 + 2]",
        "[2+3]",
        "['a' 'b']",
        '["a" "b"]',
        '["a" + "b"]',
        "(1)",
        "[('a')]",
        "[1 2]",
        "[,]",
        "[1,,2]",
        "{,}",
        '{"a": }',
        '{"a" 1}',
        '{"a": 1 "b": 2}',
        '{"a": "x" "b": "y"}',
        '{"a": "use "b", "c": 1}',
        '{"a": "say "hi", ok"}',
        '{"a": "the 5" pipe"}',
        "{'a': 'it's'}",
        "[NaN]",
        "[Infinity]",
        "[-Infinity]",
        "[nan]",
        "[01]",
        "[1.]",
        "[.5]",
        "[+1]",
        "[0x10]",
        "[1_000]",
        "[open('x')]",
        "[f'x']",
        "{1: 2}",
        "[a]",
        "[1}",
        '{"a": ["b"}',
        "hello",
        "[/* x",
    ],
)
def test_anything_else_is_refused(text: str) -> None:
    assert refused(text) == "malformed"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[",
        "[[",
        "{",
        '{"a',
        '{"a"',
        '{"a":',
        '{"a": "b',
        '{"a": 1',
        '{"a": 1,',
        '[1, "b',
        "{“a",
        "{'a",
        "{'a': '''b'",
    ],
)
def test_an_end_in_the_middle_of_something_is_truncated(text: str) -> None:
    assert refused(text) == "truncated"


def test_numbers_keep_every_digit_and_stay_finite() -> None:
    assert Reader("[12345678901234567890, -0, 1e3, 1.5]").read(0).value == [
        12345678901234567890,
        0,
        1000.0,
        1.5,
    ]
    assert refused("[1e999]") == "invalid_value"
    assert refused("[" + "9" * 5000 + "]") == "invalid_value"


def test_a_key_given_twice_is_reported_only_when_the_values_differ() -> None:
    assert Reader('{"a": {"b": 1, "b": 1}}').read(0).duplicate is None
    assert Reader('{"a": {"b": 1, "b": 2}}').read(0).duplicate == "b"
    assert Reader('{"a": 1, "a": true}').read(0).duplicate == "a"
    assert Reader('{"a": 1, "b": 1, "\\u0061": 2}').read(0).duplicate == "a"


def test_depth_is_limited() -> None:
    assert Reader("[" * MAX_DEPTH + "]" * MAX_DEPTH).read(0).end == 2 * MAX_DEPTH
    deep = MAX_DEPTH + 1
    assert refused("[" * deep + "]" * deep) == "malformed"
    assert refused("[" * deep) == "truncated"


def test_reading_begins_and_ends_where_the_value_does() -> None:
    read = Reader('xx {"a": 1} yy').read(3)
    assert (read.value, read.end) == ({"a": 1}, 11)


def test_a_float_is_what_the_json_library_reads() -> None:
    assert math.isclose(Reader("0.1").read(0).value, 0.1)
