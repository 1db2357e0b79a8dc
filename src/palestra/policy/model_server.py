"""A model behind an OpenAI-compatible server: requests with retries, limits and a meter of what they cost.

What is worth asking again (no connection, too many requests, a server's own failure) is asked again, later
each time; what is not is the caller's mistake and says so. The surprising choice: a server is asked who it is
before anything is sent, because what a request may hold differs: some die of a seed.
"""

from __future__ import annotations

import asyncio
import math
import os
import re
import time
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import httpx2

from palestra.errors import ConfigError, ContextFull, EngineError

_AGAIN = frozenset({408, 409, 425, 429})
"""Statuses that may pass, beside those of 500 and above."""
_LONGEST_WAIT = 30.0
_TOO_LONG = re.compile(r"context_length_exceeded|maximum context length|longer than the maximum model")
"""How servers say that a prompt does not fit."""
_SHOWN = 300
"""Characters of an answer that an error repeats."""


@dataclass(frozen=True)
class ServerSettings:
    """Where a model is served and how it is asked."""

    url: str
    """Up to and with ``/v1``."""
    model: str | None = None
    """As the server calls it; None for the only one it has."""
    key_variable: str | None = None
    """Environment variable with the key that is sent; None to send none."""
    timeout_seconds: float = 120.0
    """Most time for one answer."""
    retries: int = 5
    """Times that a request is sent again."""
    requests_at_once: int = 64
    requests_per_minute: float | None = None
    """None for as many as it answers."""
    input_price: float | None = None
    """Per million tokens sent, in any currency; None if nothing is paid."""
    output_price: float | None = None


@dataclass
class Meter:
    """What has been asked of a server so far."""

    requests: int = 0
    """Answered ones."""
    retries: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    """As the server counts them."""

    def cost(self, settings: ServerSettings) -> float | None:
        """In the currency of the prices; None where there are none."""
        if settings.input_price is None and settings.output_price is None:
            return None
        paid = self.input_tokens * (settings.input_price or 0.0)
        return (paid + self.output_tokens * (settings.output_price or 0.0)) / 1e6


