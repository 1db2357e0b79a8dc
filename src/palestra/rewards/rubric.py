"""The rubric: named parts with weights, applied to finished trajectories.

Scoring reads only the record, so stored trajectories can be re-scored under another rubric without a
new rollout. A part that is None for an episode is left out of its sum; an episode whose world failed is
unscored altogether.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from palestra.errors import ConfigError, PalestraError
from palestra.rewards.parts import BUILTIN_PARTS, RewardPart
from palestra.types import StopReason, Trajectory

DEFAULT_WEIGHTS: Mapping[str, float] = {
    "outcome": 1.0,
    "process": 0.25,
    "format": 0.1,
    "efficiency": 0.1,
    "repetition": -0.1,
}
PREFERENCE_WEIGHT = 0.1
"""Of a reward model, unless given: enough to tell equal outcomes apart, too little to be worth fooling."""
MAX_SCALE_RATIO = 10.0
"""Weighted scales may differ by this factor before a rubric is refused."""


class Rubric:
    """Weighted reward parts."""

    def __init__(
        self,
        weights: Mapping[str, float] = DEFAULT_WEIGHTS,
        *,
        extra_parts: Sequence[RewardPart] = (),
        allow_uneven_scales: bool = False,
    ) -> None:
        """Check the weights against the parts' ranges.

        Args:
            weights: part name to weight; 0 switches a part off but still records it.
            extra_parts: a user's own parts beside the builtin ones.
            allow_uneven_scales: accept weighted ranges that differ by more than ``MAX_SCALE_RATIO``.

        Raises:
            ConfigError: an unknown part, no part at all, or scales too far apart.
        """
        known = dict(BUILTIN_PARTS) | {part.name: part for part in extra_parts}
        for name in weights:
            if name not in known:
                near = difflib.get_close_matches(name, known, n=1)
                hint = f" Did you mean {near[0]!r}?" if near else ""
                raise ConfigError(
                    f"rubric: there is no reward part {name!r}.{hint} Parts: {', '.join(known)}."
                )
        self.weights = dict(weights)
        self._parts = [known[name] for name in weights]
        scales = {part.name: abs(weights[part.name]) * (part.high - part.low) for part in self._parts}
        scales = {name: scale for name, scale in scales.items() if scale > 0}
        if not scales:
            raise ConfigError("rubric: every weight is 0, so no episode is better than another.")
        self._check_scales(scales, allow_uneven_scales)

    def _check_scales(self, scales: Mapping[str, float], allow: bool) -> None:
        widest, narrowest = max(scales, key=scales.__getitem__), min(scales, key=scales.__getitem__)
        ratio = scales[widest] / scales[narrowest]
        if ratio > MAX_SCALE_RATIO * (1 + 1e-9) and not allow:
            raise ConfigError(
                f"rubric: {widest!r} spans {scales[widest]:g} and {narrowest!r} only {scales[narrowest]:g}, "
                f"{ratio:.0f} times less; a policy would ignore the smaller. Bring the weights within "
                f"{MAX_SCALE_RATIO:.0f} times, set one to 0, or set allow_uneven_scales: true."
            )

    def score(self, trajectory: Trajectory) -> Trajectory:
        """The trajectory with ``reward``, ``reward_parts`` and each turn's ``reward`` filled in.

        Raises:
            ConfigError: a part raises, or gives anything but a finite number per turn.
        """
        if trajectory.stop_reason is StopReason.env_error or not trajectory.turns:
            return replace(trajectory, reward=None, reward_parts=dict.fromkeys(self.weights))
        parts: dict[str, float | None] = {}
        per_turn = [0.0] * len(trajectory.turns)
        for part in self._parts:
            contributions = _measured(part, trajectory)
            parts[part.name] = None if contributions is None else sum(contributions)
            for index, value in enumerate(contributions or ()):
                per_turn[index] += self.weights[part.name] * value
        turns = tuple(
            replace(turn, reward=reward) for turn, reward in zip(trajectory.turns, per_turn, strict=True)
        )
        return replace(trajectory, turns=turns, reward=sum(per_turn), reward_parts=parts)


def _measured(part: RewardPart, trajectory: Trajectory) -> list[float] | None:
    """A part's contributions as plain numbers; a part of the user's own may give anything."""
    place = f"rubric: the part {part.name!r} on episode {trajectory.id} of task {trajectory.task.id}"
    try:
        found = part.measure(trajectory)
        values = None if found is None else [float(value) for value in found]
    except PalestraError:
        raise
    except Exception as error:
        raise ConfigError(f"{place} raised {error!r}; it may give None where it cannot measure") from error
    if values is not None and (len(values) != len(trajectory.turns) or not all(map(math.isfinite, values))):
        raise ConfigError(
            f"{place} gave {values!r:.80}; it must give a finite number for each of the "
            f"{len(trajectory.turns)} turns, or None"
        )
    return values
