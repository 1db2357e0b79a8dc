"""Rules over episodes: what is wrong with what an update collected. Each is a function of a ``Window``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from statistics import pvariance

from palestra.envs.hashing import canonical_json
from palestra.monitor.alarms import REPLAYED, Finding, Window
from palestra.types import Trajectory, Turn

LOOPING = 0.3
"""Of turns that close a pair of actions seen before in the episode."""
ONE_ACTION = 0.6
"""Of all turns, over at least four tasks."""
DUPLICATES = 2.0
"""Calls an episode made before with the same parameters."""
BEGINNING = 3
"""Updates in which a policy that was just imitated may still stumble."""
SHORTCUTS = 0.05
"""Of successes."""
SHORT = 0.75
"""Of the oracle's turns; a little fewer can be luck, as when the second place to look is tried first."""
DOMINANT = 0.75
"""Of the reward's variance in one part that is not the outcome."""
APART = 10.0
"""Times the outcome's deviation."""
FAILING = 0.05
"""Of episodes whose world failed: one in twenty is no accident."""
SETTLED = 10
"""Updates after which a policy that never succeeds is no longer only beginning."""


def looping(window: Window) -> Finding | None:
    """Pairs of actions come again within an episode."""
    scored = window.scored
    loops = [_repeated_pairs(each) for each in scored]
    turns = sum(len(each.turns) for each in scored)
    if not scored or sum(loops) < LOOPING * turns:
        return None
    worst = _worst(scored, loops)
    return Finding(f"{sum(loops) / turns:.0%} of turns repeat a pair of actions of their episode", worst)


def one_action(window: Window) -> Finding | None:
    """The same action whatever the state."""
    turns = [(each.task.id, turn.action) for each in window.scored for turn in each.turns]
    if not turns:
        return None
    action, count = Counter(action for _, action in turns).most_common(1)[0]
    tasks = {task for task, said in turns if said == action}
    if count < ONE_ACTION * len(turns) or len(tasks) < 4:
        return None
    shown = [each for each in window.scored if any(turn.action == action for turn in each.turns)]
    return Finding(
        f"{count / len(turns):.0%} of {len(turns)} actions over {len(tasks)} tasks are {action[:80]!r}",
        tuple(each.id for each in shown[:REPLAYED]),
    )


def duplicate_calls(window: Window) -> Finding | None:
    """Calls that the episode made before."""
    scored = window.scored
    counts = [len(each.turns) - len({_call(turn) for turn in each.turns}) for each in scored]
    if len(window.rows) < BEGINNING or sum(counts) < DUPLICATES * max(len(scored), 1):
        return None
    return Finding(
        f"{sum(counts) / len(scored):.1f} calls an episode were made before", _worst(scored, counts)
    )


def shortcut(window: Window) -> Finding | None:
    """Successes that are shorter than the shortest known solution."""
    won = [each for each in window.scored if each.success and each.task.optimal_turns is not None]
    short = [each for each in won if len(each.turns) < SHORT * (each.task.optimal_turns or 0)]
    if len(short) <= SHORTCUTS * len(won):
        return None
    return Finding(
        f"{len(short)} of {len(won)} successes took less than {SHORT:.0%} of the oracle's turns",
        tuple(each.id for each in short[:REPLAYED]),
    )


def part_dominates(window: Window) -> Finding | None:
    """What attempts are told apart by is not the outcome."""
    spread = _spread_of_parts(window)
    total = sum(spread.values())
    if len(window.rows) < SETTLED or not total:
        return None
    part = max(spread, key=spread.__getitem__)
    if part == "outcome" or spread[part] < DOMINANT * total:
        return None
    outcome = spread.get("outcome", 0.0) / total
    return Finding(f"{spread[part] / total:.0%} of the reward's variance is {part}, {outcome:.0%} outcome")


def scales_apart(window: Window) -> Finding | None:
    """A part whose weighted size dwarfs the outcome's."""
    spread = _spread_of_parts(window)
    outcome = spread.get("outcome", 0.0)
    part = max(spread, key=spread.__getitem__, default="outcome")
    if part == "outcome" or not outcome or spread[part] < APART**2 * outcome:
        return None
    return Finding(f"{part} deviates {(spread[part] / outcome) ** 0.5:.0f} times as much as the outcome")


def _spread_of_parts(window: Window) -> dict[str, float]:
    """Variance of each weighted reward part over the update's episodes."""
    spread = {}
    for part, weight in window.weights.items():
        values = [value for each in window.scored if (value := each.reward_parts.get(part)) is not None]
        if values:
            spread[part] = weight**2 * pvariance(values)
    return spread


def _repeated_pairs(trajectory: Trajectory) -> int:
    actions = [turn.action for turn in trajectory.turns]
    pairs = list(pairwise(actions))
    return len(pairs) - len(set(pairs))


def _call(turn: Turn) -> str:
    facts = turn.facts
    return (
        turn.action if facts.parameters is None else f"{facts.tool_name} {canonical_json(facts.parameters)}"
    )


def _worst(scored: Sequence[Trajectory], counts: Sequence[int]) -> tuple[str, ...]:
    ranked = sorted(zip(counts, scored, strict=True), key=lambda pair: -pair[0])
    return tuple(each.id for count, each in ranked[:REPLAYED] if count)


def world_fails(window: Window) -> Finding | None:
    """Worlds raise, die or hang; tried again or not, that costs time, and may cost episodes of one kind."""
    played = [each for group in window.groups for each in group.trajectories]
    failed = [each for each in played if each.error is not None]
    if not played or len(failed) < FAILING * len(played):
        return None
    lost = sum(each.success is None for each in failed)
    last = (failed[0].error or "").strip().splitlines()[-1:]
    evidence = f"the world failed in {len(failed)} of {len(played)} episodes, for good in {lost}"
    return Finding(f"{evidence}; the first: {''.join(last):.120}", tuple(t.id for t in failed[:REPLAYED]))
