"""Loading and wrapping the policy of a stage: model, template, engine, learner.

The one file of the pipeline besides ``learning`` that needs torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from palestra.errors import ConfigError
from palestra.pipeline.config import PolicyConfig, RunConfig
from palestra.pipeline.learning_parts import aggregation, configured_algorithm, critic_settings
from palestra.policy import ChatTemplate, ContextWindow, SamplingParams, TokenPolicy
from palestra.policy.local import LocalEngine
from palestra.policy.models import find_model, load_policy, load_template
from palestra.store import RunFolder
from palestra.training import (
    CRITIC_FILE,
    Critic,
    Learner,
    StoredReward,
    best_checkpoint,
    checkpoint_state,
    dpo_learner,
    load_critic,
    load_reward_model,
)


def context_window(section: PolicyConfig) -> ContextWindow:
    """What a policy is shown before an action of the most tokens."""
    return ContextWindow(section.context_tokens - section.action_tokens, section.context, section.raw_turns)


@dataclass(frozen=True)
class LoadedPolicy:
    """A model with its template and an engine over the same weights."""

    model: Any
    template: ChatTemplate
    engine: LocalEngine
    config: RunConfig
    version: int
    """Online updates behind the weights when they were loaded."""
    checkpoint: Path | None
    """Where they were loaded from; None for the policy a run starts from."""

    def policy(self, name: str, temperature: float, version: int | None = None) -> TokenPolicy:
        """The policy at a temperature; 0 is greedy. ``version`` is told once the weights have moved on."""
        params = SamplingParams(max_tokens=self.config.policy.action_tokens, temperature=temperature)
        version = self.version if version is None else version
        window = context_window(self.config.policy)
        return TokenPolicy(name, self.template, self.engine, params, window, version)

    def learner(self) -> Learner:
        """A fresh optimiser over the model, for imitation."""
        config = self.config
        return Learner(self.model, optimizer=config.sft.optimizer, temperature=config.rl.temperature)

    def rl_learner(self) -> Learner:
        """A fresh optimiser over the model, for reinforcement learning."""
        config = self.config
        return Learner(
            self.model,
            optimizer=config.rl.optimizer,
            temperature=config.rl.temperature,
            aggregation=aggregation(config),
            token_budget=config.rollout.max_action_tokens,
        )


def make_dpo_learner(loaded: LoadedPolicy) -> Learner:
    """A fresh optimiser over the model, for preferences."""
    rl = loaded.config.rl
    return dpo_learner(loaded.model, optimizer=rl.optimizer, temperature=rl.temperature)


def make_critic(loaded: LoadedPolicy) -> Critic | None:
    """The critic of a stage that starts from a loaded policy, if the algorithm has one.

    It goes on from the critic in the policy's checkpoint, or starts as a copy of the policy.
    """
    if configured_algorithm(loaded.config).critic is None or loaded.checkpoint is None:
        return None
    critic = Critic(load_policy(loaded.checkpoint)[0], critic_settings(loaded.config))
    if (loaded.checkpoint / CRITIC_FILE).exists():
        load_critic(loaded.checkpoint, critic)
    return critic


def load_start(config: RunConfig) -> LoadedPolicy:
    """The policy a run starts from."""
    torch.set_num_threads(config.policy.threads)
    return _wrap(*load_policy(find_model(config.policy.model)), config, 0, None)


def load_stage(run: RunFolder, stage: str, config: RunConfig) -> LoadedPolicy:
    """The policy of a finished stage: its checkpoint that was best on validation.

    Raises:
        ConfigError: the stage has no checkpoint that is whole.
    """
    torch.set_num_threads(config.policy.threads)
    found = best_checkpoint(run.path / "checkpoints" / stage)
    if found is None:
        raise ConfigError(
            f"{run.path} has no whole checkpoint of stage {stage!r}; `palestra train --resume` makes one. If "
            "the stage counts as finished already, delete its file in stages/ first."
        )
    return _wrap(*load_policy(found), config, int(checkpoint_state(found)["version"]), found)


def load_judge(reward_model: str | None, policy: str) -> StoredReward | None:
    """The configured reward model, if there is one; ``policy`` is the configured ``policy.model``.

    Raises:
        ConfigError: it reads other token ids than the policy writes.
        StoreError: it cannot be loaded.
    """
    if reward_model is None:
        return None
    _, template = load_reward_model(Path(reward_model))
    if not template.same_ids(load_template(find_model(policy))):
        raise ConfigError(
            f"rubric.reward_model {reward_model} reads the token ids of another vocabulary than policy.model "
            f"{policy!r} writes. Train one from a run of this policy: palestra reward-model RUN"
        )
    return StoredReward(Path(reward_model).resolve())


def _wrap(
    model: Any, template: ChatTemplate, config: RunConfig, version: int, checkpoint: Path | None
) -> LoadedPolicy:
    engine = LocalEngine(
        model,
        template.end_id,
        slots=config.rollout.concurrency,
        context_tokens=config.policy.context_tokens,
    )
    return LoadedPolicy(model, template, engine, config, version, checkpoint)
