"""One episode: a policy and a world take turns until exactly one stop reason holds.

Nothing that goes wrong inside the world escapes: a raising world, or a model server that fails, makes the
trajectory an ``env_error`` with its traceback, which is never scored and never trained on; so does one whose
answers are not what a world's are. What the policy or the caller did wrong does escape, because it is not the
episode's. A world may take its time: where ``reset``, ``step`` and ``close`` are coroutines, others go on.
"""

from __future__ import annotations

import dataclasses
import inspect
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from palestra.errors import ContextFull, EngineError, PalestraError, WorldCrashed, WorldError
from palestra.policy import Conversation, Policy
from palestra.rollout.answers import read_reset, read_step
from palestra.rollout.limits import Limits
from palestra.types import Action, Facts, Message, StopReason, Task, Trajectory, Turn


class World(Protocol):
    """What a rollout needs of an environment: gymnasium's three verbs and a system prompt.

    Each verb may be a coroutine instead, as those of ``palestra.envs.IsolatedWorlds`` are.
    """

    @property
    def system_prompt(self) -> str:
        """Policy, tools and action format for the current task."""

    @property
    def milestones(self) -> Mapping[str, Any]:
        """The milestones by name."""

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        """Start ``options["task"]``."""

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Take one action."""

    def close(self) -> None:
        """Let resources go."""


@dataclass(frozen=True, slots=True)
class EpisodeKey:
    """Which attempt this is: names it and seeds its samples."""

    id: str
    """Unique in the run."""
    seed: int
    """Seeds the policy's samples; differs between attempts. The world is seeded by the task."""


async def run_episode(
    world: World, task: Task, policy: Policy, limits: Limits, key: EpisodeKey
) -> Trajectory:
    """Play ``task`` once and return its record; the world is closed afterwards."""
    started = time.perf_counter()
    record = _Record()
    conversation: Conversation | None = None
    try:
        answer = await _ask(world.reset, seed=task.seed, options={"task": task})
        record.prompt = _read(read_reset, answer, world)
        conversation = policy.open(record.prompt, world, key.seed, key.id)
        record.prompt_ids = conversation.prompt_ids
        record.stop = await _take_turns(world, conversation, limits, record, started)
    except _WorldFailed as failure:
        record.stop, record.error = StopReason.env_error, str(failure)
    finally:
        if conversation is not None:
            record.next_prompt_ids = conversation.close()
        await _close(world)
    failed = record.stop is StopReason.env_error
    return Trajectory(
        id=key.id,
        task=task,
        prompt=record.prompt,
        turns=tuple(record.turns),
        stop_reason=record.stop,
        success=None if failed else bool(record.turns) and record.turns[-1].facts.success,
        policy=policy.name,
        policy_version=policy.version,
        prompt_ids=record.prompt_ids,
        next_prompt_ids=record.next_prompt_ids if record.stop.is_truncation else (),
        milestones=tuple(world.milestones),
        error=record.error,
        seconds=time.perf_counter() - started,
    )


class _WorldFailed(Exception):
    """Carries the traceback of what the world raised."""


async def _ask(verb: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
    """Call into the world; whatever it raises, other than a caller's mistake, is its own failure."""
    try:
        answer = verb(*arguments, **named)
        return await answer if inspect.isawaitable(answer) else answer
    except WorldCrashed as crash:
        raise _WorldFailed(str(crash)) from None
    except PalestraError:
        raise
    except Exception:
        raise _WorldFailed(traceback.format_exc()) from None


def _read(reader: Callable[..., Any], *answer: Any) -> Any:
    try:
        return reader(*answer)
    except PalestraError:
        raise
    except (TypeError, ValueError) as error:
        raise _WorldFailed(f"the world answered what no world answers: {error}") from None
    except Exception:
        raise _WorldFailed(traceback.format_exc()) from None


class _Record:
    """What has happened so far."""

    def __init__(self) -> None:
        self.prompt: tuple[Message, ...] = ()
        self.prompt_ids: tuple[int, ...] = ()
        self.next_prompt_ids: tuple[int, ...] = ()
        self.turns: list[Turn] = []
        self.stop = StopReason.env_error
        self.error: str | None = None


async def _take_turns(
    world: World, conversation: Conversation, limits: Limits, record: _Record, started: float
) -> StopReason:
    while True:
        stop = _limit_reached(conversation, limits, record, started)
        if stop is not None:
            return stop
        try:
            sampled = await conversation.act()
        except ContextFull:
            return StopReason.context_full
        except (WorldError, EngineError):  # a script asked the world's oracle, or a policy its server
            raise _WorldFailed(traceback.format_exc()) from None
        action = Action(sampled.text, sampled.finish_reason)
        step = _read(read_step, await _ask(world.step, action))
        turn = Turn(
            action=sampled.text,
            observation=step.observation,
            facts=step.facts,
            finish_reason=sampled.finish_reason,
            env_reward=step.reward,
            action_ids=sampled.ids,
            sampled_logprobs=sampled.logprobs,
            prompt_ids=sampled.prompt_ids,
        )
        if not step.terminated:  # where the world cut it, a critic values the state it was cut in
            seen = conversation.observe(step.observation, step.facts)
            turn = dataclasses.replace(turn, observation_ids=seen)
        record.turns.append(turn)
        if step.terminated:
            return StopReason.terminated
        if step.truncated:
            return StopReason.max_turns


def _limit_reached(
    conversation: Conversation, limits: Limits, record: _Record, started: float
) -> StopReason | None:
    """The limit that forbids another turn, if any."""
    turns = record.turns
    if len(turns) >= limits.max_turns:
        return StopReason.max_turns
    if _last_were(turns, limits.max_repeats, lambda facts: facts.repeated):
        return StopReason.repeated_action
    if _last_were(turns, limits.max_invalid, lambda facts: not facts.valid):
        return StopReason.invalid_action
    if sum(len(turn.action_ids) for turn in turns) >= limits.max_action_tokens:
        return StopReason.max_tokens
    room = conversation.room()
    if room is not None and room < 0:
        return StopReason.context_full
    if time.perf_counter() - started > limits.max_seconds:
        return StopReason.timeout
    return None


def _last_were(turns: Sequence[Turn], count: int, bad: Callable[[Facts], bool]) -> bool:
    """Whether the last ``count`` turns were all bad."""
    return len(turns) >= count and all(bad(turn.facts) for turn in turns[-count:])


async def _close(world: World) -> None:
    """A world that fails to close has finished its episode all the same."""
    try:
        close: Callable[[], Any] = world.close
        closed = close()
        if inspect.isawaitable(closed):
            await closed
    except Exception as error:
        traceback.clear_frames(error.__traceback__)
