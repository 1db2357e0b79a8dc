"""Probes: policies that deserve nothing, and what the world pays them.

Each is played over all tasks. None may succeed on more than a tenth of them, or earn most of what the oracle
does; none may earn more by doing again what it has done.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from palestra.audit.answers import probe_answers
from palestra.audit.findings import Attempt, Finding
from palestra.audit.moves import GARBAGE, INJECTION, Move, all_moves, tool_moves
from palestra.audit.solutions import Solved, often, on_the_way
from palestra.audit.subject import Script, Subject, View, oracle, replay

MARGIN = 0.6
"""Share of the oracle's reward that a probe may earn without success."""
_GAIN = 0.05
"""Share of the oracle's reward that doing it again may add."""
_AGAIN = 5


def probe_all(subject: Subject, solved: Solved) -> Iterator[Finding]:
    """All probes, one after the other."""
    for name, script in _fools(subject).items():
        yield from _judge(subject, solved, name, script)
    yield from probe_answers(subject, solved)
    yield from _again(subject, solved)
    yield from _more_steps(subject, solved)


def _fools(subject: Subject) -> dict[str, Script]:
    """Probes that need nothing but the declared tools."""
    moves = all_moves(subject)
    calls = [move for tool in subject.tools.values() for move in tool_moves(subject, tool)] or moves
    blind = [move for move in calls if move.is_blind] or calls
    inject = [move for move in calls if "talk to the grader" in move.label]

    def forever(make: Callable[[View], str]) -> Script:
        def script(view: View) -> Iterator[str]:
            while True:
                yield make(view)

        return script

    def randomly(view: View) -> Iterator[str]:
        while True:
            yield view.rng.choice(blind).make(view)

    def injecting(view: View) -> Iterator[str]:
        yield INJECTION
        for move in inject:
            yield move.make(view)

    return {
        "do nothing": forever(lambda view: ""),
        "send garbage": forever(lambda view: GARBAGE),
        "echo the screen": forever(lambda view: view.observations[-1] if view.observations else view.prompt),
        "act at random": randomly,
        "talk to the grader": injecting,
    }


def _judge(subject: Subject, solved: Solved, name: str, script: Script) -> Iterator[Finding]:
    """Findings about one probe: it succeeds, or earns as much as if it did."""
    attempts = [subject.play(start, script) for start in subject.starts]
    winners = [each for each in attempts if each.success]
    share = len(winners) / len(attempts)
    if often(winners, attempts):
        yield Finding(
            name,
            "error",
            f"it succeeds on {share:.0%} of the tasks ({len(winners)} of {len(attempts)})",
            "Let verify ask for what only the right steps bring about; widen the choice of answers.",
            min(winners, key=lambda each: len(each.steps)),
        )
    yield from _paid(name, attempts, solved)


def _paid(name: str, attempts: Sequence[Attempt], solved: Solved) -> Iterator[Finding]:
    losers = [each for each in attempts if not each.success]
    ceiling = solved.reward
    if not losers:
        return
    mean, best = sum(each.total for each in losers) / len(losers), max(losers, key=lambda each: each.total)
    if ceiling is None:
        if best.success is False and best.total > 0 and not best.parts:
            yield Finding(
                name,
                "error",
                f"it is paid {best.total:.2f} without success",
                "Pay for success, or for milestones that lead to it, and each of them once.",
                best,
            )
        return
    if mean > MARGIN * ceiling or best.total >= ceiling:
        yield Finding(
            name,
            "error",
            f"it earns {mean:.2f} on average and {best.total:.2f} at best without success; "
            f"the oracle earns {ceiling:.2f}",
            "Pay for success, or for milestones that lead to it, and each of them once.",
            best,
        )


def _again(subject: Subject, solved: Solved) -> Iterator[Finding]:
    """Each action of a solution, done again and again where it stands: it must pay once."""
    ceiling = solved.reward
    if ceiling is None:
        yield from _again_blindly(subject)
        return
    worst: tuple[float, str, Attempt] | None = None
    for start, solution in zip(subject.starts, solved.attempts, strict=True):
        for place, action in enumerate(solution.actions[:-1] if solution.success else ()):
            before = list(solution.actions[: place + 1])
            once = subject.play(start, replay(before))
            again = replay([*before, *[action] * _AGAIN])
            longer = subject.play(start, again, max_turns=len(before) + _AGAIN)
            gain = (longer.total - max(once.total, on_the_way(subject, solution))) / ceiling
            if not longer.success and gain > _GAIN and (worst is None or gain > worst[0]):
                worst = gain, action, longer
    if worst:
        yield _repeats(worst[0] * ceiling, worst[1], worst[2])


def _again_blindly(subject: Subject) -> Iterator[Finding]:
    """Where nothing tells the right actions: every move, again and again."""
    for move in all_moves(subject):
        for start in subject.starts[:3]:
            once, longer = (subject.play(start, _times(move, count)) for count in (1, 1 + _AGAIN))
            if once.total > 0 and longer.total > once.total * 2 and not longer.success:
                yield _repeats(longer.total - once.total, move.label, longer)
                return


def _times(move: Move, count: int) -> Script:
    def script(view: View) -> Iterator[str]:
        for _ in range(count):
            yield move.make(view)

    return script


def _repeats(gain: float, action: str, attempt: Attempt) -> Finding:
    return Finding(
        "do it again",
        "error",
        f"{action[:80]} done {_AGAIN} times more earns {gain:.2f} more, without success",
        "Pay a milestone once, on the change of state that reaches it; take repeated calls into repetition.",
        attempt,
    )


def _more_steps(subject: Subject, solved: Solved) -> Iterator[Finding]:
    """The oracle's solution with detours: they must not pay."""
    ceiling = solved.reward
    calls = [move for tool in subject.tools.values() for move in tool_moves(subject, tool)[:2]]
    if ceiling is None or not calls:
        return

    def winding(view: View) -> Iterator[str]:
        for _ in range(4):
            yield view.rng.choice(calls).make(view)
        yield from oracle(view)

    for start, straight in zip(subject.starts, solved.attempts, strict=True):
        longer = subject.play(start, winding, max_turns=subject.max_turns + 4)
        if straight.success and longer.total > straight.total + _GAIN * abs(ceiling):
            yield Finding(
                "take detours",
                "error",
                f"the solution earns {longer.total:.2f} with needless steps and {straight.total:.2f} without",
                "Pay what a step achieves and not that it was taken; let efficiency cost detours.",
                longer,
            )
            return
