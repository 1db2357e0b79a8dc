"""The in-process engine: continuous batching over slots, for any transformers causal language model.

Every episode owns a slot whose keys and values survive from turn to turn, so a turn only reads what is
new; identical fresh prompts (a group's attempts) are read once and copied. A row that waits for its
world costs a little arithmetic and no copying. The surprising choice: waiting requests are admitted
together once they are a quarter of the running ones, because many small prefills cost more than the wait.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from palestra.errors import ConfigError
from palestra.policy.engine import Generation, SamplingParams, as_end_ids
from palestra.policy.forward import last_hidden, logits_of
from palestra.policy.models import model_from_bytes, weights_to_bytes
from palestra.policy.slot_cache import SlotCache
from palestra.types import FinishReason

_SPAN_STEP = 64
_YIELDS = 3
"""Rounds of the event loop an episode takes from a finished action to its next request."""


@dataclass(slots=True, eq=False)
class _Request:
    prompt: list[int]
    params: SamplingParams
    session: str
    done: asyncio.Future[Generation]
    uniforms: list[float]
    slot: int = -1
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)


class LocalEngine:
    """Samples from a model in this process; see the module's docstring."""

    def __init__(
        self, model: Any, end_ids: int | Sequence[int], *, slots: int = 64, context_tokens: int = 2048
    ) -> None:
        """Serve ``model`` (kept in eval mode while sampling).

        Args:
            model: a transformers causal language model.
            end_ids: the id that ends an action, or several of which any does.
            slots: most episodes at once; a further one waits for a free slot.
            context_tokens: most tokens an episode may hold.
        """
        self.model, self._end_ids, self._context = model, as_end_ids(end_ids), context_tokens
        self._slot_count = slots
        self._cache = self._new_cache()
        self.policy_version = 0
        self._read: dict[int, list[int]] = {}
        self._slots: dict[str, int] = {}
        self._free = list(range(slots - 1, -1, -1))
        self._waiting: list[_Request] = []
        self._running: list[_Request] = []
        self._runner: asyncio.Task[None] | None = None
        self._poisoned = False

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the weights and the sizes: another process gets the same policy, with nothing read yet."""
        made_of = (self.model.config, self.model.dtype, weights_to_bytes(self.model), self._end_ids)
        return _revive, (*made_of, self._slot_count, self._context, self.policy_version)

    @property
    def weight_bytes(self) -> int:
        """Bytes that another process has to be sent to sample from the same policy."""
        return sum(each.numel() * each.element_size() for each in self.model.parameters())

    @property
    def cache_bytes(self) -> int:
        """Bytes of keys, values and convolution inputs when all slots are full."""
        return self._cache.size_bytes

    async def generate(self, prompt_ids: Sequence[int], params: SamplingParams, session: str) -> Generation:
        """Sample a continuation; ``prompt_ids`` is the whole context, of which only the new part is read.

        Raises:
            ConfigError: the prompt and ``max_tokens`` exceed the context.
        """
        if len(prompt_ids) + params.max_tokens > self._context:
            raise ConfigError(
                f"{len(prompt_ids)} prompt tokens and {params.max_tokens} new ones exceed the context of "
                f"{self._context}: lower max_tokens or end the episode as context_full"
            )
        if min(prompt_ids) < 0 or max(prompt_ids) >= self.model.config.vocab_size:
            raise ConfigError(f"token ids are from 0 to {self.model.config.vocab_size - 1}")
        rng = random.Random(params.seed)
        uniforms = [rng.random() for _ in range(params.max_tokens)]
        done: asyncio.Future[Generation] = asyncio.get_running_loop().create_future()
        self._waiting.append(_Request(list(prompt_ids), params, session, done, uniforms))
        if self._runner is None or self._runner.done():
            self._runner = asyncio.get_running_loop().create_task(self._run())
        return await done

    def release(self, session: str) -> None:
        """Free an episode's slot and drop its request, if it has one."""
        for request in (*self._waiting, *self._running):
            if request.session == session:
                request.done.cancel()
        self._waiting = [request for request in self._waiting if request.session != session]
        self._running = [request for request in self._running if request.session != session]
        slot = self._slots.pop(session, None)
        if slot is not None:
            self._read.pop(slot, None)
            self._cache.clear_slot(slot)
            self._free.append(slot)
            self._free.sort(reverse=True)

    def weights_changed(self, policy_version: int) -> None:
        """Drop everything read under older weights, and whatever still waits for them."""
        for session in [*self._slots, *(request.session for request in self._waiting)]:
            self.release(session)
        self.policy_version = policy_version
        if self._poisoned:  # what is not a number stays so where it is masked
            self._cache = self._new_cache()
            self._poisoned = False

    def _new_cache(self) -> SlotCache:
        model = self.model
        return SlotCache(model.config, self._slot_count, self._context + 1, model.device, model.dtype)

    async def _run(self) -> None:
        """Serve until nothing waits or runs, giving the episodes a turn after every step."""
        try:
            while self._waiting or self._running:
                admitted = self._admissible()
                with torch.inference_mode():
                    if admitted and len(admitted) * 4 >= len(self._running):
                        self._waiting = [request for request in self._waiting if request not in admitted]
                        self._running += admitted
                        self._prefill(admitted)
                    else:
                        self._decode()
                for _ in range(_YIELDS):
                    await asyncio.sleep(0)
        except BaseException as error:
            for request in (*self._waiting, *self._running):
                if isinstance(error, Exception) and not request.done.done():
                    request.done.set_exception(error)
            self.weights_changed(self.policy_version)
            if not isinstance(error, Exception):
                raise

    def _admissible(self) -> list[_Request]:
        """Waiting requests that have a slot or can get one."""
        admitted = []
        for request in self._waiting:
            if request.session not in self._slots and not self._make_room():
                continue
            if request.session not in self._slots:
                self._slots[request.session] = self._free.pop()
            request.slot = self._slots[request.session]
            admitted.append(request)
        return admitted

    def _make_room(self) -> bool:
        """A free slot, if need be that of an episode that samples nothing now; it is read anew later."""
        if not self._free:
            busy = {request.session for request in (*self._waiting, *self._running)}
            idle = next((session for session in self._slots if session not in busy), None)
            if idle is not None:
                self.release(idle)
        return bool(self._free)

    def _prefill(self, requests: list[_Request]) -> None:
        """Read what is new in each prompt, equal fresh prompts once, and sample first tokens."""
        leaders: dict[tuple[int, ...], _Request] = {}
        followers: list[tuple[_Request, _Request]] = []
        rows: list[_Request] = []
        for request in requests:
            known = self._read.get(request.slot, [])
            if len(known) >= len(request.prompt) or request.prompt[: len(known)] != known:
                known = []
                self._cache.clear_slot(request.slot)
            self._read[request.slot] = known
            leader = None if known else leaders.setdefault(tuple(request.prompt), request)
            if leader is None or leader is request:
                rows.append(request)
            else:
                followers.append((request, leader))
        logits = self._read_prompts(rows)
        place = {id(request): index for index, request in enumerate(rows)}
        for leader in leaders.values():
            targets = [follower.slot for follower, its in followers if its is leader]
            if targets:
                self._cache.copy_slot(leader.slot, targets)
        for request in requests:
            self._read[request.slot] = list(request.prompt)
        order = [*rows, *(follower for follower, _ in followers)]
        picks = [*range(len(rows)), *(place[id(leader)] for _, leader in followers)]
        self._sample(order, logits[picks])

    def _read_prompts(self, requests: list[_Request]) -> Tensor:
        """(rows, vocabulary) logits after each row's new ids; rows of similar width go together."""
        new = [request.prompt[len(self._read[request.slot]) :] for request in requests]
        by_width: dict[int, list[int]] = {}
        for index, ids in enumerate(new):
            by_width.setdefault(len(ids).bit_length(), []).append(index)
        parts = [
            self._forward([requests[i] for i in some], [new[i] for i in some]) for some in by_width.values()
        ]
        order = torch.tensor([index for some in by_width.values() for index in some])
        return torch.cat(parts)[order.argsort()]

    def _forward(self, requests: list[_Request], new: list[list[int]]) -> Tensor:
        """(rows, vocabulary) logits after each row's new ids, right-padded to one width."""
        device = self._cache.lengths.device
        width = max(len(ids) for ids in new)
        ids = torch.tensor([row + [0] * (width - len(row)) for row in new], device=device)
        counts = torch.tensor([len(row) for row in new], device=device)
        slots = torch.tensor([request.slot for request in requests], device=device)
        return self._model_step(slots, ids, counts)

    def _decode(self) -> None:
        """One token for every running request.

        Idle slots between the running ones are carried along unchanged; when they are most, the running ones
        are copied out instead.
        """
        running = sorted(self._running, key=lambda request: request.slot)
        top = running[-1].slot + 1
        device = self._cache.lengths.device
        dense = 2 * len(running) > top
        places = [request.slot if dense else place for place, request in enumerate(running)]
        width = top if dense else len(running)
        ids, counts = [0] * width, [0] * width
        for place, request in zip(places, running, strict=True):
            ids[place], counts[place] = request.ids[-1], 1
            self._read[request.slot].append(request.ids[-1])
        rows = slice(0, top) if dense else torch.tensor([request.slot for request in running], device=device)
        logits = self._model_step(
            rows, torch.tensor(ids, device=device)[:, None], torch.tensor(counts, device=device)
        )
        self._sample(running, logits[places])

    def _model_step(self, rows: Tensor | slice, ids: Tensor, counts: Tensor) -> Tensor:
        width = ids.shape[1]
        longest = int(self._cache.lengths[rows].max()) + width
        span = min(-(-longest // _SPAN_STEP) * _SPAN_STEP, self._context + 1)
        self._cache.focus(rows, counts, span)
        mask, positions = self._cache.attention_mask(width), self._cache.positions(width)
        hidden = last_hidden(self.model, ids, mask, positions, self._cache)
        self._cache.advance()
        last = (counts - 1).clamp_min(0)
        return logits_of(self.model, hidden[torch.arange(len(last)), last])

    def _sample(self, requests: list[_Request], logits: Tensor) -> None:
        """Draw one token a row by inverse CDF of its own uniforms, and finish what is finished."""
        temperatures = torch.tensor([request.params.temperature for request in requests])
        scaled = logits / torch.where(temperatures > 0, temperatures, 1.0)[:, None]
        logprobs = torch.log_softmax(scaled, -1)
        uniforms = torch.tensor([request.uniforms[len(request.ids)] for request in requests])
        cumulative = logprobs.double().exp().cumsum(-1)
        drawn = torch.searchsorted(cumulative, uniforms.double()[:, None] * cumulative[:, -1:])[:, 0]
        drawn = drawn.clamp_max(logits.shape[1] - 1)
        picked = torch.where(temperatures > 0, drawn, logits.argmax(-1))
        chosen = logprobs.gather(1, picked[:, None])[:, 0]
        self._poisoned = self._poisoned or not bool(chosen.isfinite().all())
        for request, token, logprob in zip(requests, picked.tolist(), chosen.tolist(), strict=True):
            request.ids.append(token)
            request.logprobs.append(logprob)
            if token in self._end_ids:
                self._finish(request, "stop")
            elif len(request.ids) == request.params.max_tokens:
                self._finish(request, "length")

    def _finish(self, request: _Request, reason: FinishReason) -> None:
        self._running.remove(request)
        if not request.done.done():
            generation = Generation(tuple(request.ids), tuple(request.logprobs), reason, self.policy_version)
            request.done.set_result(generation)


def _revive(
    config: Any,
    dtype: torch.dtype,
    weights: bytes,
    end_ids: Sequence[int],
    slots: int,
    context: int,
    version: int,
) -> LocalEngine:
    model = model_from_bytes(config, weights).to(dtype)
    engine = LocalEngine(model, end_ids, slots=slots, context_tokens=context)
    engine.policy_version = version
    return engine
