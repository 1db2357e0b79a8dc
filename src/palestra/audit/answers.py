"""Probes of the answer: whether it can be guessed, hedged, read off an error, or given without looking."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from palestra.audit.findings import Attempt, Finding
from palestra.audit.moves import Move, tool_moves
from palestra.audit.solutions import Solved, call_in, often, tool_of
from palestra.audit.subject import Script, Start, Subject, View
from palestra.types import ToolCall, ToolSpec

_GUESSED = 10_000
"""First seed of further tasks that are only guessed at."""
_ERROR_WORDS = 3
"""Last words of a reply that are tried as an answer."""


def probe_answers(subject: Subject, solved: Solved) -> Iterator[Finding]:
    """All of them, one after the other."""
    yield from _closing(subject, solved)
    yield from _without_looking(subject, solved)
    yield from _everything(subject, solved)
    yield from _every_choice(subject, solved)
    yield from _errors_that_tell(subject, solved)


def _closing(subject: Subject, solved: Solved) -> Iterator[Finding]:
    """A guess at once, where the oracle looks first: a call that ends episodes, filled in from the prompt."""
    if max((len(each.steps) for each in solved.attempts if each.success), default=0) < 2:
        return
    starts = [*subject.starts, *(subject.start(_GUESSED + n) for n in range(2 * len(subject.starts)))]
    looked = [start for start in starts if start.task is None or (start.task.optimal_turns or 2) > 1]
    for spec in _closing_tools(subject, solved):
        guesses = [(move, _guessed(subject, move, looked)) for move in tool_moves(subject, spec)]
        move, attempts = max(guesses, key=lambda guess: sum(bool(each.success) for each in guess[1]))
        winners = [each for each in attempts if each.success]
        if often(winners, attempts):
            yield Finding(
                "guess the answer",
                "error",
                f"{move.label} as the first action succeeds on {len(winners) / len(attempts):.0%} of the "
                "tasks",
                "Let success ask for the look-ups that the answer follows from (required, or a Case's plan), "
                "and draw the answers evenly.",
                winners[0],
            )


def _guessed(subject: Subject, move: Move, starts: Sequence[Start]) -> list[Attempt]:
    return [subject.play(start, lambda view: iter([move.make(view)])) for start in starts]


def _without_looking(subject: Subject, solved: Solved) -> Iterator[Finding]:
    """The oracle's calls without those of one tool: success must miss what was left out."""
    used = {tool_of(subject, action) for each in solved.attempts for action in each.actions[:-1]}
    for tool in sorted(filter(None, used)):
        concerned = [
            (start, each)
            for start, each in zip(subject.starts, solved.attempts, strict=True)
            if each.success and tool in {tool_of(subject, action) for action in each.actions[:-1]}
        ]
        attempts = [subject.play(start, _leaving_out(subject, each, tool)) for start, each in concerned]
        winners = [each for each in attempts if each.success]
        if often(winners, attempts):
            needed = tool in _required(subject)
            yield Finding(
                f"leave out {tool}",
                "error" if needed else "warning",
                f"the oracle's other calls alone succeed on {len(winners) / len(attempts):.0%} of the tasks "
                f"in which it calls {tool}" + (", though that is required" if needed else ""),
                "If the call is evidence that the answer follows from, let success ask for it; if not, the "
                "oracle does too much and optimal_turns is too high.",
                winners[0],
            )


def _leaving_out(subject: Subject, solution: Attempt, tool: str) -> Script:
    """What is left of a solution, up to an action with a value that nothing shown so far says."""

    def script(view: View) -> Iterator[str]:
        for action in solution.actions:
            call = call_in(subject, action)
            if call is None or call.tool_name == tool:
                continue
            if not _can_be_known(subject, call, view):
                return
            yield action

    return script


def _can_be_known(subject: Subject, call: ToolCall, view: View) -> bool:
    properties = subject.tools[call.tool_name].parameters.get("properties", {})
    shown = "\n".join([view.prompt, *view.observations])
    return all(
        "enum" in properties.get(name, {}) or isinstance(value, bool) or str(value) in shown
        for name, value in call.parameters.items()
    )


