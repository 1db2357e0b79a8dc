"""Preference pairs: two attempts at one task with one seed, of which one came out better.

The attempts of a group start from the same state, so up to the first action that differs they share every
token: that turn is where one of them chose better. Pairs come from stored trajectories and go to DPO and to
the reward model. The surprising choice: attempts that were answered differently before they acted
differently make no pair, because chance parted them and not the policy.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from palestra.training.segments import make_segments
from palestra.types import Segment, Trajectory, TrajectoryGroup

_ROUNDING = 1e-9

PairRows = tuple[tuple[Segment, ...], tuple[Segment, ...]]
"""Token rows of the chosen and of the rejected attempt: more than one where a context was written anew."""


@dataclass(frozen=True, slots=True)
class PreferencePair:
    """Two attempts of a group.

    Example: after equal turns 0 and 1 the chosen attempt tracks the parcel in turn 2 and the rejected one
    gives up: ``PreferencePair("rl/3/5", chosen, rejected, turn=2)``.
    """

    group_id: str
    """The group both are from."""
    chosen: Trajectory
    """The better attempt."""
    rejected: Trajectory
    """The worse one."""
    turn: int
    """First turn, from 0, whose actions differ; all before it are equal, replies included."""


def preference_pairs(groups: Iterable[TrajectoryGroup], margin: float) -> list[PreferencePair]:
    """Each attempt against the better one it stayed with longest: fewer pairs than attempts in every group.

    The longest common opening leaves the fewest differing turns to explain the difference. Best against
    worst of a group would be one pair that often parts in the first turn; all against all would count a
    group by the square of its attempts. Of equally long ones the attempt with the higher reward is chosen,
    then the earlier one. An attempt that acts as an earlier one of its group did adds no second pair.

    Args:
        groups: scored attempts with token ids; those of failed worlds or without ids take part in no pair.
        margin: smallest difference in reward that counts where both succeeded or both failed. A success
            is better than a failure whatever their rewards.
    """
    return [pair for group in groups for pair in _pairs_of(group, margin)]


def pair_rows(pair: PreferencePair) -> PairRows:
    """The rows of a pair: only action tokens from the turn on where they part are marked.

    What comes before is the context they share: equal ids, none marked. Observations are never marked. A row
    that ends before they part is left out. Leading tokens that the two differing actions have in common are
    marked in both and cancel in every difference.

    Raises:
        ConfigError: a turn has no ids, or not one log-probability per id.
    """
    return _rows(pair.chosen, pair.turn), _rows(pair.rejected, pair.turn)


def first_difference(one: Trajectory, other: Trajectory) -> int | None:
    """The first turn whose actions differ; None if none does, or if a prompt or reply differed before.

    Where a reply had the context written anew, it is the new context that must be equal.
    """
    if one.prompt_ids != other.prompt_ids:
        return None
    for index, (first, second) in enumerate(zip(one.turns, other.turns, strict=False)):
        if first.prompt_ids != second.prompt_ids:
            return None
        if first.action_ids != second.action_ids:
            return index
        if first.observation_ids != second.observation_ids:
            return None
    return None


def is_better(one: Trajectory, other: Trajectory, margin: float) -> bool:
    """Whether ``one`` is preferred: success decides, then a reward that is higher by ``margin``."""
    if one.reward is None or other.reward is None:
        return False
    if one.success != other.success:
        return bool(one.success)
    return one.reward - other.reward >= max(margin - _ROUNDING, _ROUNDING)


def preference_loss(margin: float) -> float:
    """``-log sigmoid(margin)``: how improbable a preference is in the model of Bradley and Terry (1952).

    For DPO the margin is ``beta`` times the difference of two log-ratios, for a reward model that of two
    rewards.
    """
    return max(-margin, 0.0) + math.log1p(math.exp(-abs(margin)))


def preference_pull(margin: float) -> float:
    """``sigmoid(-margin)``: how fast ``preference_loss`` falls as the margin grows."""
    return math.exp(-preference_loss(-margin))


def pair_batches(count: int, size: int, seed: str) -> Iterator[list[int]]:
    """The numbers of all pairs in a random order that follows from ``seed``, ``size`` at a time."""
    order = list(range(count))
    random.Random(seed).shuffle(order)
    for start in range(0, count, size):
        yield order[start : start + size]


def _pairs_of(group: TrajectoryGroup, margin: float) -> Iterator[PreferencePair]:
    attempts = list(_distinct(group.trajectories))
    for rejected in attempts:
        found = [
            (turn, chosen.reward or 0.0, chosen)
            for chosen in attempts
            if is_better(chosen, rejected, margin)
            and (turn := first_difference(chosen, rejected)) is not None
        ]
        if found:
            turn, _, chosen = max(found, key=lambda item: item[:2])
            yield PreferencePair(group.id, chosen, rejected, turn)


def _distinct(attempts: Sequence[Trajectory]) -> Iterator[Trajectory]:
    """Scored attempts with ids, one of each sequence of actions."""
    seen: set[tuple[tuple[int, ...], ...]] = set()
    for attempt in attempts:
        actions = tuple(turn.action_ids for turn in attempt.turns)
        usable = attempt.reward is not None and actions and all(actions)
        if usable and actions not in seen:
            seen.add(actions)
            yield attempt


def _rows(trajectory: Trajectory, turn: int) -> tuple[Segment, ...]:
    rows = make_segments(trajectory, [float(index >= turn) for index in range(len(trajectory.turns))])
    return tuple(_counted(row) for row in rows if any(row.advantages))


def _counted(row: Segment) -> Segment:
    """The row with its mask on those action tokens alone whose advantage is 1."""
    mask = tuple(counts > 0 for counts in row.advantages)
    logprobs = tuple(
        value if counts else 0.0 for value, counts in zip(row.sampled_logprobs, mask, strict=True)
    )
    return replace(row, action_mask=mask, sampled_logprobs=logprobs)
