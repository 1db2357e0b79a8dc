"""The process in which an isolated world lives, and the one that forks it.

Loads the world's code once, then forks a child for each episode that is asked for. The surprising choice: a
plain fork of a process with one thread, so an episode starts in milliseconds in memory that no other episode
has touched, and whatever it leaks ends with it.
"""

from __future__ import annotations

import contextlib
import pickle
import resource
import signal
import socket
import sys
import traceback
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

from palestra.envs.forking import greeted, serve
from palestra.envs.registry import load_env, make_env
from palestra.errors import PalestraError, WorldCrashed
from palestra.types import ToolCall


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
        except WorldCrashed as error:  # of the sandbox's host, for instance
            message = pickle.dumps(("raised", str(error)))
        except PalestraError as error:
            message = pickle.dumps(("refused", str(error)))
        except BaseException:
            message = pickle.dumps(("raised", traceback.format_exc()))
        connection.send_bytes(message)


def _episode(hosted: Hosted, handle: int) -> None:
    """All of a child's life."""
    if hosted.memory_mb is not None:
        limit = hosted.memory_mb * 2**20
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    with contextlib.suppress(EOFError, OSError):
        _serve(Connection(handle), hosted)


def main(handle: int) -> None:
    """Serve the control socket of that number until its other end is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with contextlib.suppress(EOFError, OSError), socket.socket(fileno=handle) as control:
        sys.path[:], packed = pickle.loads(greeted(control))
        hosted: Hosted = pickle.loads(packed)
        with contextlib.suppress(Exception):  # what is wrong with it, an episode says
            load_env(hosted.name)
        serve(control, partial(_episode, hosted))
