"""The OpenAI-compatible server around palestra's own engine.

Chat clients find ``/v1/chat/completions``; palestra itself, and whatever works with token ids, uses
``/v1/completions`` with ids as the prompt. Tools in a chat are declared by the model's chat template, and
calls are text in the answer, as they were in training. A request that asks for what the engine does not do
(nucleus sampling, penalties, several answers) is refused, for a setting that is silently ignored is worse.
"""

from __future__ import annotations

import json
import math
import secrets
import time
import uuid
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Any

from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from palestra.errors import ConfigError, ContextFull, EngineError
from palestra.policy import SamplingParams
from palestra.serving.desk import Answer, Desk
from palestra.store import readable
from palestra.types import Message, ToolSpec

_NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "top_p": (1,),
    "top_k": (-1, 0),
    "min_p": (0,),
    "repetition_penalty": (1,),
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "n": (1,),
    "best_of": (1,),
    "stop": ([],),
    "logit_bias": ({},),
    "functions": ([],),
    "response_format": ({"type": "text"},),
    "echo": (False,),
    "suffix": ("",),
    "tool_choice": ("auto", "none"),
    "min_tokens": (0,),
    "ignore_eos": (False,),
    "bad_words": ([],),
    "allowed_token_ids": (),
    "structured_outputs": (),
    "guided_json": (),
    "guided_regex": (),
    "guided_choice": (),
    "guided_grammar": (),
}
"""Settings that are accepted where they change nothing."""
_MOST_REWARD = 1e6
_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "tool"}
_MOST_BYTES = 16 * 2**20
"""Of a request; no conversation comes near it."""
_Handler = Callable[[Request], Awaitable[Response]]


def make_app(
    desk: Desk, name: str, load: Callable[[str], None] | None = None, key: str | None = None
) -> Starlette:
    """The server's application.

    Args:
        desk: what answers.
        name: the model's, in ``/v1/models``.
        load: puts the weights of a folder into the model, for ``/weights``; None to refuse that.
        key: what requests must carry as their bearer token; None for none.
    """
    handlers = _Handlers(desk, name, load)
    posts = {
        "/v1/chat/completions": handlers.chat,
        "/v1/completions": handlers.completions,
        "/v1/episodes/{episode:path}/reward": handlers.reward,
        "/weights": handlers.weights,
    }
    gets = {"/v1/models": handlers.models, "/health": handlers.state}
    return Starlette(
        routes=[
            *(Route(path, _guarded(handler, key), methods=["POST"]) for path, handler in posts.items()),
            *(Route(path, _guarded(handler, key), methods=["GET"]) for path, handler in gets.items()),
        ]
    )


class _Handlers:
    """What each address does."""

    def __init__(self, desk: Desk, name: str, load: Callable[[str], None] | None) -> None:
        self._desk, self._name, self._load = desk, name, load

    async def models(self, request: Request) -> Response:
        about = {"id": self._name, "object": "model", "created": 0, "owned_by": "palestra"}
        return JSONResponse({"object": "list", "data": [about]})

    async def state(self, request: Request) -> Response:
        return JSONResponse(self._desk.state())

    async def chat(self, request: Request) -> Response:
        body = await _body(request)
        _check_model(body, self._name)
        limits = self._desk.limits
        params = _params(body, limits.action_tokens, limits.temperature)
        episode, group = request.headers.get("x-episode-id"), request.headers.get("x-group-id")
        answer = await self._desk.chat(_messages(body), params, episode, group)
        said = _chat_answer(answer, self._name, body)
        return _stream(said) if body.get("stream") else JSONResponse(said)

    async def completions(self, request: Request) -> Response:
        body = await _body(request)
        _check_model(body, self._name)
        ids, params, ends = _prompt(body), _params(body, 16, None), self._desk.template.end_ids
        if body.get("stream"):
            raise ConfigError("completions are not streamed")
        if body.get("tools"):
            raise ConfigError("tools are declared in a chat; a prompt of ids holds them already")
        stops = body.get("stop_token_ids") or []
        if not isinstance(stops, list) or any(each not in ends for each in stops):
            raise ConfigError(f"an action ends with {list(ends)}, not with {stops}")
        answer = await self._desk.complete(ids, params, request.headers.get("x-episode-id"))
        return JSONResponse(_completion_answer(answer, self._name, ids))

    async def reward(self, request: Request) -> Response:
        body = await _body(request)
        value, success, group = body.get("reward"), body.get("success"), body.get("group")
        if not body.get("failed") and (not _is_number(value) or success not in (None, True, False)):
            raise ConfigError(
                'an episode is rewarded with {"reward": a number, "success": true or false}, or '
                '{"failed": true} if it came to nothing through no fault of the policy'
            )
        earned = None if value is None or body.get("failed") else float(value)
        if (earned is not None and abs(earned) > _MOST_REWARD) or not isinstance(group, str | None):
            raise ConfigError(f"a reward is from -{_MOST_REWARD:g} to {_MOST_REWARD:g}, and a group is text")
        return JSONResponse(await self._desk.finish(request.path_params["episode"], earned, success, group))

    async def weights(self, request: Request) -> Response:
        body = await _body(request)
        if self._load is None:
            raise ConfigError("this server learns by itself and takes no weights")
        version = body.get("version", self._desk.version + 1)
        if type(version) is not int:
            raise ConfigError("a version is a whole number")
        await self._desk.hold()
        try:
            self._load(str(body.get("path")))
            self._desk.weights_changed(version)
        finally:
            self._desk.go_on()
        return JSONResponse(self._desk.state())


