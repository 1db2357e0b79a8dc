"""Processes forked on request from a host that has loaded what they need.

Isolated worlds and the sandbox both start here: a fresh process takes a millisecond, has none of the caller's
memory, and ends with all that it started. The surprising choice: standard library and ``palestra.errors``
only, since a host may be a bare interpreter that must not know the rest of the package.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing import Pipe
from multiprocessing.connection import Connection

from palestra.errors import WorldCrashed

END, DIED = b"e", b"d"
"""What the control socket is told of a process: end it; say how it ended by itself."""
_START = b"s"
"""Fork for the connection that comes along."""
_NUMBER = struct.Struct("q")
"""Process numbers and wait statuses on the control socket."""
_DYING = 1.0
"""Seconds."""
_PR_SET_PDEATHSIG = 1


@dataclass
class ProcessCounts:
    """What became of the processes of a host, in this process."""

    started: int = 0
    open: int = 0
    """Of these, not ended; 0 once all episodes are over, or something leaks."""
    died: int = 0
    """By themselves."""
    stopped: int = 0
    """Because they did not answer in time."""


@dataclass(frozen=True)
class Forked:
    """A process, and this end of the connection to it."""

    pid: int
    connection: Connection


class ForkHost:
    """This side of a process that forks; it starts with the first ``start`` and ends with this process."""

    def __init__(self, command: Sequence[str], greeting: bytes, env: Mapping[str, str]) -> None:
        """Start nothing yet.

        Args:
            command: starts the host; the number of its control socket is added as the last argument.
            greeting: the first it reads there, as ``greeted`` returns it.
            env: its whole environment.
        """
        self.counts = ProcessCounts()
        self._command, self._greeting, self._env = command, greeting, env
        self._lock = threading.Lock()
        self._control: socket.socket | None = None
        self._popen: subprocess.Popen[bytes] | None = None
        self._owner = 0

    @property
    def pid(self) -> int | None:
        """Of the host; None while there is none."""
        return self._popen.pid if self._popen else None

    def start(self) -> Forked:
        """Fork a process.

        Raises:
            WorldCrashed: the host is gone; the next call starts another.
        """
        ours, theirs = Pipe()
        try:
            with self._asking(), theirs:
                control = self._launched()
                socket.send_fds(control, [_START], [theirs.fileno()])
                (pid,) = _NUMBER.unpack(_read(control, _NUMBER.size))
        except BaseException as error:
            ours.close()
            if isinstance(error, EOFError | OSError):
                raise WorldCrashed(f"the process that forks others is gone: {error!r}") from None
            raise
        self.counts.started += 1
        self.counts.open += 1
        return Forked(pid, ours)

    def end(self, process: Forked, order: bytes = END) -> int:
        """End a process and its group, or bury it; returns its wait status, 0 where nobody knows."""
        process.connection.close()
        self.counts.open -= 1
        with contextlib.suppress(EOFError, OSError), self._asking():
            if self._control is not None:
                self._control.sendall(order + _NUMBER.pack(process.pid))
                return int(_NUMBER.unpack(_read(self._control, _NUMBER.size))[0])
        return 0

    def close(self) -> None:
        """End the host, and with it all that it forked."""
        with self._lock:
            self._drop()

    @contextlib.contextmanager
    def _asking(self) -> Iterator[None]:
        """One question at a time. One that is broken off, by a signal too, leaves no host in doubt."""
        with self._lock:
            try:
                yield
            except BaseException:
                self._drop()
                raise

    def _launched(self) -> socket.socket:
        if self._control is not None and self._owner == os.getpid():
            return self._control
        ours, theirs = socket.socketpair()  # a child of this process has a host of its own
        with theirs:
            self._popen = subprocess.Popen(
                [*self._command, str(theirs.fileno())], pass_fds=[theirs.fileno()], env=dict(self._env)
            )
        ours.sendall(_NUMBER.pack(len(self._greeting)) + self._greeting)
        self._control, self._owner = ours, os.getpid()
        atexit.register(self.close)
        return ours

    def _drop(self) -> None:
        if self._control is not None and self._popen is not None and self._owner == os.getpid():
            self._control.close()
            self._popen.wait()
        self._control = self._popen = None
        atexit.unregister(self.close)


def greeted(control: socket.socket) -> bytes:
    """In the host: what it is told first.

    Raises:
        EOFError: the other end is gone.
    """
    (size,) = _NUMBER.unpack(_read(control, _NUMBER.size))
    return _read(control, size)


def serve(control: socket.socket, child: Callable[[int], None]) -> None:
    """In the host: fork and end processes until the other end is gone, then end those that are left.

    Args:
        control: connected to a ``ForkHost``.
        child: all of a process's life, given the handle of its connection; its own session's leader.
    """
    running: set[int] = set()
    try:
        while True:
            order, handles, _, _ = socket.recv_fds(control, 1, 1)
            if order == _START:
                pid = os.fork()
                if pid == 0:
                    _live(control, handles[0], child)
                os.close(handles[0])
                running.add(pid)
                control.sendall(_NUMBER.pack(pid))
            elif order in (END, DIED):
                (pid,) = _NUMBER.unpack(_read(control, _NUMBER.size))
                known = pid in running  # not where it was forked by a host before this one
                running.discard(pid)
                status = _end(pid, _DYING if order == DIED else 0.0) if known else 0
                control.sendall(_NUMBER.pack(status))
            else:
                return
    finally:
        for pid in running:
            _end(pid)


def _live(control: socket.socket, handle: int, child: Callable[[int], None]) -> None:
    try:
        control.close()
        os.setsid()  # so that ending its group ends what it started, too
        if sys.platform == "linux":  # elsewhere one that hangs would outlive a host that is killed
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        child(handle)
    finally:
        os._exit(0)


def _end(pid: int, patience: float = 0.0) -> int:
    """Kill a child and everything it started; returns its wait status, 0 where it was fine until now.

    One that dies lets go of its connection before it is dead, so it may take some ``patience``, in seconds.
    """
    until = time.monotonic() + patience
    ended, status = os.waitpid(pid, os.WNOHANG)
    while not ended and time.monotonic() < until:
        time.sleep(0.001)
        ended, status = os.waitpid(pid, os.WNOHANG)
    with contextlib.suppress(ProcessLookupError, PermissionError):  # no group yet, or none any more
        os.killpg(pid, signal.SIGKILL)
    if not ended:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    return status


def _read(control: socket.socket, size: int) -> bytes:
    """Exactly ``size`` bytes.

    Raises:
        EOFError: the other end is gone.
    """
    data = b""
    while len(data) < size:
        chunk = control.recv(size - len(data))
        if not chunk:
            raise EOFError
        data += chunk
    return data
