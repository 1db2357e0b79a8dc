"""A person in an episode: a policy that asks at the terminal, and a narrator of what the world answers.

``palestra play`` hands both to the same rollout that plays models. The one surprising choice: the narrator
is a world around the world, because a policy is not shown milestones and never sees the last reply.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console

from palestra.actions import ActionFormat, render_call
from palestra.envs import ToolEnv
from palestra.policy import Sampled
from palestra.types import Facts, Message, ToolCall, ToolSpec

HELP = "An action: tool key=value ..., or JSON. Also: tools, help, quit."


def action_text(line: str, tools: Mapping[str, ToolSpec], action_format: ActionFormat) -> str:
    """What a person typed as an action: as it stands if it is markup, else ``tool key=value`` written out.

    Raises:
        ValueError: it is neither; says how to write it.
    """
    if line[:1] in "{[<`":
        return line
    name, *words = shlex.split(line)
    if name not in tools:
        raise ValueError(f"There is no tool {name!r}. Tools: {', '.join(tools)}.")
    if any("=" not in word for word in words):
        raise ValueError(f"Write parameters as key=value, such as: {_usage(tools[name])}")
    schemas = tools[name].parameters.get("properties", {})
    pairs = (word.split("=", 1) for word in words)
    call = ToolCall(name, {key: _value(text, schemas.get(key, {})) for key, text in pairs})
    return render_call(call, action_format)


class HumanPolicy:
    """A person, as a policy; one episode at a time, so it is its own conversation."""

    name = "human"
    version = 0
    prompt_ids: tuple[int, ...] = ()

    def __init__(self, console: Console, world: ToolEnv[Any]) -> None:
        """Ask on ``console`` for calls of the tools of ``world``."""
        self._console, self._tools, self._format = console, world.tools, world.action_format

    def open(self, prompt: Sequence[Message], world: Any, seed: int, session: str) -> HumanPolicy:
        """Start; the narrator has shown the prompt."""
        return self

    def room(self) -> None:
        """Unlimited."""

    async def act(self) -> Sampled:
        """Ask until there is an action.

        Raises:
            KeyboardInterrupt: on ``quit`` or at the end of input, as on Ctrl-C.
        """
        while True:
            try:
                line = self._console.input("> ").strip()
            except EOFError:
                line = "quit"
            if line == "quit":
                raise KeyboardInterrupt
            try:
                if line in ("", "help"):
                    raise ValueError(HELP)
                if line == "tools":
                    raise ValueError("\n".join(map(_usage, self._tools.values())))
                return Sampled(action_text(line, self._tools, self._format))
            except ValueError as answer:
                self._console.print(str(answer), style="yellow", markup=False, highlight=False)

    def observe(self, text: str, facts: Facts) -> tuple[int, ...]:
        """The narrator has shown it."""
        return ()

    def close(self) -> tuple[int, ...]:
        """Nothing to let go."""
        return ()


class Narrator:
    """A world that also prints what it answers."""

    def __init__(self, console: Console, world: ToolEnv[Any]) -> None:
        """Print the answers of ``world`` on ``console``."""
        self._console, self._world = console, world
        self.system_prompt, self.milestones, self.close = "", world.milestones, world.close

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        """Start, and print what a policy is told."""
        answer = self._world.reset(seed=seed, options=options)
        self.system_prompt = self._world.system_prompt
        for text, style in ((self.system_prompt, "dim"), (f"\n{answer[0]}", "bold"), (f"\n{HELP}", "dim")):
            self._console.print(text, style=style, markup=False, highlight=False)
        return answer

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Take the action, and print the reply and the milestones it reached."""
        answer = self._world.step(action)
        self._console.print(answer[0], markup=False, highlight=False)
        for milestone in answer[4]["new_milestones"]:
            self._console.print(f"milestone: {milestone}", style="green", markup=False)
        return answer


def _usage(spec: ToolSpec) -> str:
    return " ".join([spec.name, *(f"{key}=..." for key in spec.parameters.get("properties", {}))])


def _value(text: str, schema: Mapping[str, Any]) -> Any:
    """Text where the tool wants text, else the number or list it spells."""
    if schema.get("type") == "string":
        return text
    try:
        return json.loads(text)
    except ValueError:
        return text
