"""Whether a world keeps its word: solvable, the same twice and anywhere, apart from others, with an end."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import islice

from palestra.audit.elsewhere import record
from palestra.audit.findings import Attempt, Finding
from palestra.audit.moves import all_moves
from palestra.audit.subject import Recorder, Script, Start, Subject, View, WorldFailed, oracle, replay
from palestra.envs.toolenv import MAX_ORACLE_TURNS

_SOLVED = 200
"""Tasks of the world's own level that must have a solution; a quarter of them at each other level."""
_SLOW_RESET = 0.5
"""Seconds."""
_RANDOM_TURNS = 8


def solvable(subject: Subject) -> Iterator[Finding]:
    """Every task, at every level, is solved by the oracle within the turn limit."""
    if not subject.has_oracle:
        if subject.tool_env is None:
            return  # a plain environment has no place for one
        yield Finding(
            "oracle",
            "warning",
            "the world shows no solution, so nobody knows whether its tasks can be solved, or what a "
            "solution earns",
            "Define oracle(state): it is the ceiling that every probe is measured by.",
        )
        return
    world = subject.tool_env
    assert world is not None
    levels = [level for level in world.difficulties if level != world.difficulty]
    starts = [
        *(subject.start(seed) for seed in range(_SOLVED)),
        *(subject.start(seed, level) for level in levels for seed in range(_SOLVED // 4)),
    ]
    unknown = [start for start in starts if start.task is None or start.task.optimal_turns is None]
    played = {each.task: each for each in map(subject.solve, [*unknown, *subject.starts])}
    failed = [each for each in played.values() if not each.success]
    if failed:
        yield Finding(
            "oracle",
            "error",
            f"the oracle fails on {len(failed)} of {len(starts)} tasks, such as {failed[0].task}: they "
            "cannot be solved, or the verifier is wrong",
            "Draw only solvable states in generate, or mend verify; palestra play WORLD --script oracle "
            "shows the attempt.",
            failed[0],
        )
    needed = max((len(each.steps) for each in map(subject.solve, subject.starts) if each.success), default=0)
    if needed > subject.max_turns:
        yield Finding(
            "oracle",
            "error",
            f"a task needs {needed} actions, and an episode may have {subject.max_turns}",
            "Raise rollout.max_turns, or draw shorter tasks.",
        )


def never_raises(subject: Subject) -> Iterator[Finding]:
    """Nothing that was said in this audit made the world raise; asked last."""
    if subject.failures:
        worst = min(subject.failures, key=lambda each: len(each.steps))
        yield Finding(
            "raises",
            "error",
            f"in {len(subject.failures)} attempts the world raised, such as {worst.failed[:200]}",
            "Answer whatever is said with text: raise ToolError to refuse a call, and nothing else. An "
            "episode whose world raises is lost.",
            worst,
        )


def same_twice(subject: Subject) -> Iterator[Finding]:
    """The same task and actions in two fresh worlds, one world used twice, and two worlds in turns."""
    for start in subject.starts[:4]:
        for script in _scripts(subject):
            first = subject.play(start, script)
            again = replay(first.actions)
            second = subject.play(start, again, max_turns=len(first.steps))
            if _differ(first, second):
                yield _unlike(
                    "group seed",
                    f"two fresh worlds answer the same actions in {start.name} differently: "
                    f"{_where(first, second)}",
                    "Draw everything from the rng that generate is given, and in tools from self.rng; use no "
                    "global generator, clock or set order.",
                    second,
                )
                return
            used = subject.open(subject.starts[-1]).world
            subject.play(subject.starts[-1], script, world=used)
            third = subject.play(start, again, world=used, max_turns=len(first.steps))
            if _differ(first, third):
                yield _unlike(
                    "reset",
                    f"a world that was used before answers differently in {start.name}: "
                    f"{_where(first, third)}",
                    "Let reset make the whole state anew; keep nothing in class attributes or on self.",
                    third,
                )
                return
            fourth = _beside_another(subject, start, first.actions)
            if _differ(first, fourth):
                yield _unlike(
                    "isolation",
                    f"a world answers differently in {start.name} while another is played beside it: "
                    f"{_where(first, fourth)}",
                    "Share nothing between instances: no module or class state, no common file.",
                    fourth,
                )
                return


def same_elsewhere(subject: Subject, name: str | None, options: dict[str, object]) -> Iterator[Finding]:
    """The same tasks and actions in a process of its own, with another hash seed."""
    if name is None:
        return
    starts = subject.starts[:3]
    played = [
        [start.seed, list(subject.play(start, script).actions)]
        for start in starts
        for script in _scripts(subject)
    ]
    asked = {"world": name, "options": options, "played": played}
    seed = "1" if os.environ.get("PYTHONHASHSEED") != "1" else "2"
    done = subprocess.run(
        [sys.executable, "-m", "palestra.audit.elsewhere"],
        input=json.dumps(asked),
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONHASHSEED": seed},
    )
    if done.returncode:
        yield _unlike(
            "other process",
            f"the world cannot be played in another process: {done.stderr.strip().splitlines()[-1][:200]}",
            "Let the world's module be imported anywhere, without work at import time.",
        )
        return
    here = record(subject.make, played)
    there = json.loads(done.stdout.splitlines()[-1])  # a world may print, too
    for (number, _), one, other in zip(played, here, there, strict=True):
        if one != other:
            yield _unlike(
                "other process",
                f"the task of seed {number} is another one in a process with another hash seed, or answers "
                "differently",
                "Sort what comes from sets; derive nothing from hash() or the clock.",
            )
            return


def over_at_the_end(subject: Subject) -> Iterator[Finding]:
    """After the end an action is refused, or at least pays nothing."""
    if not subject.has_oracle:
        return
    start = subject.starts[0]
    view = subject.open(start)
    recorder = Recorder(subject, start, view)
    try:
        for action in islice(oracle(view), MAX_ORACLE_TURNS):
            recorder.step(action)
            if recorder.ended:
                break
    except WorldFailed:  # which a check of its own reports
        return
    if not recorder.ended:
        yield _unlike(
            "end",
            f"{start.name} goes on after the oracle's last action",
            "Let done be true where verify is.",
            recorder.attempt(),
        )
        return
    before = recorder.attempt().total
    try:
        recorder.step(view.actions[-1])
    except WorldFailed:
        return
    if recorder.attempt().steps[-1].reward > 0 or recorder.attempt().total > before:
        yield _unlike(
            "end",
            "an action after the end of the episode is paid",
            "Refuse steps after the end until the next reset.",
            recorder.attempt(),
        )


def quick_reset(subject: Subject) -> Iterator[Finding]:
    """A reset takes little time, since every attempt needs one."""
    seconds = []
    for start in subject.starts[:5]:
        began = time.perf_counter()
        subject.open(start)
        seconds.append(time.perf_counter() - began)
    if statistics.median(seconds) > _SLOW_RESET:
        yield Finding(
            "reset",
            "warning",
            f"making and resetting a world takes {statistics.median(seconds):.1f} s",
            "Load what is large once for the module; a batch resets hundreds of worlds.",
        )


def milestones_once(subject: Subject) -> Iterator[Finding]:
    """A milestone is reported once an episode, and only where the state changes."""
    for start in subject.starts:
        for script in _scripts(subject):
            attempt = subject.play(start, script)
            reached = [name for names in attempt.milestones for name in names]
            if len(reached) != len(set(reached)):
                twice = next(name for name in reached if reached.count(name) > 1)
                yield _unlike(
                    "milestones",
                    f"milestone {twice!r} counts {reached.count(twice)} times in one episode",
                    "Report a milestone once, when the state first reaches it.",
                    attempt,
                )
                return
            for place, names in enumerate(attempt.milestones):
                before = attempt.hashes[place - 1] if place else ""
                if names and before and attempt.hashes[place] == before:
                    yield _unlike(
                        "milestones",
                        f"milestone {names[0]!r} counts though the state does not change",
                        "Make a milestone a predicate of the state.",
                        attempt,
                    )
                    return


def _scripts(subject: Subject) -> list[Script]:
    """Something right and something random."""
    moves = all_moves(subject)

    def randomly(view: View) -> Iterator[str]:
        for _ in range(_RANDOM_TURNS):
            yield view.rng.choice(moves).make(view)

    return [*([oracle] if subject.has_oracle else []), randomly]


def _beside_another(subject: Subject, start: Start, actions: Sequence[str]) -> Attempt:
    """The attempt, with another world taking a step after each of its own."""
    view, beside = subject.open(start), subject.open(subject.starts[-1])
    own, other = Recorder(subject, start, view), Recorder(subject, subject.starts[-1], beside)
    for number, action in enumerate(actions):
        if not other.ended:
            with suppress(WorldFailed):
                other.step(actions[-1 - number])
        try:
            own.step(action)
        except WorldFailed as failure:
            return replace(own.attempt(), failed=str(failure))
        if own.ended:
            break
    return own.attempt()


def _differ(first: Attempt, second: Attempt) -> bool:
    """Whether two attempts at the same actions came out otherwise; what made the world raise is left out."""
    return not first.failed and (first.steps != second.steps or first.milestones != second.milestones)


def _where(first: Attempt, second: Attempt) -> str:
    for number, (one, other) in enumerate(zip(first.steps, second.steps, strict=False), start=1):
        if one != other:
            return f"action {number} gets {one.observation[:60]!r} and {other.observation[:60]!r}"
    return f"it ends after {len(first.steps)} and {len(second.steps)} actions"


def _unlike(check: str, symptom: str, remedy: str, evidence: Attempt | None = None) -> Finding:
    return Finding(check, "error", symptom, remedy, evidence)
