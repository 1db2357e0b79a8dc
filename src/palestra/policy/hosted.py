"""A policy that is somebody else's: a chat model on a server, asked with messages and read as text.

For evaluation and for demonstrations. It has no token ids, so it is never trained on as it sampled; its
demonstrations are given the ids that the policy in training would have had. The surprising choice: it is told
of the tools as text even where the policy's chat template declares them, for servers that are sent tools
answer with calls in a form of their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from palestra.errors import ConfigError, EngineError
from palestra.policy.base import Sampled
from palestra.policy.engine import SamplingParams
from palestra.policy.model_server import ModelServer
from palestra.policy.transcript import without_middle
from palestra.store import readable
from palestra.types import Facts, FinishReason, Message

_MOST_CHARACTERS = 100_000
"""Of a reply that is sent whole; more would fill any context, and is paid for."""


@dataclass(frozen=True)
class HostedPolicy:
    """A chat model on a server."""

    name: str
    server: ModelServer
    params: SamplingParams
    """Length and temperature of every action; the seed is not sent."""
    version: int = 0

    def open(self, prompt: Sequence[Message], world: Any, seed: int, session: str) -> HostedConversation:
        """Start an episode; of the world only its text about the tools is looked at, of the seed nothing.

        Raises:
            ConfigError: the world has tools for a chat template to declare, and no text about them.
        """
        return HostedConversation(self, [_as_text(message, world) for message in prompt], session)


class HostedConversation:
    """One episode's messages; observations are the user's, since they answer no call of the server's form."""

    prompt_ids: tuple[int, ...] = ()

    def __init__(self, policy: HostedPolicy, prompt: Sequence[Message], session: str) -> None:
        """Begin with the prompt."""
        self._policy, self._session = policy, session
        self._said = [{"role": message.role, "content": message.content} for message in prompt]

    def room(self) -> int | None:
        """The server knows its own limit."""
        return None

    async def act(self) -> Sampled:
        """Ask for the next action.

        Raises:
            ConfigError: the server refuses the request.
            EngineError: it fails, or what it answers is no message.
        """
        params = self._policy.params
        answer = await self._policy.server.ask(
            "chat/completions",
            {"messages": self._said, "max_tokens": params.max_tokens, "temperature": params.temperature},
            self._session,
        )
        try:
            (choice,) = answer["choices"]
            said = choice["message"]["content"]
            text = readable("" if said is None else said)
            reason: FinishReason = "length" if choice.get("finish_reason") == "length" else "stop"
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise EngineError(
                f"The server's answer is no message: {error!r} in {str(answer)[:300]}"
            ) from error
        self._said.append({"role": "assistant", "content": text})
        return Sampled(text, reason)

    def observe(self, text: str, facts: Facts) -> tuple[int, ...]:
        """Append the world's reply; a huge one with its middle left out."""
        self._said.append({"role": "user", "content": without_middle(text, _MOST_CHARACTERS)})
        return ()

    def close(self) -> tuple[int, ...]:
        """Nothing is kept."""
        return ()


def _as_text(message: Message, world: Any) -> Message:
    """The message without tools, whose text describes them."""
    if not message.tools:
        return message
    text = getattr(world, "text_prompt", "")
    if not text:
        raise ConfigError(
            f"{type(world).__name__} has schema_tools and no text_prompt, and a hosted model is told of "
            "tools as text. Give it a text_prompt that describes them."
        )
    return replace(message, content=readable(text), tools=())