def _required(subject: Subject) -> set[str]:
    world = subject.tool_env
    return set(world.required_tools) if world else set()


def _everything(subject: Subject, solved: Solved) -> Iterator[Finding]:
    """The oracle's look-ups, and then the answer that says all that is on the screen, or nothing."""
    asked = [each for each in zip(subject.starts, solved.attempts, strict=True) if each[1].success]
    for spec in _closing_tools(subject, solved):
        properties = spec.parameters.get("properties", {})
        texts = [n for n, each in properties.items() if each.get("type") == "string" and "enum" not in each]
        for name, says_all in itertools.product(texts, (True, False)):
            attempts = [
                subject.play(start, _hedging(subject, each, spec.name, name, says_all))
                for start, each in asked
            ]
            winners = [each for each in attempts if each.success]
            if often(winners, attempts):
                said = "all that is on the screen" if says_all else "nothing"
                yield Finding(
                    "say everything" if says_all else "say nothing",
                    "error",
                    f"{spec.name} with {said} as its {name} succeeds on "
                    f"{len(winners) / len(attempts):.0%} of the tasks",
                    "Compare whole answers; do not look for one in the other.",
                    winners[0],
                )


def _hedging(subject: Subject, solution: Attempt, tool: str, name: str, says_all: bool) -> Script:
    def script(view: View) -> Iterator[str]:
        yield from solution.actions[:-1]
        last = call_in(subject, solution.actions[-1])
        if last is not None and last.tool_name == tool:
            screen = " ".join([view.prompt, *view.observations]) if says_all else ""
            yield subject.text(ToolCall(tool, {**last.parameters, name: screen}, "all of it"))

    return script


def _every_choice(subject: Subject, solved: Solved) -> Iterator[Finding]:
    """A choice that a solution makes once, made in every way there is: the wrong ones must count."""
    asked = [each for each in zip(subject.starts, solved.attempts, strict=True) if each[1].success]
    for spec in subject.tools.values():
        for name, schema in spec.parameters.get("properties", {}).items():
            chosen = [_chosen(subject, each, spec.name, name) for _, each in asked]
            once = [
                pair
                for pair, values in zip(asked, chosen, strict=True)
                if len(values) == 1 and not _is_asked_for(pair[0], values[0])
            ]
            if len(schema.get("enum", ())) < 2 or len({values[0] for values in chosen if values}) < 2:
                continue
            if len(once) < sum(bool(values) for values in chosen):
                continue  # the oracle makes several, or the prompt names it: these are look-ups
            scripts = [(start, _choosing_all(subject, each, spec.name, name)) for start, each in once]
            attempts = [subject.play(start, script) for start, script in scripts]
            winners = [each for each in attempts if each.success]
            if often(winners, attempts):
                yield Finding(
                    "try every choice",
                    "warning",
                    f"{spec.name} with every {name} succeeds on {len(winners) / len(attempts):.0%} of the "
                    "tasks in which one of them is right",
                    "Let a wrong deed count: it cannot be undone by a right one after it.",
                    winners[0],
                )


def _chosen(subject: Subject, solution: Attempt, tool: str, name: str) -> list[Any]:
    """What a solution gives for a parameter, in all its calls of a tool but the last action."""
    calls = [call_in(subject, action) for action in solution.actions[:-1]]
    return [call.parameters.get(name) for call in calls if call is not None and call.tool_name == tool]


def _is_asked_for(start: Start, value: Any) -> bool:
    """Whether the prompt names the choice, so that it is no answer."""
    prompt = start.task.prompt.casefold() if start.task else ""
    return str(value).casefold().replace("_", " ") in prompt.replace("_", " ")


