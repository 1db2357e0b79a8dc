"""Errors a caller can cause, each saying what is wrong, where, and what to do.

An episode that fails is *data* (a stop reason and a traceback on the trajectory), never one of these::

    PalestraError
    ├── ConfigError        (ValueError)   a configuration that cannot be run
    ├── WorldError         (ValueError)   a world that breaks its contract
    │   ├── UnsolvableTask                its verifier is never true, even for its oracle
    │   └── WorldCrashed                  its process died or hung, or it raised; makes an ``env_error``
    ├── ActionError        (ValueError)   a model's text that is no valid action; shown to the model
    ├── StoreError         (OSError)      a run folder that cannot be read or written
    ├── GateFailed         (RuntimeError) a stage refused to go on; the message says what to do
    ├── TrainingPaused     (RuntimeError) a guard stopped the run at a checkpoint from which it can go on
    ├── TooManyFailures    (RuntimeError) more episodes failed than a run may lose
    ├── EngineError        (RuntimeError) a model server that failed; of an episode it makes an ``env_error``
    │   └── ContextFull                   its model has no room for the prompt; the episode ends there
    └── PlayerLost         (RuntimeError) a process that plays episodes is gone
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

__all__ = [
    "ActionError",
    "ConfigError",
    "ContextFull",
    "EngineError",
    "GateFailed",
    "PalestraError",
    "PlayerLost",
    "StoreError",
    "TooManyFailures",
    "TrainingPaused",
    "UnsolvableTask",
    "WorldCrashed",
    "WorldError",
    "name_hint",
]


def name_hint(name: str, known: Iterable[str]) -> str:
    """What to say of a mistyped name: the nearest known one, or all of them."""
    names = list(known)
    near = get_close_matches(name, names, n=1)
    return f"Did you mean {near[0]!r}?" if near else f"There are {', '.join(names)}."


class PalestraError(Exception):
    """Base of every error palestra raises on purpose."""


class ConfigError(PalestraError, ValueError):
    """A configuration that cannot be run."""


class WorldError(PalestraError, ValueError):
    """A world that breaks its contract."""


class UnsolvableTask(WorldError):
    """The world's own oracle does not satisfy its verifier on a task."""


class WorldCrashed(WorldError):
    """A world in a process of its own that raised, died, or did not answer in time."""


class ActionError(PalestraError, ValueError):
    """A model's text that is no valid action.

    ``name`` is one of no_call, truncated, malformed, unknown_tool, missing_name, missing_parameter,
    unexpected_parameter, type_mismatch, invalid_value, duplicate_key.
    """

    def __init__(self, name: str, message: str) -> None:
        """``message`` is written for the model: what is wrong and how to say it right."""
        super().__init__(message)
        self.name = name


class StoreError(PalestraError, OSError):
    """A run folder that cannot be read or written."""


class GateFailed(PalestraError, RuntimeError):
    """A stage refused to go on."""


class TrainingPaused(PalestraError, RuntimeError):
    """A guard stopped the run; it can go on from where it stands."""


class TooManyFailures(PalestraError, RuntimeError):
    """More episodes failed than a run may lose."""


class EngineError(PalestraError, RuntimeError):
    """A model server that failed, or whose answer cannot be used."""


class ContextFull(EngineError):
    """A prompt that is longer than the server's model can read."""


class PlayerLost(PalestraError, RuntimeError):
    """A process that plays episodes is gone."""
