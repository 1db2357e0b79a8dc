"""Processes that play a share of the episodes, with one CPU thread each.

A decode step of a small policy is many small operations, which a second thread hardly speeds up; a second
process nearly doubles them. The surprising choice: the weights travel with every job. Five megabytes cost
milliseconds, and no player can act on weights that are being changed. A policy of hundreds of megabytes is
not sent: its operations are large, and threads serve it well.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import os
import pickle
import resource
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from multiprocessing import Pipe
from multiprocessing.connection import Connection

import torch

from palestra.errors import PlayerLost
from palestra.policy import Policy
from palestra.policy.hosted import HostedPolicy
from palestra.policy.http import HttpEngine
from palestra.policy.local import LocalEngine
from palestra.rollout import Rollout, collect_share, refuse_many_failures
from palestra.types import StopReason, Task, TrajectoryGroup

Progress = Callable[[StopReason], None]
_Job = tuple[Rollout, list[tuple[int, Task]], int, str, int, int]
"""Rollout, numbered tasks, group size, stage and seed, as ``collect_share`` takes them, and CPU threads."""
_FEWEST_EPISODES = 16
"""A collection with fewer is not worth sharing."""
_MOST_WEIGHT_BYTES = 64 * 2**20
"""A policy with more plays in this process alone."""


def peak_memory_mb() -> float:
    """Most resident memory this process has had; the system counts in kilobytes, on macOS in bytes."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (1024 * 1024 if sys.platform == "darwin" else 1024)


