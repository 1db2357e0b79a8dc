"""Whether a solution can be known: each of its values must stand somewhere before it is used.

An oracle reads the state, and so it solves tasks that nobody else can. Surprising: a value counts as known as
soon as a part of it was shown, or two shown numbers make it, since worlds ask for sums and summaries; only
what comes out of nowhere, and differs from task to task, is a finding.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

from palestra.audit.findings import Attempt, Finding
from palestra.audit.solutions import Solved, call_in
from palestra.audit.subject import Subject
from palestra.envs.tools import tool_line
from palestra.types import ToolSpec

_OFTEN = 0.5
"""Share of the tasks in which a value is asked for."""
_COUNTABLE = 12
"""Whole numbers up to here can be counted off what is shown."""
_MOST_NUMBERS = 60
_WORD = re.compile(r"[^\W_]+")
_NUMBER = re.compile(r"\d+(?:\.\d+)?")


def knowable(subject: Subject, solved: Solved) -> Iterator[Finding]:
    """No parameter of the oracle's calls has values that nothing shown tells."""
    used: defaultdict[tuple[str, str], list[tuple[str, bool, Attempt]]] = defaultdict(list)
    for attempt in solved.attempts:
        if attempt.success:
            for key, value, known in _values(subject, attempt):
                used[key].append((value, known, attempt))
    for (tool, name), uses in used.items():
        unknown = [(value, attempt) for value, known, attempt in uses if not known]
        different = {value for value, _ in unknown}
        if len(unknown) > _OFTEN * len(uses) and len(different) > max(1, len(unknown) // 2):
            yield Finding(
                "oracle",
                "error",
                f"{tool} needs a {name} that nothing shown before it tells, in {len(unknown)} of {len(uses)} "
                f"calls, such as {unknown[0][0]!r}: only the oracle can know it",
                "Show it in the prompt or in what a tool answers.",
                unknown[0][1],
            )


def _values(subject: Subject, attempt: Attempt) -> Iterator[tuple[tuple[str, str], str, bool]]:
    """Tool and parameter, value, and whether it could be known, for each free parameter of a solution."""
    start = subject.start(attempt.seed)
    view = subject.open(start)
    shown = "\n".join([_declared(subject), view.prompt])
    for step in attempt.steps:
        call = call_in(subject, step.action)
        if call is not None:
            spec = subject.tools[call.tool_name]
            for name, value in call.parameters.items():
                if _is_free(spec, name, value):
                    yield (spec.name, name), str(value), _told(value, shown)
        shown += "\n" + step.observation


def _declared(subject: Subject) -> str:
    world = subject.tool_env
    assert world is not None
    return "\n".join([world.instructions, *map(tool_line, subject.tools.values())])


def _is_free(spec: ToolSpec, name: str, value: Any) -> bool:
    schema = spec.parameters.get("properties", {}).get(name, {})
    return "enum" not in schema and isinstance(value, str | int | float) and not isinstance(value, bool)


def _told(value: str | int | float, shown: str) -> bool:
    if isinstance(value, str):
        words = _WORD.findall(value.casefold())
        short = [word for word in words if word.isdigit() and len(word) <= 2]  # times and days are reckoned
        return not words or bool(short) or any(word in shown.casefold() for word in words)
    numbers = {float(text) for text in _NUMBER.findall(shown)[-_MOST_NUMBERS:]}
    if value in numbers or (float(value).is_integer() and abs(value) <= _COUNTABLE):
        return True
    return any(_near(value, made) for a in numbers for b in numbers for made in (a + b, a - b, a * b))


def _near(value: float, made: float) -> bool:
    return abs(value - made) <= 0.01 * max(1.0, abs(value))
