"""Guards: what training does by itself when a detector speaks.

A guard names a detector and one action; without one, an alarm is advice. What an action means is the
trainer's business. The one surprising choice: a guard acts when its detector begins to find something and
then waits, since the metrics that it looks at are means over several updates and need time to answer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import Literal

from palestra.errors import ConfigError
from palestra.monitor.alarms import Alarm
from palestra.monitor.detect import DETECTORS

GuardAction = Literal["warn", "raise_entropy", "lower_rate", "roll_back", "pause"]
WAIT = 4
"""Updates before a guard acts again on what its detector still finds."""


class Guards:
    """Chooses actions from alarms; when each detector was last acted on is in every checkpoint."""

    def __init__(self, actions: Mapping[str, GuardAction]) -> None:
        """Act on the detectors named in ``actions``.

        Raises:
            ConfigError: there is no such detector; the nearest name is in the message.
        """
        known = [detector.name for detector in DETECTORS]
        for name in actions:
            if name not in known:
                near = get_close_matches(name, known, n=1)
                hint = f"Did you mean {near[0]!r}?" if near else f"There are {', '.join(known)}."
                raise ConfigError(f"rl.guards.{name}: there is no detector {name!r}. {hint}")
        self._actions = {name: action for name, action in actions.items() if action != "warn"}
        self._acted: dict[str, int] = {}

    def choose(self, update: int, alarms: Sequence[Alarm]) -> dict[GuardAction, str]:
        """The actions that are due at an update, each once, with the evidence for it.

        Args:
            update: its number.
            alarms: of all detectors that find something at this update, whether they began to or not.
        """
        found = {alarm.detector: alarm for alarm in alarms if alarm.detector in self._actions}
        self._acted = {name: last for name, last in self._acted.items() if name in found}
        due: dict[GuardAction, str] = {}
        for name, alarm in found.items():
            if name in self._acted and update - self._acted[name] < WAIT:
                continue
            self._acted[name] = update
            due.setdefault(self._actions[name], f"{name}: {alarm.evidence}")
        return due

    def mends(self, detector: str) -> bool:
        """Whether training can go on after what this detector finds."""
        return self._actions.get(detector) in ("lower_rate", "roll_back")

    def state(self) -> dict[str, int]:
        """What a checkpoint keeps."""
        return dict(self._acted)

    def load(self, state: Mapping[str, int]) -> None:
        """Continue from a checkpoint."""
        self._acted = dict(state)
