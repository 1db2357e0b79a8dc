"""Which episodes to show, and what to say about each turn.

The report and the terminal replay both show trajectories and describe them in the same words. The one
surprising choice: failures come first, and successes never fill the page while a failure is left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

from palestra.store import RunFolder
from palestra.types import Trajectory, Turn

SHOWN = 10
"""Episodes in a report."""
_KEPT_FOR_SUCCESS = 3
_MOST_GROUPS = 500

Badge = tuple[str, str]
"""Words and tone: ``good``, ``bad``, ``note`` or ``plain``."""


def evaluated_episodes(run: RunFolder) -> list[list[Trajectory]]:
    """Episodes by source: the evaluation after DPO, after RL, after SFT; if neither, what was collected."""
    sources = [_episodes(run, stage) for stage in ("eval-dpo", "eval-rl", "eval-sft")]
    if not any(sources):
        sources = [_episodes(run, stage) for stage in run.trajectory_stages()]
    return [source for source in sources if source]


def pick(sources: Sequence[Sequence[Trajectory]], shown: int = SHOWN) -> list[Trajectory]:
    """At most ``shown`` episodes: failures first, earlier sources first, a few successes for contrast."""
    every = [each for source in sources for each in source]
    failures = [each for each in every if each.success is not True]
    successes = [each for each in every if each.success is True]
    wins = min(len(successes), max(_KEPT_FOR_SUCCESS, shown - len(failures)))
    return failures[: shown - wins] + successes[:wins]


def outcome(trajectory: Trajectory) -> Badge:
    """How the episode came out."""
    if trajectory.success is None:
        return "not scored", "note"
    return ("solved", "good") if trajectory.success else ("failed", "bad")


def badges(turn: Turn) -> list[Badge]:
    """What the world says of a turn, most important first."""
    facts = turn.facts
    found: list[Badge] = [(f"invalid: {facts.error or 'refused'}", "bad")] if not facts.valid else []
    if facts.valid:
        found.append(("valid", "plain"))
    if facts.parse_tier == "repaired":
        found.append(("repaired", "note"))
    if facts.repeated:
        found.append(("repeated", "note"))
    if turn.finish_reason == "length":
        found.append(("cut at the length limit", "note"))
    if facts.fault:
        found.append((f"fault: {facts.fault}", "note"))
    return found + [(f"milestone: {name}", "good") for name in facts.new_milestones]


def _episodes(run: RunFolder, stage: str) -> list[Trajectory]:
    """The first episodes of a stage: enough to show and to count, whatever the run's size."""
    return [each for group in islice(run.read_groups(stage), _MOST_GROUPS) for each in group.trajectories]
