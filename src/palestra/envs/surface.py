"""Another surface of a world: the same problem with other names of tools and fields, replies as tables.

What a policy learned of the problem should outlive a renamed field; this tells whether it does. The
surprising choice: everything inside the world stays as it was, facts and milestones too, so both surfaces can
be compared task by task.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace

from palestra.types import ToolCall, ToolSpec

_OTHER_WORDS = {
    "get": "fetch",
    "find": "search",
    "check": "inspect",
    "track": "locate",
    "refund": "reimburse",
    "replace": "exchange",
    "escalate": "forward",
    "finish": "conclude",
    "resolve": "settle",
    "book": "reserve",
    "invite": "summon",
    "wait": "pause",
    "logs": "journal",
    "metrics": "gauges",
    "deploys": "releases",
    "rollback": "revert",
    "fix": "repair",
    "probe": "ping",
    "order": "purchase",
    "orders": "purchases",
    "id": "ref",
    "customer": "client",
    "parcel": "shipment",
    "item": "article",
    "amount": "sum",
    "kind": "category",
    "reason": "ground",
    "verdict": "decision",
    "outcome": "result",
    "person": "attendee",
    "zone": "region",
    "hour": "slot",
    "room": "place",
    "seats": "chairs",
    "needs": "equipment",
    "service": "component",
    "version": "release",
    "remedy": "cure",
    "cause": "origin",
    "calendar": "agenda",
    "policy": "rules",
    "stock": "inventory",
    "payments": "charges",
    "list": "show",
    "files": "modules",
    "file": "module",
    "read": "open",
    "run": "start",
    "tests": "checks",
    "edit": "change",
    "insert": "add",
    "line": "row",
    "text": "code",
    "submit": "deliver",
    "search": "query",
    "topic": "theme",
    "study": "paper",
    "data": "records",
    "ask": "contact",
    "flag": "mark",
    "source": "document",
    "write": "submit",
    "report": "summary",
    "finding": "trend",
    "figure": "number",
}
"""Of the parts of a name; a name of other parts gets ``my_`` in front."""


class Surface:
    """Other names for the tools of a world."""

    def __init__(self, tools: Mapping[str, ToolSpec]) -> None:
        """Name them."""
        self._tools = _renamed(tools)
        self._parameters = {
            name: _renamed(spec.parameters.get("properties", {})) for name, spec in tools.items()
        }
        self._names = {other: name for name, other in self._tools.items()}
        words = sorted(self._tools, key=len, reverse=True)
        self._word = re.compile(rf"\b({'|'.join(map(re.escape, words))})\b") if words else None

    def spec(self, spec: ToolSpec) -> ToolSpec:
        """A tool as it is declared on this surface."""
        names = self._parameters[spec.name]
        schema = dict(spec.parameters)
        schema["properties"] = {names[name]: each for name, each in schema.get("properties", {}).items()}
        schema["required"] = [names[name] for name in schema.get("required", ())]
        return replace(spec, name=self._tools[spec.name], parameters=schema, aliases={})

    def outward(self, call: ToolCall) -> ToolCall:
        """A call of the world's as it is written on this surface; that of a tool it has not stays."""
        if call.tool_name not in self._tools:
            return call
        names = self._parameters[call.tool_name]
        given = {names.get(name, name): value for name, value in call.parameters.items()}
        return replace(call, tool_name=self._tools[call.tool_name], parameters=given)

    def inward(self, call: ToolCall) -> ToolCall:
        """A call of this surface as the world knows it."""
        name = self._names.get(call.tool_name, call.tool_name)
        own = {other: parameter for parameter, other in self._parameters.get(name, {}).items()}
        given = {own.get(other, other): value for other, value in call.parameters.items()}
        return replace(call, tool_name=name, parameters=given)

    def text(self, text: str) -> str:
        """A text with the tools' names as they are here."""
        return self._word.sub(lambda found: self._tools[found[0]], text) if self._word else text

    def reply(self, text: str) -> str:
        """A reply as a table: a line for what it is about, and one for each of its parts.

        One that begins with a whole line of its own, such as a file, has no parts and stays.
        """
        about, colon, rest = text.partition(": ")
        if not colon or "\n" in about:
            return self.text(text)
        return self.text("\n".join([f"[{about}]", *(f"* {part}" for part in rest.split(", "))]))


def _renamed(names: Iterable[str]) -> dict[str, str]:
    """Another name for each, all different."""
    found: dict[str, str] = {}
    for name in names:
        parts = [_OTHER_WORDS.get(part, part) for part in name.split("_")]
        other = "_".join(parts)
        if other == name:
            other = f"my_{name}"
        while other in found.values():
            other += "_2"
        found[name] = other
    return found
