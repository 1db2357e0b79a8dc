"""A small project with a bug or two: the state of ``code_repair`` and how it is drawn.

The world's file holds what an agent can do; what there is to repair stands here. The surprising choice: every
edit is judged by all tests at once, so the milestone of a mended project is a fact of its code and not of
what was run.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from random import Random

from palestra.envs import call
from palestra.envs.builtin import words
from palestra.envs.builtin.broken_code import Example, Failure, draw_bugs, failures, functions
from palestra.envs.builtin.mutations import KINDS
from palestra.types import ToolCall


@dataclass
class Project:
    """A few files of one function each; ``broken`` are those with a bug, ``right`` is how all should be."""

    name: str
    kind: str
    broken: list[str]
    files: dict[str, list[str]]
    right: dict[str, list[str]]
    homes: dict[str, str]
    visible: list[Example]
    hidden: list[Example]
    listed: bool
    read: set[str] = field(default_factory=set)
    seen_failing: bool = False
    tested: bool = False
    mended: bool = False
    submitted: bool = False

    def fails(self, examples: list[Example]) -> list[Failure]:
        """The tests that fail, in their order."""
        failed = [
            failure
            for name, home in self.homes.items()
            for failure in failures(
                "".join(f"{line}\n" for line in self.files[home]),
                [each for each in examples if each.function == name],
            )
        ]
        return sorted(failed, key=lambda failure: examples.index(failure.example))

    def wrong(self) -> list[str]:
        """Files that are not as they should be, those first that visible tests name first."""
        if self.mended:
            return []
        named = [self.homes[failure.example.function] for failure in self.fails(self.visible)]
        return [name for name in dict.fromkeys([*named, *self.files]) if self.files[name] != self.right[name]]

    def found(self) -> bool:
        """Whether every file with a bug was read."""
        return self.read >= set(self.broken)

    def checked(self) -> bool:
        """Whether the tests were run on mended code."""
        return self.mended and self.tested


def draw_project(rng: Random, difficulty: int) -> Project:
    """A project of a level, as ``CodeRepair.generate`` says."""
    kind = rng.choice(KINDS[:4] if difficulty == 1 else KINDS)
    name, *places = (f"{thing}.py" for thing in rng.sample(words.THINGS, 1 + difficulty))
    visible, hidden, homes, files, right = list[Example](), list[Example](), {}, {}, {}
    broken = places[: 1 + difficulty // 3]
    for place, (source, shown, kept) in zip(broken, draw_bugs(rng, kind, len(broken)), strict=True):
        homes[shown[0].function], files[place] = place, source.splitlines()
        visible, hidden = visible + shown, hidden + kept
    others = [each for each in functions().values() if each.name not in homes]
    for place, each in zip(places[len(broken) :], rng.sample(others, len(others)), strict=False):
        homes[each.name], files[place] = place, each.source.splitlines()
        shown = rng.sample(each.examples, len(each.examples))
        visible, hidden = visible + shown[:2], hidden + shown[2:]
    rng.shuffle(visible)
    right = {place: functions()[each].source.splitlines() for each, place in homes.items()}
    files = {place: files[place] for place in rng.sample(sorted(files), len(files))}
    title = name.removesuffix(".py")
    return Project(title, kind, broken, files, right, homes, visible, hidden, difficulty == 1)


def changes(file: str, lines: list[str], right: list[str]) -> Iterator[ToolCall]:
    """Edits that turn ``lines`` into the right ones."""
    while lines != right:
        pairs = zip(lines, right, strict=False)
        at = next((n for n, (one, other) in enumerate(pairs) if one != other), min(len(lines), len(right)))
        if len(lines) < len(right):
            yield call("insert", file=file, line=at + 1, text=right[at])
            lines.insert(at, right[at])
        else:
            text = right[at] if len(lines) == len(right) else ""
            yield call("edit", file=file, line=at + 1, text=text)
            lines[at : at + 1] = [text] if text else []
