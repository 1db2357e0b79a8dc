"""Worlds in processes of their own: one that hangs, crashes or leaks costs its episode and nothing else.

A rollout makes an ``IsolatedWorld`` where it would make the world; ``reset`` and ``step`` are awaited, so
other episodes go on meanwhile. The surprising choice: every episode has a new process, forked from a host
that has loaded the world's code (``world_host.py``); there is no pool whose members grow old.
"""

from __future__ import annotations

import asyncio
import os
import pickle
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from palestra.envs.forking import DIED, END, Forked, ForkHost, ProcessCounts
from palestra.envs.world_host import Hosted
from palestra.errors import ConfigError, WorldCrashed, WorldError
from palestra.types import ToolCall, ToolSpec


@dataclass(frozen=True)
class IsolatedWorlds:
    """Makes worlds in processes of their own. Can be sent to other processes."""

    name: str
    """As for ``make_env``."""
    options: Mapping[str, Any] = field(default_factory=dict)
    step_seconds: float = 30.0
    """Most wall time of ``reset``, ``step`` or ``close``."""
    memory_mb: int | None = None
    """Most address space of a process, in MiB; without limit if None."""

    def __post_init__(self) -> None:
        """Refuse what cannot work here."""
        if not hasattr(os, "fork"):
            raise ConfigError("isolated worlds need a system that forks, such as Linux or macOS")

    def __call__(self) -> IsolatedWorld:
        """A world; its process starts with ``reset``."""
        return IsolatedWorld(self._host, self.step_seconds)

    @property
    def counts(self) -> ProcessCounts:
        """What became of the processes so far, of all with this world, options and memory."""
        return self._host.counts

    @property
    def host_pid(self) -> int | None:
        """The process that forks, or None while there is none."""
        return self._host.pid

    @property
    def _host(self) -> ForkHost:
        packed = pickle.dumps(Hosted(self.name, dict(self.options), self.memory_mb))
        if packed not in _HOSTS:
            _HOSTS[packed] = ForkHost(
                [sys.executable, "-c", _HOST],
                pickle.dumps((sys.path, packed)),
                {**os.environ, "OMP_NUM_THREADS": "1"},
            )
        return _HOSTS[packed]


class IsolatedWorld:
    """One episode's world, on this side. ``reset``, ``step`` and ``close`` are awaited."""

    system_prompt = text_prompt = ""
    """Known after ``reset``."""
    schema_tools: Sequence[ToolSpec] = ()
    """Known after ``reset``."""
    milestones: Mapping[str, Any] = {}
    """Names only; known after ``reset``."""
    state = None
    """Lives in the other process; ``oracle`` looks at it there."""

    def __init__(self, host: ForkHost, step_seconds: float) -> None:
        """No process yet."""
        self._host, self._seconds = host, step_seconds
        self._process: Forked | None = None

    async def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        """Start an episode in a new process.

        Raises:
            WorldCrashed: the world raised, or its process died or did not answer in time.
            WorldError: the world refuses the task.
        """
        await self.close()
        self._process = self._host.start()
        found = await self._answer("reset", seed, options)
        observation, info, told, names = found
        self.system_prompt, self.schema_tools, self.text_prompt = told
        self.milestones = dict.fromkeys(names)
        return observation, info

    async def step(self, action: str) -> Any:
        """Take one action; raises as ``reset``."""
        return await self._answer("step", action)

    async def close(self) -> None:
        """Let the world close, then end its process and all that it started."""
        if self._process is not None:
            try:
                await self._answer("close")
            except WorldError:
                return  # ended already, or of no more use
            finally:
                self._end()

    def oracle(self, state: None) -> Iterator[ToolCall]:
        """The right actions from here on, as the world's own oracle yields them."""
        self._answer_now("plan")
        while (call := self._answer_now("next_of_plan")) is not None:
            yield call

    def action_text(self, call: ToolCall) -> str:
        """A call as text in the world's format."""
        return str(self._answer_now("action_text", call))

    @property
    def tool_specs(self) -> Sequence[ToolSpec]:
        """Declared tools."""
        return tuple(self._answer_now("get", "tool_specs"))

    @property
    def reply_lost(self) -> bool:
        """Whether a fault took something from the last reply."""
        return bool(self._answer_now("get", "reply_lost"))

    async def _answer(self, verb: str, *arguments: Any) -> Any:
        process = self._ask(verb, arguments)
        ready, loop = asyncio.Event(), asyncio.get_running_loop()
        handle = process.connection.fileno()
        loop.add_reader(handle, ready.set)
        try:
            await asyncio.wait_for(ready.wait(), self._seconds)
        except TimeoutError:
            raise self._late(verb) from None
        finally:
            loop.remove_reader(handle)
        return self._take(process, verb)

    def _answer_now(self, verb: str, *arguments: Any) -> Any:
        process = self._ask(verb, arguments)
        if not process.connection.poll(self._seconds):
            raise self._late(verb)
        return self._take(process, verb)

    def _ask(self, verb: str, arguments: tuple[Any, ...]) -> Forked:
        if self._process is None:
            raise WorldError("the episode is not started, or its process is gone; call reset")
        try:
            self._process.connection.send((verb, arguments))
        except OSError:
            raise self._died(verb) from None
        return self._process

    def _take(self, process: Forked, verb: str) -> Any:
        try:
            kind, value = process.connection.recv()
        except (EOFError, OSError):
            raise self._died(verb) from None
        if kind == "answer":
            return value
        if kind == "refused":
            raise WorldError(value)
        raise WorldCrashed(f"in {verb}, in its own process:\n{value}")

    def _late(self, verb: str) -> WorldCrashed:
        self._host.counts.stopped += 1
        self._end()
        return WorldCrashed(f"no answer to {verb} within {self._seconds:g} s; its process was stopped")

    def _died(self, verb: str) -> WorldCrashed:
        self._host.counts.died += 1
        how = _told(self._end(DIED))
        return WorldCrashed(f"the world's process died in {verb}: {how}")

    def _end(self, order: bytes = END) -> int:
        """End the process; returns its wait status."""
        process, self._process = self._process, None
        return self._host.end(process, order) if process else 0


_HOST = "import sys; from palestra.envs import world_host; world_host.main(int(sys.argv[1]))"
_HOSTS: dict[bytes, ForkHost] = {}
"""One for each world, its options and its limits."""


def _told(status: int) -> str:
    if os.WIFSIGNALED(status):
        return f"killed by {signal.Signals(os.WTERMSIG(status)).name}, often for too little memory"
    return f"exit code {os.waitstatus_to_exitcode(status)}"
