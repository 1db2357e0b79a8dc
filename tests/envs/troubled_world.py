"""A counting world that gets into trouble when it is told to."""

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from palestra.envs import ToolEnv, tool
from palestra.errors import WorldCrashed
from palestra.types import ToolCall

PAST: list[int] = []
"""What earlier episodes left in this process."""


@dataclass
class Count:
    goal: int
    now: int = 0


class Troubled(ToolEnv[Count]):
    """Count up to the goal."""

    def generate(self, rng: random.Random, difficulty: int) -> Count:
        return Count(rng.randint(2, 4))

    def observe(self, state: Count) -> str:
        return f"count to {state.goal}"

    def verify(self, state: Count) -> bool:
        return state.now == state.goal

    @tool
    def add(self) -> str:
        """Add one."""
        self.state.now += 1
        PAST.append(self.state.now)
        return f"now {self.state.now}, {len(PAST)} ever, process {os.getpid()}"

    @tool
    def trouble(self, kind: str, where: str = "") -> str:
        """Get into trouble."""
        if kind == "raise":
            raise ZeroDivisionError("the till is empty")
        if kind == "crash":
            raise WorldCrashed("the sandbox is gone")
        if kind == "exit":
            sys.exit(3)
        if kind == "die":
            os.kill(os.getpid(), signal.SIGSEGV)
        if kind == "hang":
            time.sleep(600)
        if kind == "sleep":
            time.sleep(0.5)
        if kind == "spawn":
            child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
            Path(where).write_text(str(child.pid), encoding="utf-8")
        if kind == "grow":
            return str(len(bytearray(4 * 2**30)))
        return "fine"

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        garbage: dict[str, Any] = {
            "short": ("text", 0.0),
            "no text": (None, 0.0, False, False, {}),
            "not a number": ("text", float("nan"), True, False, {}),
            "text for a number": ("text", "1.0", True, False, {}),
            "text for a flag": ("text", 1.0, "no", False, {}),
            "text for success": ("text", 1.0, True, False, {"success": "no"}),
            "no mapping": ("text", 1.0, True, False, None),
            "odd parameters": ("text", 1.0, True, False, {"parameters": {"file": Path()}}),
            "unpicklable": ("text", 1.0, True, False, {"parameters": {"at": lambda: 1}}),
        }
        return garbage[action] if action in garbage else super().step(action)

    def oracle(self, state: Count) -> Iterator[ToolCall]:
        while state.now < state.goal:
            yield ToolCall("add", {})
