"""The KL to the reference as a cost of acting: taken from each turn's reward before credit is given.

As in RLHF with PPO (Ziegler et al. 2019, section 2.2), and not as a term of the loss: the policy then also
answers for where a turn leads later ones to stray.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from palestra.training.learner import Learner
from palestra.training.segments import make_segments
from palestra.types import Trajectory, TrajectoryGroup


def subtract_kl(
    groups: Sequence[TrajectoryGroup], learner: Learner, reference: Any, weight: float
) -> list[TrajectoryGroup]:
    """Groups whose rewards are lower by ``weight`` times the sampled log-ratio to ``reference``.

    The log-ratio summed over a turn's tokens is an unbiased estimate of its KL and may be negative. Groups
    that are stored keep the reward as the rubric gave it.
    """
    scored = [t for group in groups for t in group.trajectories if t.reward is not None and t.turns]
    rows = [row for each in scored for row in make_segments(each, [0.0] * len(each.turns))]
    said = iter(
        value
        for row, values in zip(rows, learner.logprobs(reference, rows), strict=True)
        for value, acted in zip(values, row.action_mask, strict=True)
        if acted
    )
    found = {
        each.id: [sum(sampled - next(said) for sampled in turn.sampled_logprobs) for turn in each.turns]
        for each in scored
    }
    return [
        replace(
            group,
            trajectories=tuple(
                _cheaper(each, [weight * far for far in found[each.id]]) if each.id in found else each
                for each in group.trajectories
            ),
        )
        for group in groups
    ]


def _cheaper(trajectory: Trajectory, costs: Sequence[float]) -> Trajectory:
    turns = tuple(
        replace(turn, reward=(turn.reward or 0.0) - cost)
        for turn, cost in zip(trajectory.turns, costs, strict=True)
    )
    return replace(trajectory, turns=turns, reward=(trajectory.reward or 0.0) - sum(costs))
