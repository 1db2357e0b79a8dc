"""The engine behind a server: token ids in, token ids and log-probabilities out, over HTTP.

It speaks the completions call of vLLM, which takes ids as a prompt and gives ids back. Whatever would change
the distribution unseen (a model's own top-p, top-k or penalties) is switched off in every request. What comes
back is checked: an answer that is not a sample of the right length with finite log-probabilities is a failed
episode, never a silent zero.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from palestra.errors import EngineError
from palestra.policy.engine import Generation, SamplingParams, as_end_ids
from palestra.policy.model_server import ModelServer
from palestra.types import FinishReason

_PLAIN = {
    "top_p": 1.0,
    "top_k": -1,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "skip_special_tokens": False,
}
"""Nothing but the temperature shapes the distribution."""
_ID = "token_id:"


class HttpEngine:
    """Samples from a server; see the module's docstring."""

    def __init__(
        self,
        server: ModelServer,
        end_ids: int | Sequence[int],
        policy_version: int = 0,
        *,
        vocabulary: int = 2**31,
    ) -> None:
        """Sample from ``server``; actions end with any of ``end_ids`` and have ids below ``vocabulary``."""
        self.server, self._end_ids, self.policy_version = server, as_end_ids(end_ids), policy_version
        self._vocabulary = vocabulary

    @property
    def reproducible(self) -> bool:
        """Whether a request's seed settles its sample: other servers are not sent one, and some die of it."""
        return self.server.owner == "palestra"

    async def generate(self, prompt_ids: Sequence[int], params: SamplingParams, session: str) -> Generation:
        """Sample a continuation of ``prompt_ids``.

        Raises:
            ConfigError: the server refuses the request.
            EngineError: it fails, or what it answers cannot be used.
        """
        body = {
            **_PLAIN,
            "prompt": list(prompt_ids),
            "max_tokens": params.max_tokens,
            "temperature": params.temperature,
            "stop_token_ids": list(self._end_ids),
            "logprobs": 1,
            "return_token_ids": True,
            "return_tokens_as_token_ids": True,
            **({"seed": params.seed} if self.reproducible else {}),
        }
        version = self.policy_version
        answer = await self.server.ask("completions", body, session)
        ids, logprobs, reason = _sample(answer, prompt_ids)
        _check(ids, logprobs, params.max_tokens)
        self._check_ids(ids)
        return Generation(ids, logprobs, reason, version)

    def _check_ids(self, ids: Sequence[int]) -> None:
        """Refuse ids that the policy has not, or that come behind the end."""
        wrong = [token for token in ids if not 0 <= token < self._vocabulary]
        if wrong:
            raise EngineError(
                f"The server gave token id {wrong[0]}, and the vocabulary has {self._vocabulary}: it serves "
                "another model."
            )
        if any(token in self._end_ids for token in ids[:-1]):
            raise EngineError("The server went on behind the token that ends an action.")

    def release(self, session: str) -> None:
        """Nothing to do: a server forgets by itself."""

    def weights_changed(self, policy_version: int) -> None:
        """Count the version of the weights that the server has from now on."""
        self.policy_version = policy_version


def _sample(
    answer: dict[str, Any], prompt_ids: Sequence[int]
) -> tuple[tuple[int, ...], tuple[float, ...], FinishReason]:
    """Ids, log-probabilities and why it ended, of a completions answer."""
    try:
        (choice,) = answer["choices"]
        said = choice.get("logprobs") or {}
        ids = choice.get("token_ids")
        if ids is None and all(str(token).startswith(_ID) for token in said.get("tokens") or ["no"]):
            ids = [int(token.removeprefix(_ID)) for token in said["tokens"]]
        if ids is None:
            raise EngineError(
                "The server gives text without token ids, so it cannot be trained on what it samples: use it "
                "for evaluation and demonstrations, or a server that knows return_token_ids, such as vLLM."
            )
        read = choice.get("prompt_token_ids")
        if read is not None and list(read) != list(prompt_ids):
            raise EngineError(
                f"The server read {len(read)} prompt tokens that are not the {len(prompt_ids)} it was sent; "
                "does it put a token of its own in front?"
            )
        logprobs = tuple(float(value) for value in said["token_logprobs"])
        reason: FinishReason = choice["finish_reason"]
        if reason not in ("stop", "length"):
            raise EngineError(f"The server ended an answer with {reason!r}.")
        if any(type(token) is not int for token in ids):
            raise EngineError(f"The server gave a token id that is no whole number: {list(ids)[:8]}")
        return tuple(ids), logprobs, reason
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise EngineError(
            f"The server's answer is no completion: {error!r} in {str(answer)[:300]}"
        ) from error


def _check(ids: Sequence[int], logprobs: Sequence[float], most: int) -> None:
    if len(ids) != len(logprobs):
        raise EngineError(f"The server gave {len(ids)} token ids with {len(logprobs)} log-probabilities.")
    if not 1 <= len(ids) <= most:
        raise EngineError(f"The server gave {len(ids)} tokens where 1 to {most} were asked for.")
    if any(not math.isfinite(value) or value > 1e-3 for value in logprobs):
        raise EngineError(f"The server gave a log-probability that is none: {list(logprobs)[:8]}.")