class Players:
    """``count`` processes: this one, and others that start when first needed and end with it."""

    def __init__(self, count: int) -> None:
        """Nothing is started yet."""
        self._others = count - 1
        self._players: list[_Player] = []
        self._closed = False
        self._lock = threading.Lock()  # a sampler's thread starts them, too

    @property
    def peak_memory_mb(self) -> float:
        """Most resident memory of the other processes, added up."""
        return sum(player.peak_memory_mb for player in self._players)

    def start(self) -> None:
        """Let the other processes load their libraries; returns at once. Does nothing once closed."""
        with self._lock:
            if not self._players and not self._closed:
                atexit.register(self.close)
                self._players = [_Player() for _ in range(self._others)]

    def close(self) -> None:
        """End the other processes, whatever they are doing; no other is started."""
        self._closed = True
        self._end()

    def _end(self) -> None:
        with self._lock:
            ending, self._players = self._players, []
        for player in ending:
            player.close()

    def shares(
        self, rollout: Rollout, tasks: Sequence[Task], group_size: int, *, stage: str, seed: int
    ) -> list[bytes]:
        """A collection for the other processes alone, in bytes, so that the weights are those of this moment.

        A large policy is one process's share, with half of the threads. This process keeps what is left.
        """
        total, self._others = self._others + 1, max(1, self._others)
        small = _can_be_sent(rollout.policy)
        parts, threads = (self._others, 1) if small else (1, max(1, total // 2))
        torch.set_num_threads(max(1, total - parts * threads))
        numbered = list(enumerate(tasks))
        jobs = [(rollout, numbered[part::parts], group_size, stage, seed, threads) for part in range(parts)]
        return [pickle.dumps(job) for job in jobs]

    def play_shares(self, shares: Sequence[bytes]) -> list[TrajectoryGroup]:
        """Play what ``shares`` made; a process that dies under it is replaced, and plays it anew, once.

        Raises:
            PlayerLost: it died again, failed outside of an episode, or was closed.
            TooManyFailures: over a fifth of the episodes ended in ``env_error``.
        """
        try:
            groups = self._play_shares(shares)
        except PlayerLost:
            if self._closed:
                raise
            self._end()
            groups = self._play_shares(shares)
        refuse_many_failures(groups)
        return groups

    def _play_shares(self, shares: Sequence[bytes]) -> list[TrajectoryGroup]:
        self.start()
        players = self._players[: len(shares)]
        if self._closed or len(players) < len(shares):
            raise PlayerLost("The processes that play episodes were closed; what was begun is not played.")
        for player, share in zip(players, shares, strict=True):
            player.begin_bytes(share)
        played = [player.finish(lambda _: None) for player in players]
        return [group for row in zip_longest(*played) for group in row if group is not None]

    def collect(
        self,
        rollout: Rollout,
        tasks: Sequence[Task],
        group_size: int,
        *,
        stage: str,
        seed: int,
        progress: Progress,
    ) -> list[TrajectoryGroup]:
        """As ``collect_groups``, with every process playing its share of the groups.

        Raises:
            PlayerLost: a process died, or failed outside of an episode.
            TooManyFailures: over a fifth of the episodes ended in ``env_error``.
        """
        numbered = list(enumerate(tasks))
        shared = len(tasks) * group_size >= _FEWEST_EPISODES and _can_be_sent(rollout.policy)
        if shared:
            self.start()
        players = self._players if shared else []
        parts = len(players) + 1

        def advance(reason: StopReason) -> None:
            progress(reason)
            for player in players:
                player.take_reports(progress)

        threads = torch.get_num_threads()
        torch.set_num_threads(1 if players else threads)
        try:
            for number, player in enumerate(players, start=1):
                player.begin((rollout, numbered[number::parts], group_size, stage, seed, 1))
            own = collect_share(
                rollout, numbered[::parts], group_size, stage=stage, seed=seed, progress=advance
            )
            shares = [own, *(player.finish(progress) for player in players)]
        except BaseException:
            self._end()  # a player in the middle of a job would answer the next one with it
            raise
        finally:
            torch.set_num_threads(threads)
        groups = [shares[number % parts][number // parts] for number in range(len(tasks))]
        refuse_many_failures(groups)
        return groups


def _can_be_sent(policy: Policy) -> bool:
    """Whether another process would play it as fast: of a model, if it is small; of a server, never."""
    engine = getattr(policy, "engine", None)
    if isinstance(policy, HostedPolicy) or isinstance(engine, HttpEngine):
        return False
    return not isinstance(engine, LocalEngine) or engine.weight_bytes <= _MOST_WEIGHT_BYTES


@dataclass(frozen=True)
class _Played:
    groups: list[TrajectoryGroup]
    peak_memory_mb: float


class _Player:
    """This side of one other process."""

    def __init__(self) -> None:
        self._connection, theirs = Pipe()
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__, str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            env={**os.environ, "OMP_NUM_THREADS": "1"},  # for what it does before its first job
        )
        theirs.close()
        self._played: _Played | None = None
        self.peak_memory_mb = 0.0
        self._send(sys.path)

    def begin(self, job: _Job) -> None:
        self._played = None
        self._send(job)

    def begin_bytes(self, job: bytes) -> None:
        """As ``begin``, with a job that was pickled at its time."""
        self._played = None
        try:
            self._connection.send_bytes(job)
        except OSError as error:
            raise self._lost() from error

    def take_reports(self, progress: Progress) -> None:
        """Pass on what there is, without waiting."""
        while self._played is None and self._connection.poll():
            self._take(progress)

    def finish(self, progress: Progress) -> list[TrajectoryGroup]:
        while self._played is None:
            self._take(progress)
        self.peak_memory_mb = self._played.peak_memory_mb
        return self._played.groups

    def close(self) -> None:
        """End it; the connection goes with this object, for a sampler's thread may be at it."""
        self._process.kill()
        self._process.wait()

    def _take(self, progress: Progress) -> None:
        try:
            message = self._connection.recv()
        except (EOFError, OSError) as error:
            raise self._lost() from error
        if isinstance(message, _Played):
            self._played = message
        elif isinstance(message, StopReason):
            progress(message)
        else:
            raise PlayerLost(f"A process that plays episodes failed:\n{message}")

    def _send(self, message: object) -> None:
        try:
            self._connection.send(message)
        except OSError as error:
            raise self._lost() from error

    def _lost(self) -> PlayerLost:
        return PlayerLost(
            f"A process that plays episodes died (exit code {self._process.wait()}; -9 is often too little "
            "memory). Nothing that was finished is lost: go on with --resume, or start a new run with "
            "policy.threads=1, which plays in one process."
        )


def _serve(connection: Connection) -> None:
    """Play what is asked for until the other end is gone; its interrupts are not ours."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.path[:] = connection.recv()
    while True:
        connection.send(_answer(connection.recv(), connection.send))
        gc.collect()  # the job's engine is in a circle, and its cache is large


def _answer(job: _Job, progress: Progress) -> _Played | str:
    """What a job came to, or the traceback."""
    rollout, numbered, group_size, stage, seed, threads = job
    torch.set_num_threads(threads)
    try:
        groups = collect_share(rollout, numbered, group_size, stage=stage, seed=seed, progress=progress)
    except Exception:
        return traceback.format_exc()
    return _Played(groups, peak_memory_mb())


if __name__ == "__main__":
    from palestra.pipeline import players  # under its own name, or the answers' classes would be __main__'s

    with contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError):
        players._serve(Connection(int(sys.argv[1])))
