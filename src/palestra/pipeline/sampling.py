"""Batches that are sampled beside the learning, in processes of their own.

The learner goes on with the weights of which the sampler was sent a copy, and fetches what it sampled when it
needs it. The surprising choice: a thread feeds the processes, one batch after the other, since a pipe takes
what is sent only as fast as it is read.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from queue import SimpleQueue

from palestra.pipeline.curriculum import Curriculum
from palestra.pipeline.players import Players
from palestra.pipeline.workshop import Workshop
from palestra.policy import Policy
from palestra.rollout import Rollout
from palestra.training import Begin, Sampled, timed
from palestra.types import Task


def make_begin(workshop: Workshop, policy: Callable[[int], Policy], curriculum: Curriculum) -> Begin:
    """What begins collections: one that is played when it is waited for, or with a lag beside the learning.

    Args:
        workshop: of the run.
        policy: the one to play, by the version of its weights.
        curriculum: says how many turns an episode may have.
    """
    players = workshop.players if workshop.config.rl.max_policy_lag else None
    sampler = Sampler(players) if players is not None else None

    def begin(
        version: int, tasks: Sequence[Task], attempts: int, name: str, seed: int
    ) -> Callable[[], Sampled]:
        playing, limit = policy(version), curriculum.max_turns
        if sampler is not None:
            return sampler.begin(workshop.rollout(playing, limit), tasks, attempts, stage=name, seed=seed)
        play = partial(workshop.collect, playing, tasks, attempts, stage=name, seed=seed, max_turns=limit)
        return partial(timed, play)

    return begin


class Sampler:
    """Plays collections in the order in which they are begun."""

    def __init__(self, players: Players) -> None:
        """``players`` are to do nothing else while a collection is under way."""
        self._players = players
        self._jobs: SimpleQueue[tuple[list[bytes], Future[Sampled]]] = SimpleQueue()
        self._ended: float | None = None
        threading.Thread(target=self._work, daemon=True).start()

    def begin(
        self, rollout: Rollout, tasks: Sequence[Task], group_size: int, *, stage: str, seed: int
    ) -> Callable[[], Sampled]:
        """Begin a collection with the weights of this moment; what is returned waits for it.

        That raises what ``Players.play_shares`` does.
        """
        shares = self._players.shares(rollout, tasks, group_size, stage=stage, seed=seed)
        sampled: Future[Sampled] = Future()
        self._jobs.put((shares, sampled))
        return sampled.result

    def _work(self) -> None:
        while True:
            shares, sampled = self._jobs.get()
            began = time.perf_counter()
            idle = 0.0 if self._ended is None else began - self._ended
            try:
                groups = self._players.play_shares(shares)
            except BaseException as error:  # it is the learner's to raise
                sampled.set_exception(error)
            else:
                self._ended = time.perf_counter()
                sampled.set_result(Sampled(groups, self._ended - began, idle))