class ModelServer:
    """One model on one server."""

    def __init__(self, settings: ServerSettings) -> None:
        """Ask the server which models it has.

        Raises:
            ConfigError: nobody answers there, the key is missing or refused, or it has not this model.
        """
        self.settings, self.meter = settings, Meter()
        self._url = settings.url.rstrip("/")
        self._headers = _authorization(settings)
        served = self._served()
        self.model = settings.model or _only(served, self._url)
        if self.model not in served:
            raise ConfigError(
                f"The server at {self._url} has no model {self.model!r}; it has {', '.join(served)}."
            )
        self.owner = served[self.model]
        """Who it says serves the model: ``palestra``, ``vllm`` ..."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._client: httpx2.AsyncClient
        self._gate: asyncio.Semaphore
        self._next_start = 0.0

    async def ask(self, path: str, body: Mapping[str, Any], session: str) -> dict[str, Any]:
        """The answer to one request, as JSON.

        Args:
            path: such as ``completions``.
            body: of the request; the model's name is added.
            session: the episode it belongs to, sent as ``X-Episode-Id``.

        Raises:
            ConfigError: the server refuses the request, and would do so again.
            ContextFull: the prompt is too long for it.
            EngineError: it has failed too often, or its answer is no JSON object.
        """
        self._meet_loop()
        async with self._gate:
            for attempt in range(self.settings.retries + 1):
                await self._pace()
                last = attempt == self.settings.retries
                try:
                    async with asyncio.timeout(self.settings.timeout_seconds):
                        answer = await self._client.post(
                            f"{self._url}/{path}",
                            json={"model": self.model, **body},
                            headers={"X-Episode-Id": session},
                        )
                except (httpx2.RequestError, TimeoutError) as error:
                    if last:
                        raise EngineError(self._gave_up(path, f"{type(error).__name__} {error}")) from error
                    wait = None
                else:
                    if answer.status_code not in _AGAIN and answer.status_code < 500:
                        return self._read(path, answer)
                    if last:
                        raise EngineError(self._gave_up(path, _said(answer)))
                    wait = _seconds(answer.headers.get("retry-after"))
                self.meter.retries += 1
                await asyncio.sleep(_delay(attempt, session) if wait is None else wait)
        raise AssertionError("the last attempt returns or raises")

    def post(self, url: str, body: Mapping[str, Any]) -> Any:
        """Send one request that is no sampling, such as new weights, to a path from the server's root.

        Raises:
            EngineError: it was not done.
        """
        root = self._url.removesuffix("/v1")
        try:
            answer = httpx2.post(
                f"{root}{url}", json=dict(body), headers=self._headers, timeout=self.settings.timeout_seconds
            )
        except httpx2.RequestError as error:
            raise EngineError(f"The server at {root} did not answer {url}: {error!r}") from error
        if not answer.is_success:
            raise EngineError(f"The server at {root} refused {url}: {_said(answer)}")
        return answer.json() if answer.content else None

    def _served(self) -> dict[str, str]:
        """The server's models, and who says it serves each."""
        try:
            answer = httpx2.get(
                f"{self._url}/models", headers=self._headers, timeout=min(self.settings.timeout_seconds, 20.0)
            )
        except (httpx2.RequestError, httpx2.InvalidURL) as error:
            raise ConfigError(
                f"No model server answers at {self._url} ({error}). Is it running, and does the address end "
                "in /v1?"
            ) from error
        if answer.status_code in (401, 403):
            raise ConfigError(
                f"The server at {self._url} wants another key: {_said(answer)}. Set the environment variable "
                "that `key_variable` names."
            )
        try:
            return {each["id"]: str(each.get("owned_by", "")) for each in answer.json()["data"]}
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise ConfigError(
                f"What answers at {self._url}/models is no OpenAI-compatible server: {_said(answer)}"
            ) from error

    def _meet_loop(self) -> None:
        """Connections belong to an event loop, and every collection has one of its own."""
        loop = asyncio.get_running_loop()
        if loop is not self._loop:
            self._loop = loop
            most = self.settings.requests_at_once
            self._gate = asyncio.Semaphore(most)
            self._client = httpx2.AsyncClient(
                headers=self._headers,
                timeout=self.settings.timeout_seconds,
                limits=httpx2.Limits(max_connections=most),
            )

    async def _pace(self) -> None:
        """Wait for this request's place in the minute."""
        if self.settings.requests_per_minute is not None:
            start = max(time.monotonic(), self._next_start)
            self._next_start = start + 60.0 / self.settings.requests_per_minute
            await asyncio.sleep(start - time.monotonic())

    def _read(self, path: str, answer: httpx2.Response) -> dict[str, Any]:
        if not answer.is_success:
            kind = ContextFull if answer.status_code == 400 and _TOO_LONG.search(answer.text) else ConfigError
            raise kind(f"The server at {self._url} refused {path}: {_said(answer)}")
        try:
            read = answer.json()
        except (ValueError, RecursionError) as error:
            raise EngineError(
                f"The server at {self._url} answered {path} with no JSON: {_said(answer)}"
            ) from error
        if not isinstance(read, dict):
            raise EngineError(f"The server at {self._url} answered {path} with no object: {_said(answer)}")
        self.meter.requests += 1
        usage = read.get("usage")
        if isinstance(usage, dict):
            self.meter.input_tokens += _count(usage.get("prompt_tokens"))
            self.meter.output_tokens += _count(usage.get("completion_tokens"))
        return read

    def _gave_up(self, path: str, reason: str) -> str:
        times = self.settings.retries + 1
        return f"The server at {self._url} failed {times} times at {path}; last: {reason}"


def _authorization(settings: ServerSettings) -> dict[str, str]:
    if settings.key_variable is None:
        return {}
    key = os.environ.get(settings.key_variable, "").strip()
    if not key or not key.isascii() or not key.isprintable():
        what = "not a key that can be sent" if key else "not set"
        raise ConfigError(f"The environment variable {settings.key_variable}, for {settings.url}, is {what}.")
    return {"Authorization": f"Bearer {key}"}


def _only(served: Mapping[str, str], url: str) -> str:
    if len(served) != 1:
        raise ConfigError(f"The server at {url} has {len(served)} models, so name one: {', '.join(served)}")
    return next(iter(served))


def _said(answer: httpx2.Response) -> str:
    return f"{answer.status_code} {answer.text[:_SHOWN]}"


def _seconds(header: str | None) -> float | None:
    """What ``Retry-After`` asks for, within reason; a date is not understood."""
    try:
        seconds = float(header or "")
    except ValueError:
        return None
    return min(max(seconds, 0.0), _LONGEST_WAIT) if math.isfinite(seconds) else None


def _count(value: Any) -> int:
    """A number of tokens, if it is one."""
    return value if type(value) is int and 0 <= value < 2**40 else 0


def _delay(attempt: int, session: str) -> float:
    """Doubling from half a second; episodes that failed together come back one by one."""
    spread = zlib.crc32(f"{session}:{attempt}".encode()) / 2**32
    return min(0.5 * 2.0**attempt, _LONGEST_WAIT) * (0.5 + spread)
