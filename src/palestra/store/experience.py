"""The experience store: what a learner may learn from, its newest updates hot and all of them in shards.

The online loop adds an update's groups and asks for those that are fresh enough for the version it trains;
viewer and detectors read the same shards. An update is written first, as an immutable Parquet file of the run
folder. The one surprising choice: a hot update is kept as the bytes of its shard and decoded when asked for.
They are a fraction of the records' size, and what is hot and what is cold cannot differ.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import compress
from pathlib import Path

from palestra.errors import ConfigError, StoreError
from palestra.store.folder import RunFolder
from palestra.store.trajectories import decode_groups, read_shard
from palestra.types import TrajectoryGroup


@dataclass(slots=True)
class _HotUpdate:
    """An update in memory."""

    shard: bytes
    """Its Parquet file."""
    versions: tuple[int, ...]
    """The oldest policy version in each group."""
    given: bool
    """Whether the learner had it."""


class ExperienceStore:
    """A stage's groups: the newest updates hot, each update in ``trajectories/<stage>/update-N.parquet``.

    Updates are numbered from 1 and added in rising order, each once. A shard past ``after_update`` was left
    by a run that was killed before its next checkpoint: it is not read, and adding that update again replaces
    it whole.

    Example::

        store = ExperienceStore(run, "rl", max_policy_lag=1)
        store.add(1, groups)
        store.fresh(version=0)  # what to learn from
        store.read(1)  # the same groups, at any later time
    """

    def __init__(
        self,
        run: RunFolder,
        stage: str,
        *,
        max_policy_lag: int = 0,
        hot_updates: int = 2,
        after_update: int = 0,
    ) -> None:
        """Start a stage, or go on with it: what it learned from before is read on demand.

        Args:
            run: the run folder that holds the shards.
            stage: the stage they belong to, such as ``rl``.
            max_policy_lag: how many policy versions older than the one that learns a group may be; 0 is
                on-policy.
            hot_updates: most updates in memory.
            after_update: the update that the loaded checkpoint was taken after; 0 at the start of a stage.

        Raises:
            ConfigError: if the lag is negative, or no update may be hot.
        """
        if max_policy_lag < 0 or hot_updates < 1:
            raise ConfigError(
                f"max_policy_lag is {max_policy_lag} and hot_updates {hot_updates}: a lag is at least 0, "
                "and at least one update is hot"
            )
        self._run, self._stage = run, stage
        self._max_policy_lag, self._hot_updates = max_policy_lag, hot_updates
        self._last, self._stale = after_update, 0
        self._hot: dict[int, _HotUpdate] = {}

    def add(self, update: int, groups: Sequence[TrajectoryGroup]) -> None:
        """Write the groups of an update to its shard, then keep it hot; the oldest goes cold.

        Raises:
            StoreError: if the update does not come after the last one, or as ``RunFolder.write_groups``.
                Nothing is kept then.
        """
        if update <= self._last:
            raise StoreError(
                f"update {update} of {self._stage!r} cannot be added after update {self._last}: a shard is "
                "never rewritten. To play updates again, resume from a checkpoint before them"
            )
        self._run.write_groups(self._stage, f"update-{update}", groups)
        self._last = update
        self._keep(update, groups)

    def fresh(self, version: int) -> list[TrajectoryGroup]:
        """Hot groups not given before, no attempt over ``max_policy_lag`` versions older than ``version``.

        Any other is left out whole: it was played for nothing and counts in ``experience/stale``.
        """
        self._stale = 0
        groups: list[TrajectoryGroup] = []
        for update, hot in self._hot.items():
            if hot.given:
                continue
            hot.given = True
            fresh = [version - oldest <= self._max_policy_lag for oldest in hot.versions]
            groups += compress(self.read(update), fresh)
            self._stale += fresh.count(False)
        return groups

    def read(self, update: int) -> list[TrajectoryGroup]:
        """The groups of any update, hot or cold, equal to what was added.

        Raises:
            StoreError: if the update was not added yet, or its shard is missing or torn.
        """
        if update > self._last:
            raise StoreError(
                f"update {update} of {self._stage!r} was not added yet; the last is {self._last}"
            )
        hot = self._hot.get(update)
        return decode_groups(hot.shard if hot else read_shard(self._path(update)), self._path(update))

    @property
    def hot_bytes(self) -> int:
        """Bytes of the hot updates; they vary a little, since wall times are stored too."""
        return sum(len(hot.shard) for hot in self._hot.values())

    def metrics(self) -> dict[str, float]:
        """How many updates are in memory, and the groups that the last ``fresh`` lost to age."""
        return {"experience/hot_updates": len(self._hot), "experience/stale": self._stale}

    def _keep(self, update: int, groups: Sequence[TrajectoryGroup]) -> None:
        versions = tuple(min(each.policy_version for each in group.trajectories) for group in groups)
        self._hot[update] = _HotUpdate(read_shard(self._path(update)), versions, given=False)
        if len(self._hot) > self._hot_updates:
            del self._hot[next(iter(self._hot))]

    def _path(self, update: int) -> Path:
        return self._run.trajectory_file(self._stage, f"update-{update}")