def _guarded(handler: _Handler, key: str | None) -> _Handler:
    """The handler with a caller's mistakes as answers in OpenAI's form."""
    wanted = f"Bearer {key}".encode()

    async def guarded(request: Request) -> Response:
        given = request.headers.get("authorization", "").encode()
        if key is not None and not secrets.compare_digest(given, wanted):
            return _refusal(401, "a key is needed: Authorization: Bearer KEY")
        if key is None and "origin" in request.headers:  # any page in a browser here could train the policy
            return _refusal(403, "a page in a browser is answered only with a key (--key-variable)")
        try:
            return await handler(request)
        except _TooLarge:
            refusal = _refusal(413, f"a request may have {_MOST_BYTES // 2**20} MiB")
            refusal.headers["connection"] = "close"  # the rest, which may have no end, is not read
            return refusal
        except ContextFull as error:
            return _refusal(400, str(error), "context_length_exceeded")
        except ConfigError as error:
            return _refusal(400, str(error))
        except EngineError as error:
            return _refusal(503, str(error))
        except ClientDisconnect:
            return Response(status_code=499)

    return guarded


def _refusal(status: int, message: str, code: str | None = None) -> Response:
    about = {"message": message, "type": "invalid_request_error", "code": code}
    return JSONResponse({"error": about}, status_code=status)


class _TooLarge(Exception):
    """A request that would fill the memory."""


async def _body(request: Request) -> dict[str, Any]:
    data = bytearray()
    async for chunk in request.stream():
        data += chunk
        if len(data) > _MOST_BYTES:
            raise _TooLarge
    try:
        body = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"the request is no JSON: {error}") from error
    if not isinstance(body, dict):
        raise ConfigError("the request is no JSON object")
    for key, neutral in _NEUTRAL.items():
        if body.get(key) is not None and body[key] not in neutral:
            raise ConfigError(f"{key}={body[key]!r} is not supported; leave it out")
    return body


def _check_model(body: Mapping[str, Any], name: str) -> None:
    if body.get("model") not in (None, name):
        raise ConfigError(f"there is no model {body['model']!r} here; there is {name!r}")


def _params(body: Mapping[str, Any], most: int, usual: float | None) -> SamplingParams:
    chosen = body.get("max_completion_tokens") or body.get("max_tokens") or most
    temperature, seed = body.get("temperature"), body.get("seed")
    temperature = (1.0 if usual is None else usual) if temperature is None else temperature
    if not isinstance(chosen, int) or not _is_number(temperature) or not isinstance(seed, int | None):
        raise ConfigError("max_tokens and seed are whole numbers, and temperature is a number")
    return SamplingParams(chosen, float(temperature), uuid.uuid4().int % 2**40 if seed is None else seed)


