"""``play``: a person, or a script, in a world, recorded like any policy.

The episode runs through the same code as in training, so what is saved here is a trajectory like all others.
The one surprising choice: the person is a policy; a narrator around the world prints what it answers.
"""

from __future__ import annotations

import asyncio
import json
import shlex
from collections.abc import Mapping, Sequence
from contextlib import closing
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from palestra.errors import ConfigError

if TYPE_CHECKING:
    from palestra.envs import ToolEnv
    from palestra.policy import Policy, Sampled
    from palestra.types import Message, Task, ToolSpec, Trajectory

HELP = "An action: tool key=value ..., or JSON. Also: tools, help, quit."
MAX_TURNS = 30
PATIENCE = 86_400.0
"""Seconds a person may take for an episode."""


class Player(StrEnum):
    """Who plays."""

    human = "human"
    oracle = "oracle"
    teacher = "teacher"
    random = "random"


def play(
    world: Annotated[str, typer.Argument(help="A world's name, file.py:Class or module:Class.")],
    script: Annotated[Player, typer.Option(help="Who plays.")] = Player.human,
    seed: Annotated[int, typer.Option(min=0, help="Of the first task.")] = 0,
    difficulty: Annotated[int | None, typer.Option(help="[default: the world's]")] = None,
    episodes: Annotated[int, typer.Option(min=1, help="One a seed, counting up.")] = 1,
    out: Annotated[Path | None, typer.Option(help="Append the trajectories to this JSON lines file.")] = None,
) -> None:
    """Play a world yourself, or watch a script play it.

    Examples:
        palestra play orders
        palestra play orders --script oracle --seed 7
        palestra play fridge.py:Fridge --script teacher --episodes 20 --out teacher.jsonl
    """
    from rich.console import Console

    from palestra.store import trajectory_to_dict
    from palestra.viewer import trajectory_text

    console, solved, played = Console(), 0, 0
    for number in range(seed, seed + episodes):
        try:
            trajectory = _attempt(world, difficulty, number, script, console)
        except KeyboardInterrupt:
            console.print("\nStopped; the unfinished episode is not kept.")
            break
        console.print(_result(trajectory) if script is Player.human else trajectory_text(trajectory))
        played, solved = played + 1, solved + bool(trajectory.success)
        if out is not None:
            out.parent.mkdir(parents=True, exist_ok=True)
            with out.open("a", encoding="utf-8") as file:
                file.write(json.dumps(trajectory_to_dict(trajectory), ensure_ascii=False) + "\n")
    console.print(f"Solved {solved} of {played}." + (f" Saved to {out}." if out and played else ""))


def action_text(line: str, tools: Mapping[str, ToolSpec], action_format: Any) -> str:
    """What a person typed as an action: as it stands if it is markup, else ``tool key=value`` written out.

    Raises:
        ValueError: it is neither; says how to write it.
    """
    from palestra.actions import render_call
    from palestra.types import ToolCall

    if line[:1] in "{[<`":
        return line
    name, *words = shlex.split(line)
    if name not in tools:
        raise ValueError(f"There is no tool {name!r}. Tools: {', '.join(tools)}.")
    if any("=" not in word for word in words):
        raise ValueError(f"Write parameters as key=value, such as: {name} {_usage(tools[name])}")
    schemas = tools[name].parameters.get("properties", {})
    pairs = (word.split("=", 1) for word in words)
    return render_call(
        ToolCall(name, {key: _value(text, schemas.get(key, {})) for key, text in pairs}), action_format
    )


class HumanPolicy:
    """A person at the terminal, as a policy."""

    name = "human"
    version = 0
    prompt_ids: tuple[int, ...] = ()

    def __init__(self, console: Any, tools: Mapping[str, ToolSpec], action_format: Any) -> None:
        """Ask on ``console`` for calls of ``tools``."""
        self._console, self._tools, self._format = console, tools, action_format

    def open(self, prompt: Sequence[Message], world: Any, seed: int, session: str) -> HumanPolicy:
        """One person has one conversation at a time: itself."""
        return self

    def room(self) -> None:
        """A person has no context limit."""

    async def act(self) -> Sampled:
        """Ask until there is an action; ``quit`` and the end of input interrupt."""
        from palestra.policy import Sampled

        while True:
            try:
                line = self._console.input("> ").strip()
            except EOFError:
                raise KeyboardInterrupt from None
            if line in ("quit", "exit"):
                raise KeyboardInterrupt
            if line in ("", "help", "tools"):
                self._explain(tools=line == "tools")
                continue
            try:
                return Sampled(action_text(line, self._tools, self._format))
            except ValueError as error:
                self._console.print(str(error), style="yellow", markup=False)

    def observe(self, text: str) -> tuple[int, ...]:
        """The narrator has printed it already."""
        return ()

    def close(self) -> None:
        """Nothing to let go."""

    def _explain(self, *, tools: bool) -> None:
        lines = [f"{spec.name} {_usage(spec)}  {spec.description}" for spec in self._tools.values()]
        self._console.print("\n".join(lines) if tools else HELP, markup=False, highlight=False)


