"""Loading and wrapping the policy of a stage: model, template, engine, learner.

The one file of the pipeline besides ``learning`` that needs torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from palestra.errors import ConfigError
from palestra.pipeline.config import RunConfig
from palestra.policy import SamplingParams, TokenPolicy
from palestra.policy.chat import RoleTokenTemplate
from palestra.policy.local import LocalEngine
from palestra.policy.nano import load_nano, load_policy
from palestra.store import RunFolder
from palestra.training import Learner, OptimizerName, best_checkpoint, checkpoint_state


@dataclass(frozen=True)
class LoadedPolicy:
    """A model with its template and an engine over the same weights."""

    model: Any
    template: RoleTokenTemplate
    engine: LocalEngine
    config: RunConfig
    version: int
    """Online updates behind the weights when they were loaded."""

    def policy(self, name: str, temperature: float, version: int | None = None) -> TokenPolicy:
        """The policy at a temperature; 0 is greedy. ``version`` is told once the weights have moved on."""
        section = self.config.policy
        params = SamplingParams(max_tokens=section.action_tokens, temperature=temperature)
        version = self.version if version is None else version
        return TokenPolicy(name, self.template, self.engine, params, section.context_tokens, version)

    def learner(self, optimizer: OptimizerName) -> Learner:
        """A fresh optimiser over the model."""
        rl = self.config.rl
        return Learner(
            self.model,
            optimizer=optimizer,
            temperature=rl.temperature,
        )


def load_start(config: RunConfig) -> LoadedPolicy:
    """The policy a run starts from: the shipped nano base, or a folder of weights."""
    torch.set_num_threads(config.policy.threads)
    name = config.policy.model
    model, template = load_nano() if name == "nano" else load_policy(Path(name))
    return _wrap(model, template, config, 0)


def load_stage(run: RunFolder, stage: str, config: RunConfig) -> LoadedPolicy:
    """The policy of a finished stage: its checkpoint that was best on validation.

    Raises:
        ConfigError: the stage has no checkpoint.
    """
    torch.set_num_threads(config.policy.threads)
    found = best_checkpoint(run.path / "checkpoints" / stage)
    if found is None:
        raise ConfigError(
            f"{run.path} has no checkpoint of stage {stage!r}; run `palestra train` to make one"
        )
    return _wrap(*load_policy(found), config, int(checkpoint_state(found)["version"]))


def _wrap(model: Any, template: RoleTokenTemplate, config: RunConfig, version: int) -> LoadedPolicy:
    engine = LocalEngine(
        model,
        template.end_id,
        slots=config.rollout.concurrency,
        context_tokens=config.policy.context_tokens,
    )
    return LoadedPolicy(model, template, engine, config, version)
