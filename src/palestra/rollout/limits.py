"""What ends an episode from outside. Each limit has its own stop reason."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of one episode."""

    max_turns: int = 16
    """Actions; reaching it is ``max_turns``."""
    max_action_tokens: int = 4_096
    """Sampled tokens over the whole episode; reaching it is ``max_tokens``."""
    max_repeats: int = 3
    """Repeated actions in a row; reaching it is ``repeated_action``."""
    max_invalid: int = 3
    """Actions in a row that are refused or not understood; reaching it is ``invalid_action``."""
    max_seconds: float = 120.0
    """Wall time, checked between turns; passing it is ``timeout``."""
