"""What acts: a policy opens one conversation per episode, which alternates ``act`` and ``observe``.

A policy that samples tokens and a scripted one look the same to a rollout; only the first fills in ids
and log-probabilities. The world is handed over at ``open`` for scripts that ask its oracle; a model
never looks at it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from palestra.policy.chat import ChatTemplate
from palestra.policy.engine import Engine, SamplingParams
from palestra.policy.transcript import ContextWindow, Transcript
from palestra.types import Facts, FinishReason, Message


@dataclass(frozen=True, slots=True)
class Sampled:
    """One action as a policy produced it."""

    text: str
    """Decoded text, without the end token."""
    finish_reason: FinishReason = "stop"
    ids: tuple[int, ...] = ()
    """Empty for scripts."""
    logprobs: tuple[float, ...] = ()
    """One per id."""
    prompt_ids: tuple[int, ...] = ()
    """The whole context it was sampled from, where that was rendered anew; else empty."""


class Conversation(Protocol):
    """A policy's side of one episode."""

    prompt_ids: tuple[int, ...]
    """The rendered prompt; empty for scripts."""

    def room(self) -> int | None:
        """Tokens that still fit the context after the next action's allowance; None if unlimited."""

    async def act(self) -> Sampled:
        """The next action."""

    def observe(self, text: str, facts: Facts) -> tuple[int, ...]:
        """Take in the world's reply and what happened; returns the ids it added."""

    def close(self) -> tuple[int, ...]:
        """The episode is over.

        Returns:
            The context that the next action would have been taken in, if it was rendered anew after the last
            one; else nothing.
        """


class Policy(Protocol):
    """What acts in episodes."""

    @property
    def name(self) -> str:
        """Recorded in trajectories: ``oracle``, ``teacher``, ``sft``, ``rl`` ..."""

    @property
    def version(self) -> int:
        """Updates behind its weights; 0 for scripts."""

    def open(self, prompt: Sequence[Message], world: Any, seed: int, session: str) -> Conversation:
        """Start an episode.

        Args:
            prompt: the messages before the first action.
            world: the environment, for scripts.
            seed: makes the episode's samples reproducible; differs between attempts of a group.
            session: names the episode among those running at once.
        """


@dataclass(frozen=True)
class TokenPolicy:
    """A chat template in front of an engine."""

    name: str
    template: ChatTemplate
    engine: Engine
    params: SamplingParams
    """Length and temperature of every action; the seed is set per turn."""
    window: ContextWindow = ContextWindow()  # noqa: RUF009  (frozen)
    """How much is shown before an action, so that its most tokens still fit the engine's context."""
    version: int = 0
    """Updates behind the engine's weights when this policy was made."""

    def open(self, prompt: Sequence[Message], world: Any, seed: int, session: str) -> TokenConversation:
        """Render the prompt and start; the world is not looked at."""
        return TokenConversation(self, prompt, seed, session)


class TokenConversation:
    """One episode's tokens: a transcript of what was sampled and rendered."""

    def __init__(self, policy: TokenPolicy, prompt: Sequence[Message], seed: int, session: str) -> None:
        """Render the prompt."""
        self._policy, self._seed, self._session = policy, seed, session
        self._transcript = Transcript(policy.template, policy.window, prompt)
        self.prompt_ids = tuple(self._transcript.ids)
        self._action = ""
        self._turn = 0

    def room(self) -> int | None:
        """Tokens left in the context once the next action took its most."""
        most = self._policy.window.tokens
        return None if most is None else most - len(self._transcript.ids)

    async def act(self) -> Sampled:
        """Sample the next action; its seed depends on the episode and the turn alone."""
        params = SamplingParams(
            self._policy.params.max_tokens, self._policy.params.temperature, self._seed * 1_000 + self._turn
        )
        generation = await self._policy.engine.generate(self._transcript.ids, params, self._session)
        self._turn += 1
        self._action = self._policy.template.decode(generation.ids)
        anew = self._transcript.act(generation.ids)
        return Sampled(self._action, generation.finish_reason, generation.ids, generation.logprobs, anew)

    def observe(self, text: str, facts: Facts) -> tuple[int, ...]:
        """Append the reply; nothing is appended where the conversation was rendered anew."""
        return self._transcript.observe(self._action, text, facts)

    def close(self) -> tuple[int, ...]:
        """Let the engine forget the episode."""
        self._policy.engine.release(self._session)
        return self._transcript.anew
