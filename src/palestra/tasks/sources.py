"""Task sources: what a stage draws its tasks from, and the check that held-out tasks stay unseen.

A generated source makes tasks from seeds on demand. The one surprising choice: disjoint seeds do not prove
disjoint content, so leaks are found by content hash, and ``take`` skips a leaked task instead of failing.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Protocol

from palestra.errors import ConfigError, WorldError
from palestra.types import Split, Task

SPLIT_RANGES: Mapping[Split, range] = {
    "train": range(1_000_000),
    "validation": range(1_000_000, 2_000_000),
    "test": range(2_000_000, 3_000_000),
}
"""Seeds of each split; disjoint."""

_MOST_SKIPPED_PER_TASK = 20
_SKIPS_AT_LEAST = 1_000


class TaskSource(Protocol):
    """Where tasks come from. May be endless."""

    def take(self, split: Split, n: int, *, exclude: Collection[str] = ()) -> list[Task]:
        """The first ``n`` tasks of a split whose content hash is not in ``exclude``; always the same ones."""
        ...

    def sample(self, split: Split, n: int, rng: random.Random) -> list[Task]:
        """``n`` different tasks of a split, drawn with ``rng``."""
        ...


class GeneratedTasks:
    """Tasks made from seeds by a world's ``make_task``."""

    def __init__(
        self,
        make_task: Callable[[int, Split], Task],
        ranges: Mapping[Split, range] = SPLIT_RANGES,
        keep: Callable[[Task], bool] | None = None,
    ) -> None:
        """Draw from ``make_task``.

        Args:
            make_task: a pure function of seed and split, such as ``env.make_task``.
            ranges: the seeds of each split.
            keep: which tasks there are; the others are passed over. All if None.

        Raises:
            ConfigError: if two splits share a seed.
        """
        self.make_task = make_task
        self._keep = keep
        self.ranges = dict(ranges)
        ordered = sorted(self.ranges.items(), key=lambda item: item[1].start)
        for (name, seeds), (other, others) in itertools.pairwise(ordered):
            if others.start < seeds.stop:
                raise ConfigError(f"splits {name!r} and {other!r} share seeds: {seeds} and {others}")

    def take(self, split: Split, n: int, *, exclude: Collection[str] = ()) -> list[Task]:
        """The first ``n`` tasks by seed whose content hash is not in ``exclude``.

        Raises:
            ConfigError: for a split without seeds.
            WorldError: when the split runs out, or nearly all of its tasks are excluded.
        """
        tasks: list[Task] = []
        allowed = _SKIPS_AT_LEAST + _MOST_SKIPPED_PER_TASK * n
        for seed in self._seeds(split)[: n + allowed]:
            if len(tasks) == n:
                break
            task = self.make_task(seed, split)
            if task.content_hash not in exclude and (self._keep is None or self._keep(task)):
                tasks.append(task)
        if len(tasks) < n:
            raise WorldError(
                f"only {len(tasks)} of {n} {split} tasks are not excluded: the world has too few"
            )
        return tasks

    def sample(self, split: Split, n: int, rng: random.Random) -> list[Task]:
        """``n`` tasks of different seeds, drawn with ``rng``.

        Raises:
            ConfigError: for a split without seeds, or with fewer than ``n``.
            WorldError: nearly all tasks are passed over.
        """
        seeds = self._seeds(split)
        if n > len(seeds):
            raise ConfigError(f"split {split!r} has {len(seeds)} seeds, fewer than the {n} asked for")
        if self._keep is None:
            return [self.make_task(seed, split) for seed in rng.sample(seeds, n)]
        drawn = rng.sample(seeds, min(len(seeds), _SKIPS_AT_LEAST + _MOST_SKIPPED_PER_TASK * n))
        kept = list(itertools.islice(filter(self._keep, (self.make_task(seed, split) for seed in drawn)), n))
        if len(kept) < n:
            raise WorldError(
                f"of {len(drawn)} {split} tasks only {len(kept)} are of a kind that is wanted, not {n}: "
                "hold out fewer kinds (world.hold_out), or draw the others more often"
            )
        return kept

    def endless(self, split: Split, rng: random.Random) -> Iterator[Task]:
        """Tasks of a split for ever, seeds drawn with ``rng`` and replaced."""
        seeds = self._seeds(split)
        while True:
            task = self.make_task(rng.choice(seeds), split)
            if self._keep is None or self._keep(task):
                yield task

    def _seeds(self, split: Split) -> range:
        if not self.ranges.get(split):
            raise ConfigError(f"no seeds for split {split!r}; there are {', '.join(sorted(self.ranges))}")
        return self.ranges[split]


def check_leak(train: Iterable[Task], held_out: Iterable[Task]) -> list[Task]:
    """The held-out tasks that are the same problem as a training task, by content hash."""
    known = {task.content_hash for task in train if task.content_hash}
    return [task for task in held_out if task.content_hash in known]
