"""Where outside programs' episodes come together: sampled, captured, and gathered into groups.

Everything here happens in the server's event loop. The learner, in a thread of its own, asks for groups;
while it learns, requests wait at the door, so no answer is sampled from weights that are being changed. An
episode that began before the last change is answered to its end and, if it has grown too old, not learned
from; its program is told so.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from palestra.errors import ConfigError, ContextFull, EngineError
from palestra.policy import ChatTemplate, Generation, SamplingParams
from palestra.serving.captured import CapturedEpisode
from palestra.types import Message, Trajectory, TrajectoryGroup

_ABANDONED = 10
"""Versions after which an episode that nobody rewarded is forgotten."""


@dataclass(frozen=True)
class Limits:
    """What an answer may be."""

    context_tokens: int
    action_tokens: int
    """Where a request does not say."""
    temperature: float | None = None
    """The only one that captured episodes may have; None for any."""


@dataclass(frozen=True)
class Answer:
    """A sampled action."""

    generation: Generation
    text: str
    prompt_tokens: int


class Desk:
    """See the module's docstring."""

    def __init__(
        self,
        engine: Any,
        template: ChatTemplate,
        limits: Limits,
        *,
        group_size: int = 1,
        max_lag: int = 0,
        captures: bool = True,
    ) -> None:
        """Sample from ``engine``; open until a learner comes.

        Args:
            engine: whose event loop is the server's.
            template: how conversations are written.
            limits: of an answer.
            group_size: attempts that make a group whole.
            max_lag: versions by which an episode may be older than what learns from it.
            captures: whether episodes are kept for a learner; else their name only keeps what was read.
        """
        self.engine, self.template, self.limits = engine, template, limits
        self._group_size, self._max_lag, self._captures = group_size, max_lag, captures
        self.version = int(engine.policy_version)
        self.used = self.stale = 0
        """Finished episodes that went to the learner, and those that were too old or forgotten."""
        self._episodes: dict[str, CapturedEpisode] = {}
        self._groups: dict[str, list[Trajectory]] = {}
        self._asking: dict[str, asyncio.Lock] = {}
        self._open = asyncio.Event()
        self._open.set()
        self._closed = False
        self._sampling = 0
        self._changed = asyncio.Condition()

    async def chat(
        self, messages: Sequence[Message], params: SamplingParams, episode: str | None, group: str | None
    ) -> Answer:
        """Answer a conversation; with an ``episode`` it is captured, and as it was if there is no answer.

        Raises:
            ContextFull: it is too long.
            ConfigError: another temperature than the learner's, or a reward came meanwhile.
            EngineError: the server ends.
        """
        if episode is None or not self._captures:
            return await self.complete(self.template.render(messages), params, episode)
        wanted = self.limits.temperature
        if wanted is not None and params.temperature != wanted:
            raise ConfigError(
                f"episodes that are learned from have temperature {wanted:g} (rl.temperature), not "
                f"{params.temperature:g}: leave it out"
            )
        lock = self._asking.setdefault(episode, asyncio.Lock())
        async with lock:
            await self._enter()
            if self._asking.get(episode) is not lock:
                raise ConfigError(f"episode {episode!r} was rewarded meanwhile")
            before = self._episodes.get(episode)
            known = before.copy() if before else CapturedEpisode(episode, group or episode, self.version)
            answer = await self._sample(known.context(messages, self.template), params, episode)
            known.act(answer.generation, answer.text)
            self._episodes[episode] = known
            return answer

    async def complete(self, ids: Sequence[int], params: SamplingParams, session: str | None) -> Answer:
        """Answer a prompt of ids; what was read of a ``session`` is kept, one request at a time.

        Raises:
            ContextFull: it is too long.
            EngineError: the server ends.
        """
        if session is None:
            once = uuid.uuid4().hex
            try:
                return await self._sample(ids, params, once)
            finally:
                self.engine.release(once)
        lock = self._asking.setdefault(f"ids:{session}", asyncio.Lock())
        try:
            async with lock:
                return await self._sample(ids, params, session)
        finally:
            if not lock.locked():
                self._asking.pop(f"ids:{session}", None)

    async def finish(
        self, episode: str, reward: float | None, success: bool | None, group: str | None = None
    ) -> dict[str, Any]:
        """Take the reward of an episode, and say whether it will be learned from.

        Raises:
            ConfigError: no such episode is being played.
        """
        lock = self._asking.get(episode)
        if lock is None or episode not in self._episodes:
            raise ConfigError(
                f"no episode {episode!r} is being played: with --learn its requests carry the header "
                "X-Episode-Id, and it is rewarded once"
            )
        async with lock:
            known = self._episodes.pop(episode)
            self._asking.pop(episode, None)
        self.engine.release(episode)
        known.group = group or known.group
        if known.version < self.version - self._max_lag:
            self.stale += 1
            return {"taken": False, "reason": "the policy has been updated since it began"}
        self._groups.setdefault(known.group, []).append(known.finish(reward, success))
        await self._tell()
        return {"taken": True, "policy_version": known.version}

    async def _sample(self, ids: Sequence[int], params: SamplingParams, session: str) -> Answer:
        room = self.limits.context_tokens - len(ids)
        if room < 1:
            raise ContextFull(
                f"the prompt has {len(ids)} tokens, and the context {self.limits.context_tokens}"
            )
        fitting = SamplingParams(min(params.max_tokens, room), params.temperature, params.seed)
        await self._enter()
        self._sampling += 1
        try:
            generation = await self.engine.generate(list(ids), fitting, session)
        finally:
            self._sampling -= 1
            await self._tell()
        return Answer(generation, self.template.decode(generation.ids), len(ids))

    async def _enter(self) -> None:
        """Wait until the door is open."""
        await self._open.wait()
        if self._closed:
            raise EngineError("the server is ending")

    async def close(self) -> None:
        """Turn away whoever waits or comes, and the learner too."""
        self._closed = True
        self._open.set()
        await self._tell()

    async def gather(self, count: int, version: int, name: str) -> list[TrajectoryGroup]:
        """Open the door under ``version`` until ``count`` groups are whole, and close it behind them.

        Returns:
            The groups that were first rewarded, their attempts in the order of their rewards; nothing samples
            any more.
        """
        self.version = version
        self._drop_old()
        self._open.set()
        async with self._changed:
            await self._changed.wait_for(lambda: self._closed or len(self._whole()) >= count)
        if self._closed:
            raise asyncio.CancelledError
        await self.hold()
        return [self._take(key, f"{name}/{number}") for number, key in enumerate(self._whole()[:count])]

    async def hold(self) -> None:
        """Close the door and wait until nothing samples."""
        if not self._closed:
            self._open.clear()
        async with self._changed:
            await self._changed.wait_for(lambda: not self._sampling)

    def go_on(self) -> None:
        """Open the door."""
        self._open.set()

    def weights_changed(self, version: int) -> None:
        """Let the engine know of new weights; only while the door is closed."""
        self.engine.weights_changed(version)
        self.version = version

    def state(self) -> dict[str, Any]:
        """How it stands, for a person."""
        return {
            "policy_version": self.version,
            "open": self._open.is_set(),
            "episodes_being_played": len(self._episodes),
            "groups_being_played": len(self._groups),
            "episodes_used": self.used,
            "episodes_too_old": self.stale,
        }

    def _whole(self) -> list[str]:
        return [key for key, ended in self._groups.items() if len(ended) >= self._group_size]

    def _take(self, key: str, name: str) -> TrajectoryGroup:
        """The first attempts of a whole group, under names of the run; later ones begin the group anew."""
        ended = self._groups.pop(key)
        if ended[self._group_size :]:
            self._groups[key] = ended[self._group_size :]
        chosen = ended[: self._group_size]
        self.used += len(chosen)
        task = chosen[0].task  # prompts may tell a date or an id of their own; what they ask for is one
        named = (replace(each, id=f"{name}/{index}", task=task) for index, each in enumerate(chosen))
        return TrajectoryGroup(name, task, tuple(named))

    def _drop_old(self) -> None:
        """Forget attempts that grew too old while their group was not whole, and episodes long abandoned."""
        oldest = self.version - self._max_lag
        for key, ended in list(self._groups.items()):
            kept = [trajectory for trajectory in ended if trajectory.policy_version >= oldest]
            self.stale += len(ended) - len(kept)
            self._groups[key] = kept
            if not kept:
                del self._groups[key]
        for episode in [key for key, each in self._episodes.items() if each.version < oldest - _ABANDONED]:
            self.stale += 1
            del self._episodes[episode]
            self._asking.pop(episode, None)
            self.engine.release(episode)

    async def _tell(self) -> None:
        async with self._changed:
            self._changed.notify_all()
