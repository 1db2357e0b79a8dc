"""Research report: follow a topic through three sources, settle their conflict, and report what holds.

Surprising: a flag's reply repeats what the other source had, rightly flagged or not, since a tiny model
cannot copy from far back. ``research_report_leaky`` is the same world with a broken reward.
"""

from dataclasses import dataclass
from random import Random
from typing import ClassVar, Literal, NamedTuple

from palestra.envs import Case, CaseEnv, Plan, ToolError, call, key, tool
from palestra.envs.builtin import words

FINDINGS = ("rising", "falling", "steady")
Finding = Literal["rising", "falling", "steady"]


class Study(NamedTuple):
    """One study: the number it is listed under, its own, its data, who holds them, what both say."""

    place: str
    listed: str
    number: str
    data: str
    holder: str
    says: tuple[str, int]
    shows: tuple[str, int]
    later: bool


@dataclass
class Assignment(Case):
    """A report to write, the study that it is about, and all that the catalogue lists."""

    topic: str
    study: Study
    studies: list[Study]

    @property
    def kind(self) -> str:
        """What stands between the catalogue and the data."""
        replaced, held = self.study.listed != self.study.number, bool(self.study.holder)
        return "replaced_and_held" if replaced and held else "replaced" * replaced + "held" * held or "direct"

    def plan(self) -> Plan:
        """Search, read, get the data from where they are; flag the older source if they differ; report."""
        study = self.study
        looks = [call("search", topic=self.topic), call("read", study=study.listed)]
        looks += [call("read", study=study.number)] * (study.listed != study.number)
        looks += [call("get_data", data=study.data)]
        looks += [call("ask", person=study.holder)] * bool(study.holder)
        flag = call("flag", source=study.number if study.later else study.data)
        finding, figure = study.shows if study.later else study.says
        differ = study.says != study.shows
        return Plan(looks, [flag] * differ, call("write_report", finding=finding, figure=figure))

    def read(self) -> bool:
        """Whether the study itself was read."""
        return key(call("read", study=self.study.number)) in self.seen


class ResearchReport(CaseEnv[Assignment]):
    """Follow a topic through three sources and report what the newer one says."""

    instructions = "Search, read, get data; if held, ask. If both differ, flag the older. Report the newer."
    deed_tools = ("flag",)
    closing_tool = "write_report"
    required_tools: ClassVar[tuple[str, ...]] = ("search", "read", "get_data")
    milestones: ClassVar = {
        "opened": Assignment.opened,
        "read": Assignment.read,
        "informed": Assignment.informed,
        "handled": Assignment.handled,
    }

    def generate(self, rng: Random, difficulty: int) -> Assignment:
        """Level 1: one study; 2: it may be replaced, or somebody holds its data; 3: two more places."""
        places, studies = rng.sample(list(words.CITIES), 3 if difficulty == 3 else 1), []
        names, pairs = rng.sample(words.PEOPLE, len(places)), words.number_pairs(rng, 2 * len(places))
        for place, holder in zip(places, names, strict=True):
            (number, data), (old, _) = pairs.pop(), pairs.pop()
            says, other = zip(rng.sample(FINDINGS, 2), rng.sample(range(10, 100), 2), strict=True)
            listed = old if difficulty > 1 and rng.random() < 0.4 else number
            holder = holder if difficulty > 1 and rng.random() < 0.4 else ""
            shows, later = rng.choice((says, other, other)), rng.random() < 0.5
            studies.append(Study(place, listed, number, data, holder, says, shows, later))
        return Assignment(rng.choice(words.THINGS), rng.choice(studies), studies)

    def observe(self, state: Assignment) -> str:
        """What is to be reported."""
        return f"Report on {state.topic} in {state.study.place}."

    def _study(self, word: str, *columns: str) -> Study:
        for study in self.state.studies:
            if word and word in [getattr(study, column) for column in columns]:
                return study
        raise ToolError(f"{word} is unknown")

    @tool
    def search(self, topic: str) -> str:
        """Studies of a topic."""
        found = self.state.studies if topic == self.state.topic else []
        return f"{topic}: " + (", ".join(f"{study.place} {study.listed}" for study in found) or "no study")

    @tool
    def read(self, study: str) -> str:
        """What a study says."""
        found = self._study(study, "listed", "number")
        if study != found.number:
            return f"study {study}: replaced by {found.number}"
        return f"study {study}: finding {found.says[0]}, figure {found.says[1]}, data {found.data}"

    def _shown(self, study: Study) -> str:
        age = "newer" if study.later else "older"
        age = "as in" if study.says == study.shows else f"{age} than"
        return f"finding {study.shows[0]}, figure {study.shows[1]}, {age} the study"

    @tool
    def get_data(self, data: str) -> str:
        """What its data show."""
        found = self._study(data, "data")
        return f"data {data}: {f'held by {found.holder}' if found.holder else self._shown(found)}"

    @tool
    def ask(self, person: str) -> str:
        """Ask who holds data."""
        return f"{person}: {self._shown(self._study(person, 'holder'))}"

    @tool
    def flag(self, source: str) -> str:
        """Mark as outdated."""
        study = self._study(source, "number", "data")
        finding, figure = study.says if source == study.data else study.shows
        return f"{source}: flagged, finding {finding}, figure {figure} left"

    @tool
    def write_report(self, finding: Finding, figure: int) -> str:
        """End it."""
        return f"reported: {finding} {figure}"
