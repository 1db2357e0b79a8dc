"""The checker of case files reports, and never crashes or skips."""

import json
from pathlib import Path
from typing import Any

import pytest

from palestra.actions import CaseReport, check_cases
from palestra.errors import ConfigError

TOOL = {"name": "search", "parameters": {"type": "object", "properties": {"q": {"type": "string"}, "n": {}}}}
TEXT = '{"tool_name": "search", "parameters": {"q": "x"}}'
CALL = {"tool_name": "search", "parameters": {"q": "x"}}


def case(**changes: Any) -> dict[str, Any]:
    return {"id": "one", "format": "json", "text": TEXT, "tools": [TOOL], "expected": CALL, **changes}


def report(tmp_path: Path, *lines: dict[str, Any] | str) -> CaseReport:
    path = tmp_path / "cases.jsonl"
    texts = [line if isinstance(line, str) else json.dumps(line) for line in lines]
    path.write_text("\n".join(texts), encoding="utf-8")
    return check_cases(path)


def test_a_passing_case_passes_and_blank_lines_do_not_count(tmp_path: Path) -> None:
    result = report(tmp_path, case(), "", "  ")
    assert (result.total, result.passed, result.ok) == (1, 1, True)


def test_a_failure_shows_both_answers(tmp_path: Path) -> None:
    (failure,) = report(tmp_path, case(expected={"error": "no_call"}, level="should")).failures
    assert (failure.id, failure.level) == ("one", "should")
    assert json.loads(failure.got) == CALL
    assert json.loads(failure.expected) == {"error": "no_call"}


def test_another_acceptable_answer_passes(tmp_path: Path) -> None:
    assert report(tmp_path, case(expected={"error": "no_call"}, also_ok=[CALL])).ok


def test_true_is_not_one_but_five_is_five(tmp_path: Path) -> None:
    text = '{"tool_name": "search", "parameters": {"n": %s}}'
    wanted = {"tool_name": "search", "parameters": {"n": 1}}
    assert not report(tmp_path, case(text=text % "true", expected=wanted)).ok
    assert report(tmp_path, case(text=text % "1.0", expected=wanted)).ok


@pytest.mark.parametrize(
    "line", ['{"id": "torn", "text": "{', "[]", "7", "{}", '{"id": 1, "tools": 3}', "\ud7ff"]
)
def test_a_torn_or_misshapen_line_is_named_and_fails(tmp_path: Path, line: str) -> None:
    result = report(tmp_path, case(), line, case())
    assert (result.total, result.passed) == (3, 2)
    assert result.failures[0].id == "line 2"


def test_bytes_that_are_no_text_fail_by_line(tmp_path: Path) -> None:
    path = tmp_path / "cases.jsonl"
    path.write_bytes(b"\xff\xfe\n" + json.dumps(case()).encode())
    assert [failure.id for failure in check_cases(path).failures] == ["line 1"]


def test_an_unknown_format_is_a_failing_line(tmp_path: Path) -> None:
    assert [failure.id for failure in report(tmp_path, case(format="yaml")).failures] == ["line 1"]


def test_too_slow_fails(tmp_path: Path) -> None:
    (failure,) = report(tmp_path, case(max_seconds=-1)).failures
    assert failure.got.startswith("took")


def test_all_calls_are_compared_where_the_case_says_so(tmp_path: Path) -> None:
    twice = TEXT + "\n" + TEXT
    assert report(tmp_path, case(text=twice, expected_all=[CALL, CALL])).ok
    assert not report(tmp_path, case(text=twice, expected_all=[CALL])).ok


def test_a_missing_file_is_the_callers_mistake(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nowhere\.jsonl"):
        check_cases(tmp_path / "nowhere.jsonl")
