"""Meeting room: find an hour that suits all, book a room, invite, and settle what goes wrong.

The surprising choice: the task fixes which room or person is lost between look and deed; a fresh look tells.
"""

from dataclasses import dataclass, field
from random import Random
from typing import ClassVar, Literal, NamedTuple

from palestra.envs import Case, CaseEnv, Plan, ToolError, call, tool
from palestra.envs.builtin import upsets, words

TROUBLES = {"none": 2, "late_room": 2, "slow": 1, "taken": 2, "no_room": 1, "no_hour": 0, "declined": 2}
"""What goes wrong, with the number of hours that suit all."""


class Room(NamedTuple):
    """One room: its size, what is in it, and its free hours."""

    seats: int
    has: str
    free: set[int]


@dataclass
class Office(Case):
    """Calendars and rooms in the office's zone; ``answers`` is what ``find_room`` last said by hour."""

    zone: str
    seats: int
    needs: str
    trouble: str
    people: dict[str, set[int]]
    rooms: dict[str, Room]
    answers: dict[int, str] = field(default_factory=dict)
    booked: tuple[str, int] = ("", 0)
    agreed: bool = False

    def common(self) -> list[int]:
        """Hours at which everybody is free, as things stand."""
        return sorted(set.intersection(*self.people.values()))

    def fits(self, room: Room) -> bool:
        """Whether a room is large enough and has what is needed."""
        return room.seats >= self.seats and room.has == self.needs

    def plan(self) -> Plan:
        """Read all calendars; then find, book and invite, at the first hour not known to be full."""
        common, (room, booked) = self.common(), self.booked
        looks = [call("get_calendar", person=person, zone=self.zone) for person in self.people]
        hour = next((hour for hour in common if self.answers.get(hour) != ""), 0)
        outcome = "booked" if hour else "no_room" if common else "no_hour"
        step = call("find_room", hour=hour, seats=self.seats, needs=self.needs)
        if self.answers.get(hour):
            step = call("book", room=self.answers[hour], hour=hour)
        if booked in common and self.fits(self.rooms[room]):
            hour, outcome = 0 if self.agreed else booked, "booked"
            step = call("wait" if self.trouble == "waiting" else "invite")
        return Plan(looks, [], call("finish", outcome=outcome), [step] if hour else [])


class MeetingRoom(CaseEnv[Office]):
    """Find an hour that suits all, book a fitting room and get everybody to come."""

    instructions = "Read all calendars. Find a room when all are free, book, invite. If it fails, look anew."
    kind_field, upsets = "trouble", upsets.MEETING_ROOM
    milestones: ClassVar = {"opened": Office.opened, "informed": Office.informed, "settled": Office.checked}

    def generate(self, rng: Random, difficulty: int) -> Office:
        """Level 1: two people, four kinds of trouble; 2: five kinds; 3: three people, hours; seven kinds."""
        trouble = rng.choice(list(TROUBLES)[: 3 + difficulty + (difficulty > 2)])
        hours, each = rng.sample(words.DAY, len(words.DAY)), max(difficulty, 2)
        names, common = rng.sample(words.PEOPLE, each), sorted(hours.pop() for _ in range(TROUBLES[trouble]))
        people = {name: {*common, *(hours.pop() for _ in range(each - len(common)))} for name in names}
        seats, (needs, other), rooms = rng.randint(3, 12), rng.sample(words.EQUIPMENT, 2), {}
        blocked = {"late_room": common[:1], "no_room": common}.get(trouble, [])
        for number, index in zip(words.numbers(rng, 4, 2), rng.sample(range(4), 4), strict=True):
            size = rng.randint(2, seats - 1) if index == 2 else seats + rng.randint(0, 4)
            free = {*rng.sample(words.DAY, 4), *(common if index else [])} - {*(blocked if index < 2 else [])}
            rooms[f"R{number}"] = Room(size, other if index == 3 else needs, free)
        return Office(rng.choice(list(words.CITIES)), seats, needs, trouble, people, rooms)

    def observe(self, state: Office) -> str:
        """What is wanted."""
        return f"Room for {', '.join(state.people)}: {state.seats} seats, {state.needs}, zone {state.zone}."

    @tool
    def get_calendar(self, person: str, zone: str) -> str:
        """Free hours."""
        if person not in self.state.people or zone not in words.CITIES:
            raise ToolError(f"{person} or {zone} is unknown")
        ahead = words.CITIES[zone] - words.CITIES[self.state.zone]
        hours = sorted(hour + ahead for hour in self.state.people[person])
        return f"{person}: free {' '.join(map(str, hours))} in {zone}"

    @tool
    def find_room(self, hour: int, seats: int, needs: str) -> str:
        """A free room."""
        state, common, unread = self.state, self.state.common(), self.state.unseen()
        suits = f"all are free at {' '.join(map(str, common)) or 'no hour'}"
        if unread or hour not in common:
            raise ToolError(f"see the calendar of {unread[0].parameters['person']}" if unread else suits)
        if (seats, needs) != (state.seats, state.needs):
            raise ToolError(f"the request says {state.seats} seats, {state.needs}")
        fits = sorted((room.seats, name, room.free) for name, room in state.rooms.items() if state.fits(room))
        found = state.answers[hour] = next((name for _, name, free in fits if hour in free), "")
        rest = next((f"try {hour}" for hour in common if state.answers.get(hour) != ""), "no other hour")
        return f"free at {hour}: {found or 'none, ' + rest}"

    @tool
    def book(self, room: str, hour: int) -> str:
        """Reserve it."""
        state = self.state
        if room not in state.rooms or hour not in state.rooms[room].free:
            raise ToolError(f"{room} is not free at {hour}")
        if state.trouble == "taken":
            state.trouble = "none"
            state.rooms[room].free.remove(hour)
            state.answers.pop(hour, None)
            return f"{room}: just taken at {hour}"
        state.booked, state.agreed = (room, hour), False
        state.trouble = state.trouble.replace("waiting", "slow")
        return f"{room}: booked at {hour}"

    @tool
    def invite(self) -> str:
        """Ask all to come."""
        state, hour = self.state, self.state.booked[1]
        if not hour:
            raise ToolError("nothing is booked")
        if state.trouble == "declined":
            state.trouble = "none"
            list(state.people.values())[-1].discard(hour)
        if hour not in state.common():
            state.booked = ("", 0)
            return f"somebody is busy at {hour}, booking dropped"
        state.agreed = state.trouble != "slow"
        state.trouble = "none" if state.agreed else "waiting"
        return "all said yes" if state.agreed else "no answer yet"

    @tool
    def wait(self) -> str:
        """Await answers."""
        self.state.agreed = self.state.agreed or self.state.trouble == "waiting"
        return "all said yes" if self.state.agreed else "nobody was asked"

    @tool
    def finish(self, outcome: Literal["booked", "no_hour", "no_room"]) -> str:
        """End it."""
        return f"finished: {outcome}"
