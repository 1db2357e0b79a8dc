"""Disturbances of a world's tools: what goes wrong between a right call and its reply, by a seeded schedule.

For training, so that a policy learns to go on, and for evaluation, to see whether it does. A fault is
recorded on the turn whose reply carries it, and only if the episode goes on, so that the agent has seen it.
The surprising choice: a call that times out has not been done, and says so, or no agent could tell what to
do.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from random import Random
from typing import Literal, get_args

from palestra.envs.hashing import canonical_json
from palestra.errors import ConfigError
from palestra.types import ToolCall

FaultKind = Literal[
    "delay",
    "timeout",
    "transient_error",
    "permanent_error",
    "illegal_input",
    "missing_field",
    "extra_field",
    "changed_format",
    "renamed_field",
    "corrupted_value",
    "stale_data",
    "changed_requirement",
    "slot_taken",
]
FAULT_KINDS: tuple[FaultKind, ...] = get_args(FaultKind)
_NOT_DONE = {
    "delay": {"status": "pending", "message": "not ready yet, ask again"},
    "timeout": {"error": "timeout", "message": "no reply in time, nothing was done"},
    "transient_error": {"error": "unavailable", "message": "the service is down for a moment, try again"},
    "permanent_error": {"error": "gone", "message": "this cannot be asked any more"},
    "illegal_input": {"error": "invalid_input", "message": "the input arrived garbled, send it again"},
}
"""Replies in place of a call that is then not done."""
NOT_DONE = frozenset(_NOT_DONE)
"""Kinds of which the call is not done."""
UPSETS: tuple[FaultKind, ...] = ("changed_requirement", "slot_taken")
"""Kinds that change the world itself, as it says how; most worlds have none."""
LOSING = frozenset({"missing_field", "corrupted_value"})
"""Kinds that take something from a reply; asking again brings it."""


@dataclass(frozen=True)
class FaultSchedule:
    """Which calls are disturbed, and how: a function of the seeds and of how many calls there were."""

    kinds: tuple[FaultKind, ...]
    rate: float = 0.2
    """Chance that a call is disturbed."""
    most: int = 1
    """Disturbed calls of an episode; a call that stays broken counts once."""
    seed: int = 0

    def __post_init__(self) -> None:
        """Refuse kinds there are not."""
        unknown = [kind for kind in self.kinds if kind not in FAULT_KINDS]
        if unknown or not self.kinds:
            named = f"there is no fault {unknown[0]!r}" if unknown else "no kind of fault is named"
            raise ConfigError(f"{named}; there are {', '.join(FAULT_KINDS)}")
        if not 0 <= self.rate <= 1 or self.most < 1:
            raise ConfigError(f"rate is from 0 to 1 and most at least 1, not {self.rate} and {self.most}")


class EpisodeFaults:
    """The faults of one episode."""

    def __init__(self, schedule: FaultSchedule, task_seed: int) -> None:
        """Nothing has gone wrong yet."""
        self._schedule, self._task_seed = schedule, task_seed
        self._calls = self._injected = 0
        self._broken: set[str] = set()
        self._answered: dict[str, str] = {}

    def answer(
        self, call: ToolCall, run: Callable[[], str], upset: Callable[[str, Random], str | None]
    ) -> tuple[str, FaultKind | None]:
        """The reply to a call, and what is wrong with it.

        Args:
            call: which is right, as far as its form goes.
            run: does it; not called where the fault is that it is not done.
            upset: changes the world in the way of a kind and gives the news of it, or None if it cannot.
        """
        key = canonical_json([call.tool_name, call.parameters])
        if key in self._broken:
            return json.dumps(_NOT_DONE["permanent_error"]), "permanent_error"
        self._calls += 1
        rng = Random(f"fault:{self._schedule.seed}:{self._task_seed}:{self._calls}")
        if self._injected >= self._schedule.most or rng.random() >= self._schedule.rate:
            return self._plain(key, run), None
        kind = rng.choice(self._schedule.kinds)
        if kind in _NOT_DONE:
            self._injected += 1
            if kind == "permanent_error":
                self._broken.add(key)
            return json.dumps(_NOT_DONE[kind]), kind
        before = self._answered.get(key)
        text = self._plain(key, run)
        if kind in UPSETS:
            news = upset(kind, rng)
            changed = None if news is None else f"{text}\nnews: {news}"
        else:
            changed = before if kind == "stale_data" else _CHANGES[kind](text, rng)
        if changed is None or changed == text:
            return text, None
        self._injected += 1
        return changed, kind

    def _plain(self, key: str, run: Callable[[], str]) -> str:
        text = run()
        self._answered[key] = text
        return text


def check_possible(schedule: FaultSchedule | None, upsets: Collection[str], world: str) -> None:
    """Refuse a kind that only some worlds have.

    Raises:
        ConfigError: this one says nothing of it in ``upsets``.
    """
    for kind in schedule.kinds if schedule else ():
        if kind in UPSETS and kind not in upsets:
            raise ConfigError(f"{world} has no fault {kind!r}: a world says in its `upsets` how it happens")


def possible_faults(upsets: Collection[str]) -> tuple[FaultKind, ...]:
    """The kinds that a world with these ``upsets`` can have."""
    return tuple(kind for kind in FAULT_KINDS if kind not in UPSETS or kind in upsets)


def _split(text: str) -> tuple[str, list[str]]:
    """What a reply is about, and its parts: ``order 7: item lamp, paid 45`` has two."""
    about, colon, rest = text.partition(": ")
    return (about, rest.split(", ")) if colon else ("", text.split(", "))


def _joined(about: str, parts: Sequence[str]) -> str:
    return (f"{about}: " if about else "") + ", ".join(parts)


def _missing_field(text: str, rng: Random) -> str | None:
    about, parts = _split(text)
    if len(parts) < 2:
        return None
    gone = rng.randrange(len(parts))
    return _joined(about, [part for place, part in enumerate(parts) if place != gone])


def _extra_field(text: str, rng: Random) -> str | None:
    about, parts = _split(text)
    parts.insert(rng.randint(0, len(parts)), f"trace {rng.randint(1000, 9999)}")
    return _joined(about, parts)


def _renamed_field(text: str, rng: Random) -> str | None:
    about, parts = _split(text)
    named = [place for place, part in enumerate(parts) if re.match(r"[a-z_]+ \S", part)]
    if not named:
        return None
    place = rng.choice(named)
    name, _, value = parts[place].partition(" ")
    parts[place] = f"{name}_v2 {value}"
    return _joined(about, parts)


def _changed_format(text: str, rng: Random) -> str | None:
    about, parts = _split(text)
    pairs = [part.partition(" ")[::2] if " " in part else ("value", part) for part in parts]
    if rng.random() < 0.5:
        fields = {"about": about} if about else {}
        return json.dumps({**fields, **dict(pairs)}, ensure_ascii=False)
    lines = [f"{name} | {value}" for name, value in pairs]
    return "\n".join([f"about | {about}", *lines] if about else lines)


def _corrupted_value(text: str, rng: Random) -> str | None:
    about, parts = _split(text)
    values = [place for place, part in enumerate(parts) if part]
    if not values:
        return None
    place = rng.choice(values)
    head, space, value = parts[place].rpartition(" ")
    parts[place] = f"{head}{space}{value[: len(value) // 2]}\ufffd\ufffd"
    return _joined(about, parts)


_CHANGES: dict[str, Callable[[str, Random], str | None]] = {
    "missing_field": _missing_field,
    "extra_field": _extra_field,
    "changed_format": _changed_format,
    "renamed_field": _renamed_field,
    "corrupted_value": _corrupted_value,
}
"""Changes of a reply; None where there is nothing to change."""
