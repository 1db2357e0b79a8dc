"""The orders world in trouble: about one episode in twenty crashes, hangs or answers garbage, at random.

Which one does is not a function of any seed, so that another world tried in its place fares better, as it is with
real systems. Each trouble is a line in the file that ``PALESTRA_SOAK_LOG`` names, written before it happens.
"""

from __future__ import annotations

import os
import random
import signal
import time
from pathlib import Path
from typing import Any

from palestra.envs.builtin.orders import Orders

RATE = 0.05
"""Of episodes."""
KINDS = ("raise", "exit", "kill", "hang", "no tuple", "no number", "no text", "no fact")
_GARBAGE: dict[str, Any] = {
    "no tuple": "garbage",
    "no number": ("ok", float("nan"), True, False, {"success": True}),
    "no text": (b"\xff", 1.0, True, False, {"success": True}),
    "no fact": ("ok", 1.0, True, False, {"success": "true"}),
}


class TroubledOrders(Orders):
    """Orders, most of the time."""

    name = "orders"

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        """Start an episode, and decide what will befall it."""
        chance = random.SystemRandom()
        self._kind = chance.choice(KINDS) if chance.random() < RATE else None
        self._at, self._count = chance.randint(1, 2), 0
        return super().reset(seed=seed, options=options)

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Take one action, if nothing is in the way."""
        self._count += 1
        if self._kind is None or self._count != self._at:
            return super().step(action)
        with Path(os.environ["PALESTRA_SOAK_LOG"]).open("a", encoding="utf-8") as log:
            log.write(f"{self._kind}\n")
        if self._kind == "raise":
            raise RuntimeError("the shop is closed")
        if self._kind == "exit":
            os._exit(3)
        if self._kind == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if self._kind == "hang":
            time.sleep(3_600)
        garbage: tuple[str, float, bool, bool, dict[str, Any]] = _GARBAGE[self._kind]
        return garbage
