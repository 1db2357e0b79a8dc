"""A server's weights follow the learner's: written to a folder, loaded there, and proved by their samples.

Server and learner share a file system. The surprising choice: that a server said yes proves nothing. After
every change it samples a little, and its log-probabilities must be those of the learner's own forward pass.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from pathlib import Path
from typing import Any

import torch

from palestra.errors import ConfigError, EngineError
from palestra.policy.adapters import trained_state
from palestra.policy.chat import ChatTemplate
from palestra.policy.engine import Generation, SamplingParams
from palestra.policy.http import HttpEngine
from palestra.policy.model_server import ModelServer
from palestra.policy.models import save_policy
from palestra.types import Message

MOST_MISMATCH = 0.05
"""Nats a token, on average over a few; bfloat16 differs from float32 by a third of it."""
_ASKED = (Message("system", "Answer in a few words."), Message("user", "What is the order of 12 and 7?"))
_SAMPLES, _TOKENS = 4, 16


class SyncedEngine(HttpEngine):
    """An engine on a server that is given a model's weights whenever they have changed."""

    def __init__(
        self, server: ModelServer, model: Any, template: ChatTemplate, *, temperature: float, version: int
    ) -> None:
        """Give the server the weights as they are.

        Args:
            server: it loads weights from a folder of this machine.
            model: whose weights it follows.
            template: of both.
            temperature: that samples will have.
            version: of the weights.

        Raises:
            ConfigError: it samples from other weights afterwards.
            EngineError: it cannot load weights.
        """
        super().__init__(server, template.end_ids, version, vocabulary=model.config.vocab_size)
        self._model, self._template, self._temperature = model, template, temperature
        self._sent: int | None = None
        self.weights_changed(version)

    def weights_changed(self, policy_version: int) -> None:
        """Send the weights, if they have changed or the server lost them, and compare what it then samples.

        Raises:
            ConfigError: it samples from other weights.
            EngineError: it cannot load them.
        """
        super().weights_changed(policy_version)
        counted = sum(value._version for value in trained_state(self._model).values())
        if counted == self._sent and self._mismatch()[0] <= MOST_MISMATCH:
            return
        folder = Path(tempfile.mkdtemp(prefix="palestra-weights-"))
        try:
            save_policy(folder, self._model, self._template)
            _send(self.server, folder, policy_version)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        self._compare()
        self._sent = counted

    def _mismatch(self) -> tuple[float, float]:
        """How far the server's log-probabilities are from the learner's, on average and at worst."""
        prompt = self._template.render(_ASKED)
        samples = asyncio.run(self._samples(prompt))
        gaps = [
            abs(said - own)
            for sample in samples
            for said, own in zip(sample.logprobs, self._own(prompt, sample), strict=True)
        ]
        return sum(gaps) / len(gaps), max(gaps)

    def _compare(self) -> None:
        mismatch, worst = self._mismatch()
        if mismatch > MOST_MISMATCH:
            raise ConfigError(
                f"The server at {self.server.settings.url} samples from another distribution than the "
                f"learner has: log-probabilities differ by {mismatch:.3f} nats a token (at most "
                f"{MOST_MISMATCH}), the worst by {worst:.3f}. It serves other weights, or does not count "
                f"the temperature of {self._temperature:g} in (vLLM: --logprobs-mode processed_logprobs)."
            )

    async def _samples(self, prompt: list[int]) -> list[Generation]:
        params = [SamplingParams(_TOKENS, self._temperature, seed) for seed in range(_SAMPLES)]
        return await asyncio.gather(
            *(self.generate(prompt, each, f"compared-{each.seed}") for each in params)
        )

    def _own(self, prompt: list[int], sample: Generation) -> list[float]:
        """What the learner's model gives the sampled tokens."""
        ids = torch.tensor([[*prompt, *sample.ids]], device=self._model.device)
        with torch.no_grad():
            logits = self._model(input_ids=ids).logits[0, len(prompt) - 1 : -1].float()
        logprobs = torch.log_softmax(logits / self._temperature, -1)
        found: list[float] = logprobs.gather(1, ids[0, len(prompt) :, None])[:, 0].tolist()
        return found


def _send(server: ModelServer, folder: Path, version: int) -> None:
    """Have the server load the weights of a folder.

    Raises:
        ConfigError: nobody knows how to give such a server weights.
        EngineError: it refuses.
    """
    if server.owner == "palestra":
        server.post("/weights", {"path": str(folder), "version": version})
    elif server.owner == "vllm":
        call = {"method": "update_weights_from", "args": [str(folder)]}
        try:
            server.post("/collective_rpc", call)
        except EngineError as error:
            raise EngineError(
                f"{error}\nvLLM takes weights with VLLM_SERVER_DEV_MODE=1 and the worker extension "
                "palestra_vllm.Extension; docs/servers.md has the command."
            ) from error
        server.post("/reset_prefix_cache", {})
    else:
        raise ConfigError(
            f"{server.settings.url} is served by {server.owner or 'nobody known'}: weights can be given to "
            "vLLM and to `palestra serve-model`. Leave policy.server out to sample in this process."
        )
