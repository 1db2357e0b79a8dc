"""What Ctrl-C does.

While libraries load there is nothing to lose, and an exception raised then can fall into a destructor, where
Python prints and forgets it. So Ctrl-C ends the process at once, until a verb has work to leave in order.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def end_at_once() -> Iterator[None]:
    """Ctrl-C ends the process at once, until ``raise_interrupt``; an ignored signal stays ignored."""
    before = signal.getsignal(signal.SIGINT)
    if before is not signal.default_int_handler:
        yield
        return
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def raise_interrupt() -> None:
    """From here on Ctrl-C raises KeyboardInterrupt."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
        signal.signal(signal.SIGINT, signal.default_int_handler)
