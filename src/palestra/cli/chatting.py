"""``chat``: talk to a policy, or watch it in a world and answer in the world's place.

The one surprising choice: in a world an empty line lets the world answer, and anything else is told to the
policy instead, while the world stays where it is: so one sees what the policy would do had a tool said that.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import closing
from typing import TYPE_CHECKING, Annotated, Any

import typer

from palestra.cli.evaluating import from_run_or_weights
from palestra.cli.interrupts import raise_interrupt
from palestra.errors import ConfigError

if TYPE_CHECKING:
    from palestra.envs import ToolEnv
    from palestra.policy import Conversation, Policy

_MOST_TURNS = 40
_HELP = "Enter: the world answers. Anything else is told to the policy instead. Ctrl-D ends."


def chat(
    policy: Annotated[str, typer.Argument(help="A run, a folder with weights, nano or smollm2.")],
    world: Annotated[str | None, typer.Option(help="Play this world.", show_default="a run's own")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of the task, and of what is sampled.")] = 0,
    system: Annotated[str | None, typer.Option(help="Just talk, with this system prompt.")] = None,
    temperature: Annotated[float, typer.Option(min=0, help="0 takes the likeliest action.")] = 0.0,
) -> None:
    """Talk to a policy, or step it through a task of a world and answer in the world's place.

    Examples:
        palestra chat runs/quickstart-1 --seed 7
        palestra chat runs/quickstart-1/checkpoints/sft/step-1 --world orders
        palestra chat smollm2 --system "You are a librarian." --temperature 0.7
    """
    from rich.console import Console

    if system is not None and world is not None:
        raise ConfigError("--system is for talking without a world")
    console = Console()
    workshop, name, make = from_run_or_weights(policy, world or ("orders" if system is not None else None))
    raise_interrupt()
    player = make(name, temperature)
    talk = _talk(console, player, system, seed) if system is not None else None
    with closing(asyncio.new_event_loop()) as loop:  # asyncio.run would swallow the first Ctrl-C at a prompt
        try:
            loop.run_until_complete(talk or _step(console, player, workshop.make_world(), seed))
        except (KeyboardInterrupt, EOFError):
            console.print()


async def _talk(console: Any, player: Policy, system: str, seed: int) -> None:
    from palestra.types import Facts, Message

    said = console.input("> ")
    conversation = player.open((Message("system", system), Message("user", said)), None, seed, "chat")
    for _ in _turns(conversation):
        console.print((await conversation.act()).text, style="cyan", markup=False, highlight=False)
        conversation.observe(console.input("> "), Facts())


async def _step(console: Any, player: Policy, world: ToolEnv[Any], seed: int) -> None:
    """One task, action by action."""
    from palestra.rollout import read_reset
    from palestra.types import Action, Facts

    task = world.make_task(seed, "test")
    answer = world.reset(seed=task.seed, options={"task": task})
    for text, style in ((world.text_prompt, "dim"), (f"\n{answer[0]}", "bold"), (f"\n{_HELP}", "dim")):
        console.print(text, style=style, markup=False, highlight=False)
    conversation = player.open(read_reset(answer, world), world, seed, "chat")
    for _ in _turns(conversation):
        sampled = await conversation.act()
        console.print(f"\n{sampled.text}", style="cyan", markup=False, highlight=False)
        told, facts = console.input("> "), Facts()
        if not told:
            told, _, ended, _, info = world.step(Action(sampled.text, sampled.finish_reason))
            console.print(told, markup=False, highlight=False)
            facts = Facts(**info)
            if ended:
                console.print("success" if facts.success else "no success", style="bold")
                return
        conversation.observe(told, facts)


def _turns(conversation: Conversation) -> Iterator[int]:
    """Turns while there is room; the conversation is closed after them."""
    for turn in range(_MOST_TURNS):
        room = conversation.room()
        if room is not None and room < 0:
            break
        yield turn
    conversation.close()
