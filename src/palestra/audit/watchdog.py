"""A deadline for whatever a world is asked, so that one that never answers does not stop the audit.

Surprising: it is an alarm signal and no thread, since only that stops Python code that loops; where there are
no such signals, or not in the main thread, there is no deadline.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

STEP_SECONDS = 10.0
"""For one answer of a world."""


class TookTooLong(BaseException):
    """The deadline has passed. No ``Exception``, so that a world that catches those does not catch it."""


@contextmanager
def deadline(seconds: float) -> Iterator[None]:
    """Stop what is done under it after so long.

    Raises:
        TookTooLong: it was stopped.
    """
    if not hasattr(signal, "setitimer") or threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGALRM, _late)
    signal.setitimer(signal.ITIMER_REAL, seconds, 1.0)  # again each second, if it was swallowed after all
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)


def _late(signal_number: int, frame: FrameType | None) -> None:
    raise TookTooLong
