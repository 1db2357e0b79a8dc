"""What can change in the builtin worlds in mid-episode, if faults are asked for.

Each function changes a state in place, so that the task stays solvable, and returns the news for the agent.
The surprising choice: nothing happens behind a deed that cannot be undone, or nobody could be blamed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from random import Random
from typing import Any


def more_seats(state: Any, rng: Random) -> str | None:
    """More people come than were asked for, while no room is booked."""
    if state.booked[1]:
        return None
    state.seats += rng.randint(1, 2)
    state.answers.clear()
    return f"{state.seats} seats are wanted"


def room_taken(state: Any, rng: Random) -> str | None:
    """Somebody else takes the room that was just found."""
    found = sorted((hour, room) for hour, room in state.answers.items() if room)
    if not found or state.booked[1]:
        return None
    hour, room = found[-1]
    state.rooms[room].free.discard(hour)
    del state.answers[hour]
    return f"{room} is taken at {hour}"


MEETING_ROOM: Mapping[str, Callable[[Any, Random], str | None]] = {
    "changed_requirement": more_seats,
    "slot_taken": room_taken,
}
