"""Calls functions of code that nobody trusts, in a process of its own that can do nothing but compute.

Worlds in which the agent writes code judge it by this: values come back as JSON and are compared out here,
where the code cannot reach. The surprising choice: one seccomp filter that needs no rights and no namespaces,
so the guarantee is the same for every user and in every container: no file, no network, no other process.
"""

from __future__ import annotations

import functools
import json
import os
import platform
import re
import select
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from palestra.envs.forking import DIED, END, Forked, ForkHost
from palestra.envs.sandbox_child import system_call_filter
from palestra.errors import ConfigError

_DEEPEST = 50
"""Lists in lists, of a value that comes back."""
Call = tuple[str, Sequence[Any]]
"""A function's name and its arguments, all of JSON's types."""


@dataclass(frozen=True)
class SandboxLimits:
    """What one run may take; what takes more is stopped."""

    steps: int = 50_000
    """Bytecodes that one call may run: stops endless loops alike on every machine."""
    cpu_seconds: int = 1
    """CPU time of the whole run, for loops that are no bytecode of the code's own."""
    seconds: float = 5.0
    """Wall time of the whole run."""
    memory_mb: int = 256
    """Address space, in MiB."""
    answer_bytes: int = 65_536
    """Most bytes that come back."""


@dataclass(frozen=True)
class Called:
    """What one call came to."""

    value: Any = None
    """What it returned, in JSON's types, so a tuple is a list; None if it did not return."""
    failed: str = ""
    """Empty if it returned; else the name of what it raised, or how the run ended: ``killed``,
    ``out of time``, ``answered too much`` or ``no answer``."""
    line: int = 0
    """Of the code, where it raised; 0 where that is not known."""


def call_sandboxed(
    source: str, calls: Sequence[Call], limits: SandboxLimits = SandboxLimits()
) -> tuple[Called, ...]:
    """Run ``source`` as a module and call its functions, one after the other in one process.

    Args:
        source: Python code. What it prints is lost; it can import what ``sandbox_child`` has loaded.
        calls: what to call. The code sees them all, so an expected value must not be among them.
        limits: what the run may take.

    Returns:
        For each call what it came to. Whatever the code does is told here and never raised.

    Raises:
        ConfigError: there is no sandbox on this system; the message says what is missing.
        WorldCrashed: the host of the sandbox is gone; the next call starts another.
    """
    _check_works(os.getpid())
    return _run(source, calls, limits)


def _run(source: str, calls: Sequence[Call], limits: SandboxLimits) -> tuple[Called, ...]:
    job = {
        "source": source,
        "calls": calls,
        "steps": limits.steps,
        "cpu_seconds": limits.cpu_seconds,
        "memory_mb": limits.memory_mb,
    }
    message = json.dumps(job).encode()
    process, order = _host().start(), END
    try:
        process.connection.send_bytes(message)
        text, ending = _read(process, limits)
        order = DIED if ending == "killed" else END
    except OSError:
        text, ending = b"", "killed"
    finally:
        status = _host().end(process, order)
    if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGXCPU:
        ending = "out of time"
    return _understood(text, len(calls), ending)


def _read(process: Forked, limits: SandboxLimits) -> tuple[bytes, str]:
    """All that comes until the other end is closed, and what to call it if that is no answer."""
    handle, data = process.connection.fileno(), b""
    poll, until = select.poll(), time.monotonic() + limits.seconds
    poll.register(handle, select.POLLIN)
    while (left := until - time.monotonic()) > 0:
        if not poll.poll(left * 1000):
            break
        chunk = os.read(handle, limits.answer_bytes)
        if not chunk:
            return data, "killed"
        data += chunk
        if len(data) > limits.answer_bytes:
            return b"", "answered too much"
    return b"", "out of time"


def _understood(text: bytes, count: int, ending: str) -> tuple[Called, ...]:
    """The answer, written by code that may lie: anything but its exact form is none."""
    try:
        answer = json.loads(text)
    except (ValueError, RecursionError):
        return (Called(failed=ending),) * count
    if not isinstance(answer, list) or len(answer) != count:
        return (Called(failed="no answer"),) * count
    return tuple(_understood_one(each) for each in answer)


def _understood_one(told: Any) -> Called:
    match told:
        case ["value", str(text)]:
            try:
                value = json.loads(text)
            except (ValueError, RecursionError):
                return Called(failed="no answer")
            return Called(value) if _is_shallow(value, _DEEPEST) else Called(failed="no answer")
        case ["raised", str(name), int(line)]:
            known = re.fullmatch(r"[A-Za-z_]{1,40}", name)
            return Called(failed=name if known else "an error", line=min(max(line, 0), 10**6))
    return Called(failed="no answer")


def _is_shallow(value: Any, most: int) -> bool:
    """Whether a value is nested at most so deep, so that whoever compares it need not fear it."""
    inside = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return most > 0 and all(_is_shallow(each, most - 1) for each in inside)


_BARE = """
import sys, types
for name, path in (("palestra", {0!r}), ("palestra.envs", {1!r})):
    sys.modules[name] = types.ModuleType(name)
    sys.modules[name].__path__ = [path]
from palestra.envs import sandbox_child
sandbox_child.main(int(sys.argv[1]))
"""
"""Loads that file and what it needs, without the packages' own pages."""
_ENVIRONMENT: Mapping[str, str] = {"PYTHONHASHSEED": "0"}
"""All of it; sets of texts have one order everywhere."""


@functools.cache
def _host() -> ForkHost:
    here = Path(__file__).parent
    code = _BARE.format(str(here.parent), str(here))
    return ForkHost([sys.executable, "-s", "-S", "-P", "-B", "-c", code], b"", _ENVIRONMENT)


_PROBE = """
import socket
def refused():
    for do in (lambda: open("/dev/null"), socket.socket):
        try:
            do()
        except PermissionError:
            continue
        return False
    return True
"""


@functools.cache
def _check_works(process: int) -> None:
    """Once for each process: the door shuts here, or nothing is run."""
    try:
        system_call_filter(platform.machine())
        known = sys.platform == "linux"
    except KeyError:
        known = False
    if not known:
        raise ConfigError(
            f"code can be run in a sandbox only on Linux on x86_64 or aarch64, not on {sys.platform} on "
            f"{platform.machine()}: use such a machine, or a world in which nobody writes code"
        )
    (probe,) = _run(_PROBE, [("refused", ())], SandboxLimits(seconds=60.0))  # the host starts meanwhile
    if probe.value is not True:
        raise ConfigError(
            f"there is no sandbox here ({probe.failed or 'files can be opened'}): the kernel must allow "
            "seccomp filters (CONFIG_SECCOMP_FILTER; some containers forbid them)"
        )
