"""The audit: every check over one world, before anything is trained in it.

A world that raises where it should not is a finding like any other, so one broken part hides no other.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial

from gymnasium.utils.env_checker import check_env as check_gymnasium_env

from palestra.audit import contract, tasks
from palestra.audit.findings import Finding
from palestra.audit.knowledge import knowable
from palestra.audit.probes import probe_all
from palestra.audit.search import exploits
from palestra.audit.solutions import Solved
from palestra.audit.subject import MakeWorld, Subject, WorldFailed, WorldHangs
from palestra.audit.watchdog import TookTooLong, deadline
from palestra.envs import check_env
from palestra.errors import WorldError
from palestra.rewards import Rubric

Tell = Callable[[str], None]
_FEWEST_TURNS, _SPARE_TURNS = 12, 4
_CONTRACT_SECONDS = 60.0


@dataclass(frozen=True)
class AuditSettings:
    """How thorough an audit is."""

    tasks: int = 20
    """Tasks that every probe plays."""
    max_turns: int | None = None
    """Most actions of an attempt; as many as the longest solution needs, and some more, if None."""
    episodes: int = 400
    """Most episodes of the search for exploits."""
    seed: int = 0
    seconds: float = 300.0
    """After so long no further check is begun."""


@dataclass(frozen=True)
class Audit:
    """What came of it."""

    world: str
    findings: tuple[Finding, ...]
    checks: tuple[str, ...]
    """All that were made."""
    oracle_reward: float | None
    """Mean over tasks; None without an oracle."""
    seconds: float


def audit(
    make: MakeWorld,
    name: str,
    *,
    rubric: Rubric | None = None,
    settings: AuditSettings = AuditSettings(),
    elsewhere: tuple[str, Mapping[str, object]] | None = None,
    tell: Tell = lambda _: None,
) -> Audit:
    """Audit the world that ``make`` makes.

    Args:
        make: a fresh world at each call.
        name: what to call it.
        rubric: what pays; the default rubric if None. A world that is no ``ToolEnv`` pays by itself.
        settings: how thorough.
        elsewhere: its registered name and options, by which another process makes it; None to leave that
            check out.
        tell: is told which check begins.

    Raises:
        WorldError: there is no world to audit, since making one or its tasks fails.
    """
    began = time.perf_counter()
    try:
        subject = Subject(
            make, rubric or Rubric(), tasks=settings.tasks, max_turns=settings.max_turns or _FEWEST_TURNS
        )
    except WorldFailed as failure:
        raise WorldError(f"{name} cannot be audited: {failure}") from failure
    try:
        solved = solve_all(subject)
    except WorldHangs as failure:
        raise WorldError(f"{name} cannot be audited: {failure}") from failure
    if settings.max_turns is None:
        subject.max_turns = max(
            _FEWEST_TURNS, *(len(each.steps) + _SPARE_TURNS for each in solved.attempts if each.success), 0
        )
    findings, done = list[Finding](), list[str]()
    for check, run in _checks(subject, solved, settings, elsewhere).items():
        if time.perf_counter() - began > settings.seconds:
            findings.append(_out_of_time(check, settings.seconds))
            break
        tell(check)
        done.append(check)
        try:
            findings += run()
        except WorldHangs as failure:
            findings.append(_no_answer(check, failure))
            break
        except WorldFailed as failure:
            findings.append(_raised(check, failure))
    return Audit(name, _once(findings), tuple(done), solved.reward, time.perf_counter() - began)


def _out_of_time(check: str, seconds: float) -> Finding:
    return Finding(
        "time",
        "warning",
        f"after {seconds:.0f} s {check} and what follows was left out",
        "Make steps faster (training takes hundreds of thousands), or audit fewer tasks.",
    )


def _no_answer(check: str, failure: WorldHangs) -> Finding:
    return Finding(
        "hangs",
        "error",
        f"{failure}; {check} was given up, and what follows left out",
        "Let every step end: bound loops and what it waits for. world.isolation limits a step in training.",
    )


def _raised(check: str, failure: WorldFailed) -> Finding:
    return Finding(
        check,
        "error",
        f"the world raised: {failure}",
        "Answer whatever is said with text (ToolError refuses a call); raise only for a bug.",
    )


def _checks(
    subject: Subject,
    solved: Solved,
    settings: AuditSettings,
    elsewhere: tuple[str, Mapping[str, object]] | None,
) -> dict[str, Callable[[], Iterable[Finding]]]:
    name, options = elsewhere or (None, {})
    return {
        "oracle": partial(contract.solvable, subject),
        "contract": partial(_keeps_contract, subject),
        "same twice": partial(contract.same_twice, subject),
        "other process": partial(contract.same_elsewhere, subject, name, dict(options)),
        "end": partial(contract.over_at_the_end, subject),
        "reset": partial(contract.quick_reset, subject),
        "milestones": partial(contract.milestones_once, subject),
        "knowable": partial(knowable, subject, solved),
        "tasks": partial(tasks.enough, subject),
        "answers": partial(tasks.evenly_answered, subject),
        "prompt": partial(tasks.told_by_the_prompt, subject, solved),
        "text": partial(tasks.clean_text, subject, solved),
        "levels": partial(tasks.levels, subject),
        "parts": partial(tasks.parts, subject, solved),
        "probes": partial(probe_all, subject, solved),
        "search for exploits": partial(
            exploits, subject, solved, budget=settings.episodes, seed=settings.seed
        ),
        "raises": partial(contract.never_raises, subject),
    }


def solve_all(subject: Subject) -> Solved:
    """The oracle's attempts; none where it cannot be asked, which a check reports."""
    if not subject.has_oracle:
        return Solved(tuple(subject.play(start, lambda view: iter(())) for start in subject.starts))
    return Solved(tuple(subject.solve(start) for start in subject.starts))


def _keeps_contract(subject: Subject) -> Iterable[Finding]:
    try:
        with deadline(_CONTRACT_SECONDS):
            if subject.tool_env is not None:
                check_env(subject.make(), seeds=range(4))
            else:
                check_gymnasium_env(subject.make(), skip_render_check=True, skip_close_check=True)
    except TookTooLong:
        raise WorldHangs(f"checking the contract: no end after {_CONTRACT_SECONDS:.0f} s") from None
    except WorldError as error:
        yield Finding(
            "contract", "error", str(error), "palestra.envs.check_env(YourWorld()) says the same in a test."
        )
    except Exception as error:  # whatever the world raises
        yield Finding(
            "contract",
            "error",
            f"a checker or the world raised {type(error).__name__}: {error}",
            "palestra.envs.check_env(YourWorld()) shows where.",
        )


def _once(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Each once, errors first."""
    distinct = dict.fromkeys(findings)
    return tuple(sorted(distinct, key=lambda each: each.severity != "error"))