class Narrator:
    """A world that also prints what it answers."""

    def __init__(self, world: ToolEnv[Any], console: Any) -> None:
        """Print the answers of ``world`` on ``console``."""
        self._world, self._console = world, console
        self.milestones = world.milestones

    @property
    def system_prompt(self) -> str:
        """That of the world."""
        return self._world.system_prompt

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        """Start, and print what a policy is told."""
        text, info = self._world.reset(seed=seed, options=options)
        for part, style in ((self.system_prompt, "dim"), (f"\n{text}", "bold"), (f"\n{HELP}", "dim")):
            self._console.print(part, style=style, markup=False, highlight=False)
        return text, info

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Take the action, and print the reply and the milestones it reached."""
        answer = self._world.step(action)
        self._console.print(answer[0], markup=False, highlight=False)
        for milestone in answer[4]["new_milestones"]:
            self._console.print(f"milestone: {milestone}", style="green", markup=False)
        return answer

    def close(self) -> None:
        """Close the world."""
        self._world.close()


def _attempt(name: str, difficulty: int | None, seed: int, player: Player, console: Any) -> Trajectory:
    """One scored episode."""
    from palestra.envs import ToolEnv, make_env
    from palestra.rewards import Rubric
    from palestra.rollout import EpisodeKey, Limits, run_episode

    env = make_env(name, **({} if difficulty is None else {"difficulty": difficulty}))
    if not isinstance(env, ToolEnv):
        raise ConfigError(f"{name} is no ToolEnv, so it has no tasks to play")
    human = player is Player.human
    policy: Policy = HumanPolicy(console, env.tools, env.action_format) if human else _scripted(player)
    limits = Limits(max_turns=MAX_TURNS, max_seconds=PATIENCE)
    episode = run_episode(
        Narrator(env, console) if human else env,
        _task(env, seed),
        policy,
        limits,
        EpisodeKey(f"play/{player.value}/{seed}", seed),
    )
    with closing(asyncio.new_event_loop()) as loop:  # asyncio.run would swallow the first Ctrl-C at a prompt
        return Rubric().score(loop.run_until_complete(episode))


def _scripted(player: Player) -> Policy:
    from palestra.policy import NoisyTeacher, ScriptedPolicy, oracle_script, random_script

    scripts = {Player.oracle: oracle_script, Player.teacher: NoisyTeacher(), Player.random: random_script}
    return ScriptedPolicy(player.value, scripts[player])


def _task(env: ToolEnv[Any], seed: int) -> Task:
    """The task of a seed, labelled with the split that owns the seed."""
    from palestra.tasks import SPLIT_RANGES

    for split, seeds in SPLIT_RANGES.items():
        if seed in seeds:
            return env.make_task(seed, split)
    raise ConfigError(
        f"seed {seed} belongs to no split; the last seed is {max(s.stop for s in SPLIT_RANGES.values()) - 1}"
    )


def _result(trajectory: Trajectory) -> Any:
    from rich.text import Text

    from palestra.viewer.words import number

    verdict, style = ("Solved", "bold green") if trajectory.success else ("Not solved", "bold red")
    parts = " · ".join(f"{name} {number(value)}" for name, value in trajectory.reward_parts.items())
    shortest = trajectory.task.optimal_turns or "unknown"
    counted = (
        f" in {len(trajectory.turns)} turns (shortest: {shortest}, ended: {trajectory.stop_reason.value})"
    )
    return Text.assemble((verdict, style), counted, f"\nreward {number(trajectory.reward)}: {parts}")


def _usage(spec: ToolSpec) -> str:
    return " ".join(f"{key}=..." for key in spec.parameters.get("properties", {}))


def _value(text: str, schema: Mapping[str, Any]) -> Any:
    """Text where the tool wants text, else the number or list it spells."""
    if schema.get("type") == "string":
        return text
    try:
        return json.loads(text)
    except ValueError:
        return text
