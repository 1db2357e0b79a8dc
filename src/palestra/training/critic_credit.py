"""Credit by a critic (PPO): advantages from values, and the critic's own lesson from the same batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain, islice

from palestra.training.advantages import batch_zscore, gae, lean
from palestra.training.critic import Critic, explained_variance
from palestra.training.segments import CreditUnit, make_segments, state_segments
from palestra.types import Segment, Trajectory, TrajectoryGroup


@dataclass(frozen=True)
class CriticCredit:
    """Scored groups to rows with advantages; attempts are not compared with each other."""

    critic: Critic
    unit: CreditUnit
    gamma: float
    gae_lambda: Callable[[], float]
    """Lambda now: a schedule may move it."""
    warmup: int
    """Batches from which only the critic learns."""
    negative_weight: float

    def __call__(self, groups: Sequence[TrajectoryGroup]) -> tuple[list[Segment], dict[str, float]]:
        """Rows for the policy's update (none while the critic warms up), and what the critic came to."""
        scored = [t for group in groups for t in group.trajectories if t.reward is not None and t.turns]
        if not scored:
            return [], {}
        cut = [each.stop_reason.is_truncation for each in scored]
        rows = [state_segments(each, self.unit, cut=was) for each, was in zip(scored, cut, strict=True)]
        known_of_row = iter(self.critic.values([*chain(*rows)]))
        values = [[*chain(*(next(known_of_row) for _ in mine))] for mine in rows]
        after = [found.pop() if was else 0.0 for found, was in zip(values, cut, strict=True)]
        gae_lambda = self.gae_lambda()
        advantages = [
            gae(self._rewards(each), known, last, gamma=self.gamma, gae_lambda=gae_lambda)
            for each, known, last in zip(scored, values, after, strict=True)
        ]
        returns = [
            [advantage + value for advantage, value in zip(mine, known, strict=True)]
            for mine, known in zip(advantages, values, strict=True)
        ]
        metrics = self._teach(scored, returns, values) | {"credit/gae_lambda": gae_lambda}
        if self.critic.updates <= self.warmup:
            return [], metrics
        return self._rows(scored, advantages), metrics

    def _teach(
        self,
        scored: Sequence[Trajectory],
        returns: Sequence[Sequence[float]],
        values: Sequence[Sequence[float]],
    ) -> dict[str, float]:
        rows = [row for each in scored for row in state_segments(each, self.unit)]
        metrics = self.critic.fit(rows, _by_row(rows, returns), _by_row(rows, values))
        explained = explained_variance([*chain(*values)], [*chain(*returns)])
        return metrics if explained is None else metrics | {"critic/explained_variance": explained}

    def _rows(self, scored: Sequence[Trajectory], advantages: Sequence[Sequence[float]]) -> list[Segment]:
        """Advantages as z-scores of the batch; no rows where there is nothing to choose between."""
        zscores = batch_zscore([[*chain(*advantages)]])[0]
        if not any(zscores):
            return []
        scaled = iter(zscores)
        made = []
        for each in scored:
            lengths = [len(turn.action_ids) if self.unit == "token" else 1 for turn in each.turns]
            given = [
                [lean(next(scaled) or 0.0, self.negative_weight) for _ in range(length)] for length in lengths
            ]
            made += make_segments(each, given if self.unit == "token" else [*chain(*given)])
        return made

    def _rewards(self, trajectory: Trajectory) -> list[float]:
        """A reward a step; a turn's reward falls on its last token."""
        if self.unit == "turn":
            return [turn.reward or 0.0 for turn in trajectory.turns]
        return [
            reward
            for turn in trajectory.turns
            for reward in [*[0.0] * (len(turn.action_ids) - 1), turn.reward or 0.0]
        ]


def _by_row(rows: Sequence[Segment], numbers: Sequence[Sequence[float]]) -> list[list[float]]:
    """Numbers of the marked states by trajectory, to numbers by row."""
    flat = chain(*numbers)
    return [[*islice(flat, sum(row.action_mask))] for row in rows]
