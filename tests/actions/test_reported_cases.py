"""Real reports as acceptance cases: every line of the file passes, with its preferred answer."""

import json
from pathlib import Path
from typing import Any

import pytest

from palestra.actions import check_cases
from palestra.actions.cases import check_case

PATH = Path(__file__).parent / "parsing_cases.jsonl"
CASES: list[dict[str, Any]] = [json.loads(line) for line in PATH.read_text(encoding="utf-8").splitlines()]


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case['id']}-{case['kind']}")
def test_a_reported_case_gets_its_preferred_answer(case: dict[str, Any]) -> None:
    assert check_case({**case, "also_ok": []}) is None, case["note"]


def test_the_whole_file_passes() -> None:
    report = check_cases(PATH)
    assert report.ok
    assert report.total == report.passed == len(CASES) == 102
