"""Ladders: a number that grows in steps as training goes on, such as the turn limit or the difficulty.

Short horizons first make credit easy while little can be done (ScalingInter-RL, Xi et al. 2025,
"AgentGym-RL"). The one surprising choice: a ladder is climbed at most one step an update and never down, so
what a step was enough for can be read from the metrics.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from palestra.errors import ConfigError

ClimbRule = Literal["updates", "success", "truncation"]


class Ladder:
    """Values in the order in which they are reached."""

    def __init__(self, steps: Sequence[int], by: ClimbRule, *, after: int, threshold: float) -> None:
        """Start on the first of ``steps``.

        Args:
            steps: growing values.
            by: ``updates`` climbs after every ``after`` updates; ``success`` once the policy is good enough
                for the step; ``truncation`` once the step cuts too many episodes short.
            after: updates on a step before the next one may come.
            threshold: share of episodes that must have succeeded, or been cut, in an update; not read by
                ``updates``.

        Raises:
            ConfigError: no steps, or they do not grow.
        """
        if not steps or list(steps) != sorted(set(steps)):
            raise ConfigError(f"the steps of a curriculum must grow: {list(steps)}")
        self.steps, self._by, self._after, self._threshold = tuple(steps), by, after, threshold
        self._position = self._stayed = 0

    @property
    def value(self) -> int:
        """The step that training is on."""
        return self.steps[self._position]

    def observe(self, success: float | None, truncated: float | None) -> None:
        """Tell how an update on this step went, in shares of its episodes; None where nothing was scored."""
        self._stayed += 1
        share = {"updates": 1.0, "success": success, "truncation": truncated}[self._by]
        enough = 0.0 if self._by == "updates" else self._threshold
        ready = share is not None and share >= enough and self._stayed >= self._after
        if ready and self._position < len(self.steps) - 1:
            self._position, self._stayed = self._position + 1, 0

    def state(self) -> dict[str, int]:
        """What a checkpoint keeps."""
        return {"position": self._position, "stayed": self._stayed}

    def load(self, state: Mapping[str, int]) -> None:
        """Continue from ``state()``."""
        self._position, self._stayed = state["position"], state["stayed"]
