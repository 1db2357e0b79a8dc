"""Runs a file of parsing cases, one JSON object a line, and reports which lines the parser gets wrong.

Behind ``palestra parse CASES.jsonl``. A case has ``id, format, text, tools, expected`` and may have
``also_ok, expected_all, max_seconds, finish_reason, level``. The surprising choice: a line that is no
readable case is a named failure, never a crash and never skipped, so that a torn file cannot look good.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from palestra.actions.formats import ActionFormat
from palestra.actions.json_text import same
from palestra.actions.parse import ParsedAction, parse_action, parse_all
from palestra.errors import ActionError, ConfigError
from palestra.types import FinishReason, ToolSpec


@dataclass(frozen=True, slots=True)
class CaseFailure:
    """One line that failed."""

    id: str
    """The case's id, or ``line N`` for an unreadable line (counted from 1)."""
    level: str
    """``must`` or ``should``."""
    got: str
    """What the parser gave, as JSON, or what is wrong with the line."""
    expected: str
    """What the case asks for, as JSON; empty for an unreadable line."""


@dataclass(frozen=True, slots=True)
class CaseReport:
    """The outcome of a file of cases."""

    total: int
    """Lines that are not blank."""
    passed: int
    """Lines with an acceptable answer in time."""
    failures: tuple[CaseFailure, ...]
    """The others, in file order."""

    @property
    def ok(self) -> bool:
        """Whether every line passed."""
        return not self.failures


def check_cases(path: str | Path) -> CaseReport:
    """Run every case of the JSONL file at ``path``. Raises ``ConfigError`` when it cannot be read."""
    try:
        lines = Path(path).read_bytes().split(b"\n")
    except OSError as problem:
        raise ConfigError(f"cannot read the cases at {path}: {problem.strerror or problem}") from problem
    numbered = [(number, line) for number, line in enumerate(lines, start=1) if line.strip()]
    failures = [failure for number, line in numbered if (failure := _checked(number, line)) is not None]
    return CaseReport(len(numbered), len(numbered) - len(failures), tuple(failures))


def _checked(number: int, line: bytes) -> CaseFailure | None:
    try:
        case = json.loads(line.decode("utf-8-sig"))
        return check_case(case)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as problem:
        return CaseFailure(
            f"line {number}", "must", f"no readable case: {type(problem).__name__}: {problem}", ""
        )


def check_case(case: Mapping[str, Any]) -> CaseFailure | None:
    """None when the case passes, else how it fails. Raises ``KeyError`` or its like on a misshapen case."""
    tools = [_tool(tool) for tool in case["tools"]]
    action_format = cast(ActionFormat, case["format"])
    finish_reason = cast(FinishReason, case.get("finish_reason", "stop"))
    accepted = [case["expected"], *(case.get("also_ok") or ())]
    started = time.perf_counter()
    got = _outcome(case["text"], tools, action_format, finish_reason)
    seconds = time.perf_counter() - started
    level = str(case.get("level", "must"))
    if not any(_equal(got, answer) for answer in accepted):
        return CaseFailure(str(case["id"]), level, _text(got), _text(case["expected"]))
    limit = case.get("max_seconds")
    if limit is not None and seconds > limit:
        return CaseFailure(str(case["id"]), level, f"took {seconds:.2f} s", f"at most {limit} s")
    if case.get("expected_all") is None:
        return None
    results = parse_all(case["text"], tools, format=action_format, finish_reason=finish_reason)
    everything = [_plain(result) for result in results]
    if _equal(everything, case["expected_all"]):
        return None
    return CaseFailure(str(case["id"]), level, _text(everything), _text(case["expected_all"]))


def _tool(tool: Mapping[str, Any]) -> ToolSpec:
    return ToolSpec(tool["name"], tool.get("description", ""), tool["parameters"], tool.get("aliases") or {})


def _outcome(
    text: str, tools: list[ToolSpec], action_format: ActionFormat, finish_reason: FinishReason
) -> Any:
    try:
        return _plain(parse_action(text, tools, format=action_format, finish_reason=finish_reason))
    except ActionError as error:
        return _plain(error)


def _plain(result: ParsedAction | ActionError) -> dict[str, Any]:
    if isinstance(result, ActionError):
        return {"error": result.name}
    return {"tool_name": result.call.tool_name, "parameters": result.call.parameters}


def _equal(got: Any, wanted: Any) -> bool:
    """Equal as JSON: ``true`` is not ``1``, but ``5.0`` is ``5``."""
    return bool(got == wanted) and same(_numbers(got), _numbers(wanted))


def _numbers(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _numbers(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_numbers(item) for item in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
