"""The batches of a stage, of which some are sampled ahead of the update that learns.

On-policy, a batch is played when it is asked for. Else the next ones are begun before the update that comes
first, with the weights of that moment, so that sampling and learning go on side by side. The surprising
choice: none is begun past the next checkpoint. So nothing is under way when one is taken, which
batch meets which weights follows from the update's number alone, and a resumed run equals one that was never
interrupted.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass

from palestra.training.loop_parts import LoopParts, LoopSettings, Sampled
from palestra.types import TrajectoryGroup


def sampling_seed(seed: int, stage: str) -> int:
    """The seed of a collection: differs between runs, stages and updates."""
    return random.Random(f"{seed}:{stage}").getrandbits(40)


def is_due(update: int, settings: LoopSettings) -> bool:
    """Whether a validation and a checkpoint come after this update."""
    return update % settings.checkpoint_every == 0 or update == settings.updates


def timed(play: Callable[[], list[TrajectoryGroup]]) -> Sampled:
    """Play at once, where it is asked for."""
    began = time.perf_counter()
    groups = play()
    return Sampled(groups, time.perf_counter() - began, idle=None)


@dataclass(frozen=True)
class Batch:
    """What an update learns from, and how it came about."""

    sampled: Sampled
    waited: float
    """Seconds that the learner waited for it."""


class Batches:
    """Begins batches in the order of updates and gives each once."""

    def __init__(self, settings: LoopSettings, parts: LoopParts, after_update: int) -> None:
        """Nothing is begun yet; the first batch is that of the update after ``after_update``."""
        self._settings, self._parts = settings, parts
        self._next = after_update + 1
        self._begun: dict[int, Callable[[], Sampled]] = {}

    def take(self, update: int, version: int) -> Batch:
        """The batch of an update, after those that may be are begun with the weights of ``version``.

        Raises:
            PlayerLost: the process that played it is gone, twice.
            TooManyFailures: over a fifth of its episodes ended in ``env_error``.
        """
        last = update
        while last < update + self._settings.ahead and not is_due(last, self._settings):
            last += 1
        for number in range(self._next, last + 1):
            self._begun[number] = self._begin(number, version)
        self._next = max(self._next, last + 1)
        began = time.perf_counter()
        sampled = self._begun.pop(update)()
        return Batch(sampled, time.perf_counter() - began)

    def _begin(self, update: int, version: int) -> Callable[[], Sampled]:
        settings, name = self._settings, f"{self._settings.stage}/{update}"
        tasks = self._parts.pick_tasks(update)
        seed = sampling_seed(settings.seed, name)
        return self._parts.begin(version, tasks, settings.group_size, name, seed)
