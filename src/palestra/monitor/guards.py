"""Guards: what training does by itself when a detector speaks.

A guard names a detector and one action; without one, an alarm is advice. What an action means is the
trainer's business. The one surprising choice: a guard that acted waits, whatever its detector finds,
since the metrics that it looks at are means over several updates and need time to answer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from palestra.errors import ConfigError, name_hint
from palestra.monitor.alarms import Alarm
from palestra.monitor.detect import DETECTORS

GuardAction = Literal["warn", "raise_entropy", "lower_rate", "roll_back", "pause"]
WAIT = 6
"""Updates from one action of a guard to its next: the longest means that detectors look at."""


class Guards:
    """Chooses actions from alarms; when each detector was last acted on is in every checkpoint."""

    def __init__(self, actions: Mapping[str, GuardAction], wait: int = WAIT) -> None:
        """Act on the detectors named in ``actions``.

        Args:
            actions: what to do by detector.
            wait: fewest updates from one action of a guard to its next; ``WAIT`` if that is more.

        Raises:
            ConfigError: there is no such detector (the nearest name is in the message), or the action cannot
                help against what it finds.
        """
        known = [detector.name for detector in DETECTORS]
        for name in actions:
            if name not in known:
                raise ConfigError(
                    f"rl.guards.{name}: there is no detector {name!r}. {name_hint(name, known)}"
                )
        if actions.get("not_finite") in ("raise_entropy", "pause"):
            raise ConfigError(
                "rl.guards.not_finite can be lower_rate or roll_back: without one the run stops there anyway."
            )
        self._actions = {name: action for name, action in actions.items() if action != "warn"}
        self._wait = max(wait, WAIT)
        self._acted: dict[str, int] = {}

    def choose(self, update: int, alarms: Sequence[Alarm]) -> dict[GuardAction, str]:
        """The actions that are due at an update, each once, with the evidence for it.

        Args:
            update: its number.
            alarms: of all detectors that find something at this update, whether they began to or not.
        """
        found = {alarm.detector: alarm for alarm in alarms if alarm.detector in self._actions}
        due: dict[GuardAction, str] = {}
        for name, alarm in found.items():
            if name in self._acted and update - self._acted[name] < self._wait:
                continue
            self._acted[name] = update
            due.setdefault(self._actions[name], f"{name}: {alarm.evidence}")
        return due

    def mends(self, detector: str) -> bool:
        """Whether training may go on after what this detector finds."""
        return detector in self._actions

    @property
    def may_roll_back(self) -> bool:
        """Whether a checkpoint may be needed to go back to."""
        return "roll_back" in self._actions.values()

    def state(self) -> dict[str, int]:
        """What a checkpoint keeps."""
        return dict(self._acted)

    def load(self, state: Mapping[str, int]) -> None:
        """Continue from a checkpoint."""
        self._acted = dict(state)
