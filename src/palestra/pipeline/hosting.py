"""From a configured model server to something that plays."""

from __future__ import annotations

from palestra.pipeline.config import RunConfig, ServerConfig
from palestra.policy import SamplingParams
from palestra.policy.hosted import HostedPolicy
from palestra.policy.model_server import ModelServer, ServerSettings


def connect(section: ServerConfig) -> ModelServer:
    """The configured server.

    Raises:
        ConfigError: it cannot be used; the message says why.
    """
    return ModelServer(ServerSettings(**section.model_dump()))


def spent(policy: object) -> str | None:
    """What a policy on a server has cost so far, in words; None of any other."""
    if not isinstance(policy, HostedPolicy):
        return None
    meter, cost = policy.server.meter, policy.server.meter.cost(policy.server.settings)
    text = f"{meter.requests:,} answers, {meter.input_tokens:,} tokens sent, {meter.output_tokens:,} received"
    if meter.retries:
        text += f", {meter.retries:,} requests sent again"
    return text if cost is None else f"{text}, cost {cost:.2f}"


def sampling_here(config: RunConfig) -> RunConfig:
    """The configuration without the policy's server, so that looking at a run changes nobody's weights."""
    section = config.policy.model_copy(update={"server": None})
    return config.model_copy(update={"policy": section})


def host(name: str, section: ServerConfig, params: SamplingParams) -> HostedPolicy:
    """A policy that is the chat model of a server.

    Raises:
        ConfigError: the server cannot be used.
    """
    return HostedPolicy(name, connect(section), params)