def _choosing_all(subject: Subject, solution: Attempt, tool: str, name: str) -> Script:
    """The solution, with a call of the tool made once for each choice, the right one last."""
    choices = subject.tools[tool].parameters["properties"][name]["enum"]

    def script(view: View) -> Iterator[str]:
        for action in solution.actions:
            call = call_in(subject, action)
            if call is not None and call.tool_name == tool:
                for other in (each for each in choices if each != call.parameters.get(name)):
                    yield subject.text(replace(call, parameters={**call.parameters, name: other}))
                    if view.refused:
                        return
            yield action

    return script


def _errors_that_tell(subject: Subject, solved: Solved) -> Iterator[Finding]:
    """A senseless call, and then the closing call with what came back: that must not know the answer."""
    for spec in _closing_tools(subject, solved):
        senseless = [move for tool in subject.tools.values() for move in _senseless_calls(subject, tool)]
        for mistake, place in itertools.product(senseless, range(_ERROR_WORDS)):
            script = _use_the_reply(subject, mistake, spec, place)
            attempts = [subject.play(start, script) for start in subject.starts]
            winners = [each for each in attempts if each.success]
            if often(winners, attempts) and len({each.actions[-1] for each in winners}) > 1:
                yield Finding(
                    "read the error",
                    "error",
                    f"after {mistake.label}, {spec.name} with what came back succeeds on "
                    f"{len(winners) / len(attempts):.0%} of the tasks",
                    "Say in a refusal what is wrong with the call, never what the right answer is.",
                    winners[0],
                )
                return


@dataclass(frozen=True)
class _Senseless:
    """A call that no world should answer with anything worth knowing."""

    label: str
    text: str
    only_refused: bool
    """Whether its reply counts only if it is a refusal: a first choice may well be a sensible one."""


def _senseless_calls(subject: Subject, spec: ToolSpec) -> list[_Senseless]:
    """Calls with nobody's values, empty ones, and none at all."""
    properties = spec.parameters.get("properties", {})
    if not properties:
        return []
    nobody = {name: _nobody(schema) for name, schema in properties.items()}
    empty = {name: "" if value == "nobody" else value for name, value in nobody.items()}
    sensible = nobody == empty
    return [
        _Senseless(f"{spec.name} with {label}", subject.text(ToolCall(spec.name, given, "so")), refused)
        for label, given, refused in (
            ("nobody's values", nobody, sensible),
            ("empty values", empty, sensible),
            ("no values", {}, True),
        )
    ]


def _nobody(schema: Mapping[str, Any]) -> Any:
    if "enum" in schema:
        return schema["enum"][0]
    return {"string": "nobody", "integer": -1, "number": -1.0, "boolean": False, "array": []}.get(
        schema.get("type", "string")
    )


def _use_the_reply(subject: Subject, mistake: _Senseless, closing: ToolSpec, place: int) -> Script:
    """The mistake, and the closing call with the choice that the reply names, or its n-th last word."""
    properties = closing.parameters.get("properties", {})

    def script(view: View) -> Iterator[str]:
        yield mistake.text
        if mistake.only_refused and not view.refused:
            return
        said = view.observations[-1]
        words = re.findall(r"[\w.-]*\w", said)
        word = words[-1 - place] if len(words) > place else ""
        values = {}
        for name, schema in properties.items():
            named = [each for each in schema.get("enum", ()) if _says(said, str(each))]
            values[name] = named[0] if len(named) == 1 else _as_type(word, schema)
        yield subject.text(ToolCall(closing.name, values, "it says so"))

    return script


def _says(text: str, word: str) -> bool:
    return re.search(rf"\b{re.escape(word)}\b", text) is not None


def _as_type(word: str, schema: Mapping[str, Any]) -> Any:
    digits = re.sub(r"\D", "", word)
    return int(digits[:15]) if schema.get("type") == "integer" and digits else word


def _closing_tools(subject: Subject, solved: Solved) -> list[ToolSpec]:
    """Tools whose call ended a solution."""
    names = {tool_of(subject, each.actions[-1]) for each in solved.attempts if each.success}
    return [subject.tools[name] for name in sorted(names - {""})]
