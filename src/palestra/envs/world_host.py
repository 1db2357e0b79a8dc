"""The process in which an isolated world lives, and the one that forks it.

Loads the world's code once, then forks a child for each episode that is asked for. The surprising choice: a
plain fork of a process with one thread, so an episode starts in milliseconds in memory that no other episode
has touched, and whatever it leaks ends with it.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import resource
import signal
import socket
import struct
import sys
import time
import traceback
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

from palestra.envs.registry import load_env, make_env
from palestra.errors import PalestraError
from palestra.types import ToolCall

START, END, DIED = b"s", b"e", b"d"
"""What the control socket is told: fork for the connection that comes along; end the process named; say how
one ended by itself."""
NUMBER = struct.Struct("q")
"""Process numbers and wait statuses on the control socket."""


_DYING = 1.0


@dataclass(frozen=True)
class Hosted:
    """What the host is told of the world."""

    name: str
    """As for ``make_env``."""
    options: Mapping[str, Any]
    memory_mb: int | None
    """Most address space of an episode's process, in MiB."""


class _Actor:
    """What can be asked of a world in its process. Made by the first message."""

    def __init__(self, hosted: Hosted) -> None:
        self._world: Any = make_env(hosted.name, **hosted.options)
        self._plan: Iterator[ToolCall] = iter(())

    def reset(self, seed: int | None, options: dict[str, Any] | None) -> tuple[Any, ...]:
        observation, info = self._world.reset(seed=seed, options=options)
        world = self._world
        told = world.system_prompt, getattr(world, "schema_tools", ()), getattr(world, "text_prompt", "")
        return observation, info, told, tuple(world.milestones)

    def step(self, action: str) -> Any:
        return self._world.step(action)

    def close(self) -> None:
        self._world.close()

    def get(self, name: str) -> Any:
        return getattr(self._world, name)

    def action_text(self, call: ToolCall) -> Any:
        return self._world.action_text(call)

    def plan(self) -> None:
        """Start the oracle anew, from the state as it is."""
        self._plan = self._world.oracle(self._world.state)

    def next_of_plan(self) -> ToolCall | None:
        return next(self._plan, None)


def _serve(connection: Connection, hosted: Hosted) -> None:
    """Answer until the other end is gone."""
    actor: _Actor | None = None
    while True:
        verb, arguments = connection.recv()
        try:
            actor = actor or _Actor(hosted)
            answer = "answer", getattr(actor, verb)(*arguments)
            message = pickle.dumps(answer)
        except PalestraError as error:
            message = pickle.dumps(("refused", str(error)))
        except BaseException:
            message = pickle.dumps(("raised", traceback.format_exc()))
        connection.send_bytes(message)


def _episode(connection: Connection, hosted: Hosted) -> None:
    """All of a child's life."""
    os.setsid()  # so that ending its group ends what it started, too
    if hosted.memory_mb is not None:
        limit = hosted.memory_mb * 2**20
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    with contextlib.suppress(EOFError, OSError):
        _serve(connection, hosted)


def main(handle: int) -> None:
    """Serve the control socket of that number until its other end is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with contextlib.suppress(EOFError, OSError), socket.socket(fileno=handle) as control:
        _host(control)


def _host(control: socket.socket) -> None:
    """Fork and end episodes until the other end is gone, then end those that are left."""
    (size,) = NUMBER.unpack(read(control, NUMBER.size))
    sys.path[:], packed = pickle.loads(read(control, size))
    hosted: Hosted = pickle.loads(packed)
    with contextlib.suppress(Exception):  # what is wrong with it, an episode says
        load_env(hosted.name)
    running: set[int] = set()
    try:
        while True:
            order, handles, _, _ = socket.recv_fds(control, 1, 1)
            if order == START:
                pid = os.fork()
                if pid == 0:
                    try:
                        control.close()
                        _episode(Connection(handles[0]), hosted)
                    finally:
                        os._exit(0)
                os.close(handles[0])
                running.add(pid)
                control.sendall(NUMBER.pack(pid))
            elif order in (END, DIED):
                (pid,) = NUMBER.unpack(read(control, NUMBER.size))
                running.discard(pid)
                control.sendall(NUMBER.pack(_end(pid, _DYING if order == DIED else 0.0)))
            else:
                return
    finally:
        for pid in running:
            _end(pid)


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


def read(control: socket.socket, size: int) -> bytes:
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