def _messages(body: Mapping[str, Any]) -> list[Message]:
    try:
        found = [Message(_ROLES[each["role"]], _text(each.get("content"))) for each in body["messages"]]  # type: ignore[arg-type]
    except (KeyError, TypeError) as error:
        raise ConfigError(f"messages are a list of {{role, content}}; roles: {', '.join(_ROLES)}") from error
    if any(each.get("tool_calls") for each in body["messages"]):
        raise ConfigError("tool_calls in the server's form are not supported: calls are text")
    if not found or found[-1].role == "assistant":
        raise ConfigError("the last message is one that is to be answered")
    return [replace(found[0], tools=_tools(body)), *found[1:]]


def _tools(body: Mapping[str, Any]) -> tuple[ToolSpec, ...]:
    """The tools that the chat template is to declare."""
    tools = body.get("tools") or ()
    if tools and body.get("tool_choice") != "none":
        raise ConfigError("calls are answered as text, not as tool_calls: send tools with tool_choice='none'")
    try:
        functions = [each["function"] for each in tools]
        found = [
            (each["name"], each.get("description", ""), each.get("parameters", {})) for each in functions
        ]
    except (KeyError, TypeError, AttributeError):
        found = [(None, None, None)]
    if not all(isinstance(n, str) and isinstance(d, str) and isinstance(p, dict) for n, d, p in found):
        raise ConfigError("tools are a list of {type, function: {name, description, parameters}}")
    return tuple(ToolSpec(readable(name), readable(about), schema) for name, about, schema in found)


def _text(content: Any) -> str:
    """A message's text; clients may send it in parts."""
    if content is None:
        return ""
    if isinstance(content, str):
        return readable(content)
    if any(part["type"] != "text" for part in content):
        raise ConfigError("only text can be read")
    return readable("".join(part["text"] for part in content))


def _prompt(body: Mapping[str, Any]) -> list[int]:
    prompt = body.get("prompt")
    if not isinstance(prompt, list) or not prompt or not all(type(token) is int for token in prompt):
        raise ConfigError("completions take a prompt of token ids; for text there are chat/completions")
    return prompt


def _usage(answer: Answer) -> dict[str, int]:
    sampled = len(answer.generation.ids)
    return {
        "prompt_tokens": answer.prompt_tokens,
        "completion_tokens": sampled,
        "total_tokens": answer.prompt_tokens + sampled,
    }


def _chat_answer(answer: Answer, model: str, body: Mapping[str, Any]) -> dict[str, Any]:
    choice: dict[str, Any] = {
        "index": 0,
        "message": {"role": "assistant", "content": answer.text},
        "finish_reason": answer.generation.finish_reason,
        "logprobs": None,
    }
    if body.get("logprobs"):
        pairs = zip(answer.generation.ids, answer.generation.logprobs, strict=True)
        choice["logprobs"] = {"content": [{"token": f"token_id:{i}", "logprob": value} for i, value in pairs]}
    return _envelope("chat.completion", model, choice, answer)


def _completion_answer(answer: Answer, model: str, prompt: list[int]) -> dict[str, Any]:
    ids = list(answer.generation.ids)
    choice = {
        "index": 0,
        "text": answer.text,
        "finish_reason": answer.generation.finish_reason,
        "token_ids": ids,
        "prompt_token_ids": prompt,
        "logprobs": {
            "tokens": [f"token_id:{token}" for token in ids],
            "token_logprobs": list(answer.generation.logprobs),
        },
    }
    return _envelope("text_completion", model, choice, answer)


def _envelope(kind: str, model: str, choice: dict[str, Any], answer: Answer) -> dict[str, Any]:
    return {
        "id": f"palestra-{uuid.uuid4().hex}",
        "object": kind,
        "created": int(time.time()),
        "model": model,
        "choices": [choice],
        "usage": _usage(answer),
        "system_fingerprint": f"version-{answer.generation.policy_version}",
    }


def _stream(said: dict[str, Any]) -> Response:
    """The answer as one event, for clients that ask for a stream; nothing is gained by it."""
    (choice,) = said["choices"]
    part = {"index": 0, "delta": choice["message"], "finish_reason": choice["finish_reason"]}
    event = {**said, "object": "chat.completion.chunk", "choices": [part]}
    return Response(f"data: {json.dumps(event)}\n\ndata: [DONE]\n\n", media_type="text/event-stream")


def _is_number(value: Any) -> bool:
    return (type(value) is int and abs(value) < 2**60) or (type(value) is float and math.isfinite(value))
