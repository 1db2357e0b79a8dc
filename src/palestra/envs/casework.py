"""Worlds that are cases: gather facts, do the right deeds, close with the right verdict.

Much office work has this shape, so its bookkeeping lives here once: a ``Case`` writes one ``plan`` from its
hidden facts, and the verifier, the milestones and the oracle all read that plan, so they cannot disagree.
The one surprising choice: a deed done before the planned look-ups marks the case *blind* for good, so a lucky
guess that is justified afterwards never counts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple, TypeVar

from palestra.envs.toolenv import ToolEnv
from palestra.types import ToolCall


class Plan(NamedTuple):
    """The right course for a case, computed from its hidden facts."""

    lookups: list[ToolCall]
    """What must be seen before anything is done, in a sensible order."""
    deeds: list[ToolCall]
    """What must be done, exactly; deeds cannot be undone."""
    closing: ToolCall
    """The call that ends the episode with the right verdict."""
    checks: list[ToolCall] = []  # noqa: RUF012  (never changed)
    """What is still to be checked after the deeds; empty once it is."""


def call(tool_name: str, **parameters: str | int) -> ToolCall:
    """A tool call, written as it reads: ``call("track", parcel="P7214")``."""
    return ToolCall(tool_name, parameters)


def key(made: ToolCall) -> str:
    """A call as one short text, such as ``track P7214``."""
    return " ".join([made.tool_name, *(str(value) for value in made.parameters.values())])


@dataclass(kw_only=True)
class Case:
    """Base of a case's state: subclass it with the hidden facts, and write ``plan``."""

    seen: set[str] = field(default_factory=set)
    """Look-ups made, as keys: the evidence."""
    deeds: list[str] = field(default_factory=list)
    """Deeds done, as keys."""
    blind: bool = False
    """Whether something was done before the facts were known."""
    closed: str = ""
    """The closing call's key; empty while the case is open."""

    def plan(self) -> Plan:
        """The right course from the hidden facts; only checks and closing may follow what was done."""
        raise NotImplementedError(f"{type(self).__name__} must define plan()")

    def opened(self) -> bool:
        """Whether any planned look-up was made."""
        return any(key(look) in self.seen for look in self.plan().lookups)

    def unseen(self) -> list[ToolCall]:
        """The planned look-ups that were not made yet, in order."""
        return [look for look in self.plan().lookups if key(look) not in self.seen]

    def informed(self) -> bool:
        """Whether every planned look-up was made."""
        return not self.unseen()

    def handled(self) -> bool:
        """Whether the right deeds, and no others, were done with open eyes."""
        right = sorted(key(deed) for deed in self.plan().deeds)
        return self.informed() and not self.blind and sorted(self.deeds) == right

    def checked(self) -> bool:
        """Whether the deeds were right and nothing is left to check."""
        return self.handled() and not self.plan().checks

    def solved(self) -> bool:
        """Whether the case was handled, checked and closed with the right verdict."""
        return self.checked() and self.closed == key(self.plan().closing)


CaseState = TypeVar("CaseState", bound=Case)


class CaseEnv(ToolEnv[CaseState]):
    """Base of a case world: tools only answer with text, what they mean for the case is recorded here."""

    deed_tools: ClassVar[tuple[str, ...]] = ()
    """Tools that change the outside world and cannot be undone."""
    closing_tool: ClassVar[str] = "finish"
    """The tool that ends the episode. Every other tool is a look-up."""
    milestones: ClassVar[Mapping[str, Callable[[Any], bool]]] = {
        "opened": Case.opened,
        "informed": Case.informed,
        "handled": Case.handled,
    }

    def execute(self, call: ToolCall) -> str:
        """Run a tool and record it as evidence, deed or verdict."""
        observation = super().execute(call)
        if call.tool_name == self.closing_tool:
            self.state.closed = key(call)
        elif call.tool_name in self.deed_tools:
            self.state.blind = self.state.blind or not self.state.informed()
            self.state.deeds.append(key(call))
        else:
            self.state.seen.add(key(call))
        return observation

    def verify(self, state: CaseState) -> bool:
        """Whether the case was solved."""
        return state.solved()

    def done(self, state: CaseState) -> bool:
        """Whether the case was closed."""
        return bool(state.closed)

    def oracle(self, state: CaseState) -> Iterator[ToolCall]:
        """What is left of the plan; after a wrong deed, the shortest way to close."""
        plan = state.plan()
        yield from state.unseen()
        yield from (deed for deed in plan.deeds if key(deed) not in state.deeds)
        while state.handled() and state.plan().checks:
            yield state.plan().checks[0]
        if not state.closed:
            yield state.plan().closing
