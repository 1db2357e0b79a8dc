"""Inside the sandbox: a bare interpreter forks, shuts itself in, runs what it was sent and answers.

``sandbox.py`` starts the host with this file alone, so no test's answer is in its memory. The surprising
choice: a list of the few system calls that computing needs, and none else, instead of a list of forbidden
ones: no file, socket, process or signal is within reach, and nothing has to be cleaned up.
"""

# The standard modules below are loaded for the code that runs here, since it can open no file.
import bisect  # noqa: F401
import collections  # noqa: F401
import contextlib
import copy  # noqa: F401
import ctypes
import functools  # noqa: F401
import gc
import heapq  # noqa: F401
import itertools  # noqa: F401
import json
import math  # noqa: F401
import operator  # noqa: F401
import os
import platform
import random  # noqa: F401
import re  # noqa: F401
import resource
import signal
import socket
import string  # noqa: F401
import struct
import sys
import typing  # noqa: F401
import warnings
from collections.abc import Callable
from multiprocessing.connection import Connection
from types import FrameType
from typing import Any

from palestra.envs.forking import greeted, serve

ANSWER = 3
"""Handle of the only connection; 0 to 2 are the null device."""
FILE = "<code>"
_CALLS = {
    "x86_64": (0xC000003E, (0, 1, 3, 8, 9, 10, 11, 12, 15, 24, 25, 28, 39, 60, 202, 228, 231, 318)),
    "aarch64": (
        0xC00000B7,
        (63, 64, 57, 62, 222, 226, 215, 214, 139, 124, 216, 233, 172, 93, 98, 113, 94, 278),
    ),
}
"""By machine: its mark, and its numbers of read, write, close, lseek, mmap, mprotect, munmap, brk,
rt_sigreturn, sched_yield, mremap, madvise, getpid, exit, futex, clock_gettime, exit_group and getrandom."""
_PR_SET_SECCOMP, _PR_SET_NO_NEW_PRIVS, _FILTER = 22, 38, 2
_LOAD, _IF_EQUAL, _RETURN = 0x20, 0x15, 0x06
_KILL, _REFUSE, _ALLOW = 0x80000000, 0x00050001, 0x7FFF0000
"""What becomes of a system call; refused, it fails with EPERM."""


class EndlessLoop(BaseException):
    """More was run than a call may run."""


def system_call_filter(machine: str) -> bytes:
    """The seccomp program that allows the calls above, as the kernel reads it.

    Args:
        machine: as ``platform.machine`` names it.

    Raises:
        KeyError: for a machine whose calls are not listed.
    """
    mark, allowed = _CALLS[machine]
    steps = [(_LOAD, 0, 0, 4), (_IF_EQUAL, 1, 0, mark), (_RETURN, 0, 0, _KILL), (_LOAD, 0, 0, 0)]
    steps += [(_IF_EQUAL, len(allowed) - place, 0, number) for place, number in enumerate(allowed)]
    steps += [(_RETURN, 0, 0, _REFUSE), (_RETURN, 0, 0, _ALLOW)]
    return b"".join(struct.pack("HBBI", *step) for step in steps)


def main(handle: int) -> None:
    """Serve the control socket of that number until its other end is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    warnings.simplefilter("ignore")
    os.environ.clear()
    machine = ctypes.CDLL(None, use_errno=True), system_call_filter(platform.machine())
    with contextlib.suppress(EOFError, OSError), socket.socket(fileno=handle) as control:
        greeted(control)
        gc.freeze()
        serve(control, lambda connection: _run(connection, *machine))


def _run(handle: int, libc: ctypes.CDLL, program: bytes) -> None:
    """All of a process's life: read the job, shut the door, answer."""
    null = os.open(os.devnull, os.O_RDWR)
    for number in range(3):
        os.dup2(null, number)
    os.dup2(os.dup(handle), ANSWER)
    os.closerange(ANSWER + 1, os.sysconf("SC_OPEN_MAX"))
    job = json.loads(Connection(os.dup(ANSWER)).recv_bytes())
    _shut_in(libc, program, job["memory_mb"], job["cpu_seconds"])
    answer = json.dumps(_answers(job["source"], job["calls"], job["steps"])).encode()
    while answer:
        answer = answer[os.write(ANSWER, answer) :]


def _shut_in(libc: ctypes.CDLL, program: bytes, memory_mb: int, cpu_seconds: int) -> None:
    """From here on only the allowed system calls work.

    Raises:
        OSError: this cannot be had here; nothing may be run then.
    """
    resource.setrlimit(resource.RLIMIT_AS, (memory_mb * 2**20,) * 2)
    resource.setrlimit(resource.RLIMIT_CPU, (cpu_seconds, cpu_seconds + 1))
    for limit in (resource.RLIMIT_NPROC, resource.RLIMIT_FSIZE, resource.RLIMIT_CORE, resource.RLIMIT_NOFILE):
        resource.setrlimit(limit, (0, 0))
    steps = ctypes.create_string_buffer(program, len(program))
    head = ctypes.create_string_buffer(struct.pack("HxxxxxxP", len(program) // 8, ctypes.addressof(steps)))
    _checked(libc, _PR_SET_NO_NEW_PRIVS, 1)
    _checked(libc, _PR_SET_SECCOMP, _FILTER, ctypes.addressof(head))


def _checked(libc: ctypes.CDLL, option: int, *values: int) -> None:
    given = [ctypes.c_ulong(value) for value in (*values, 0, 0, 0)[:4]]
    if libc.prctl(option, *given):
        raise OSError(ctypes.get_errno(), f"prctl({option}) is refused")


def _answers(source: str, calls: list[tuple[str, list[Any]]], steps: int) -> list[list[Any]]:
    """For each call the JSON of its value, or the name of what it raised and the line."""
    namespace: dict[str, Any] = {"__name__": "code"}
    loaded = _told(steps, lambda: exec(compile(source, FILE, "exec"), namespace))
    if loaded[0] == "raised":
        return [loaded] * len(calls)
    return [
        _told(steps, lambda name=name, given=given: namespace[name](*given))  # type: ignore[misc]
        for name, given in calls
    ]


def _told(steps: int, do: Callable[[], Any]) -> list[Any]:
    left = steps

    def trace(frame: FrameType, event: str, value: Any) -> Any:
        nonlocal left
        frame.f_trace_opcodes = True
        left -= 1
        if left < 0:
            raise EndlessLoop
        return trace

    try:
        sys.settrace(trace)
        try:
            result = do()
        finally:
            sys.settrace(None)
        return ["value", json.dumps(result)]
    except BaseException as error:
        return ["raised", type(error).__name__, _line(error)]


def _line(error: BaseException) -> int:
    """The line of the code that was being run, 0 where none was."""
    if isinstance(error, SyntaxError):
        return error.lineno or 0
    found, step = 0, error.__traceback__
    while step is not None:
        if step.tb_frame.f_code.co_filename == FILE:
            found = step.tb_lineno
        step = step.tb_next
    return found
