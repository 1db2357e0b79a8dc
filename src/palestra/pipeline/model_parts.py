"""Loading and wrapping the policy of a stage: model, template, engine, learner.

The one file of the pipeline besides ``learning`` that needs torch.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from palestra.errors import ConfigError, StoreError
from palestra.pipeline.config import PolicyConfig, RunConfig
from palestra.pipeline.hosting import connect, sampling_here
from palestra.pipeline.learning_parts import aggregation, configured_algorithm, critic_settings
from palestra.policy import ChatTemplate, ContextWindow, SamplingParams, SchemaForm, TokenPolicy
from palestra.policy.adapters import (
    ADAPTER_FOLDER,
    LoraSettings,
    WithoutAdapter,
    add_adapter,
    load_adapter,
)
from palestra.policy.local import LocalEngine
from palestra.policy.models import find_model, load_policy, load_template, weight_count
from palestra.policy.weight_sync import SyncedEngine
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

_PASS, _SMALL_PASS, _LARGE_MODEL = 4096, 1024, 20_000_000


def context_window(section: PolicyConfig) -> ContextWindow:
    """What a policy is shown before an action of the most tokens."""
    return ContextWindow(section.context_tokens - section.action_tokens, section.context, section.raw_turns)


def check_tools(config: RunConfig) -> SchemaForm | None:
    """How the policy's chat template declares the world's tools; None where they are described as text.

    Raises:
        ConfigError: it declares none, or asks for calls in another format than the configured one.
        StoreError: there is no tokenizer, or it cannot be read.
    """
    if config.world.tools == "text":
        return None
    template = load_template(find_model(config.policy.model))
    try:
        form = template.schema_form()
    except ConfigError as error:
        raise ConfigError(f"world.tools=schemas, policy.model={config.policy.model}: {error}") from error
    if form.action_format != config.world.action_format:
        raise ConfigError(
            f"With world.tools=schemas calls are written as the model's chat template asks for them: set "
            f"world.action_format={form.action_format}, not {config.world.action_format}."
        )
    return form


@dataclass(frozen=True)
class LoadedPolicy:
    """A model with its template and an engine over the same weights."""

    model: Any
    template: ChatTemplate
    engine: LocalEngine | SyncedEngine
    config: RunConfig
    version: int
    """Online updates behind the weights when they were loaded."""
    checkpoint: Path | None
    """Where they were loaded from; None for the policy a run starts from."""
    base: Path | None
    """Where the weights under an adapter were loaded from; None without one."""

    def policy(self, name: str, temperature: float, version: int | None = None) -> TokenPolicy:
        """The policy at a temperature; 0 is greedy. ``version`` is told once the weights have moved on."""
        params = SamplingParams(max_tokens=self.config.policy.action_tokens, temperature=temperature)
        version = self.version if version is None else version
        window = context_window(self.config.policy)
        return TokenPolicy(name, self.template, self.engine, params, window, version)

    def learner(self) -> Learner:
        """A fresh optimiser over the model, for imitation."""
        config = self.config
        return Learner(
            self.model,
            optimizer=config.sft.optimizer,
            temperature=config.rl.temperature,
            micro_batch_tokens=self.micro_batch_tokens,
        )

    def rl_learner(self) -> Learner:
        """A fresh optimiser over the model, for reinforcement learning."""
        config = self.config
        return Learner(
            self.model,
            optimizer=config.rl.optimizer,
            temperature=config.rl.temperature,
            aggregation=aggregation(config),
            token_budget=config.rollout.max_action_tokens,
            micro_batch_tokens=self.micro_batch_tokens,
        )

    @property
    def micro_batch_tokens(self) -> int:
        """Padded tokens of a forward pass in learning: larger models need the memory for their states."""
        chosen = self.config.policy.micro_batch_tokens
        return chosen or (_SMALL_PASS if weight_count(self.model) > _LARGE_MODEL else _PASS)


def make_dpo_learner(loaded: LoadedPolicy) -> Learner:
    """A fresh optimiser over the model, for preferences."""
    rl = loaded.config.rl
    return dpo_learner(
        loaded.model,
        optimizer=rl.optimizer,
        temperature=rl.temperature,
        micro_batch_tokens=loaded.micro_batch_tokens,
    )


def make_critic(loaded: LoadedPolicy) -> Critic | None:
    """The critic of a stage that starts from a loaded policy, if the algorithm has one.

    It goes on from the critic in the policy's checkpoint, or starts as a copy of the policy. It has an
    adapter where the policy has one.
    """
    if configured_algorithm(loaded.config).critic is None or loaded.checkpoint is None:
        return None
    model, _ = load_policy(loaded.base or loaded.checkpoint)
    _adapt(model, loaded.config)
    settings = critic_settings(loaded.config)
    critic = Critic(model, settings, micro_batch_tokens=loaded.micro_batch_tokens)
    if (loaded.checkpoint / CRITIC_FILE).exists():
        load_critic(loaded.checkpoint, critic)
    return critic


def load_start(config: RunConfig) -> LoadedPolicy:
    """The policy a run starts from, ready to be learned on."""
    torch.set_num_threads(config.policy.threads)
    model, template = load_policy(find_model(config.policy.model))
    _adapt(model, config)
    return _wrap(model, template, config, 0, None)


def load_stage(run: RunFolder, stage: str, config: RunConfig) -> LoadedPolicy:
    """The policy of a finished stage, to be played: its checkpoint that was best on validation.

    Raises:
        ConfigError: the stage has no checkpoint that is whole.
    """
    torch.set_num_threads(config.policy.threads)
    found = _best(run, stage)
    return _wrap(*load_policy(found), config, _version(found), found)


def load_learning(run: RunFolder, stage: str, config: RunConfig) -> LoadedPolicy:
    """The policy of a finished stage, to be learned on.

    With ``policy.lora`` one adapter lies over the SFT policy in all later stages, so that the SFT policy is
    the model with the adapter off, whichever stage goes on.

    Raises:
        ConfigError: a stage has no checkpoint that is whole.
        StoreError: the adapter cannot be loaded.
    """
    if config.policy.lora is None:
        return load_stage(run, stage, config)
    torch.set_num_threads(config.policy.threads)
    base, found = _best(run, "sft"), _best(run, stage)
    model, template = load_policy(base)
    _adapt(model, config)
    if found != base:
        try:
            load_adapter(found / ADAPTER_FOLDER, model)
        except (OSError, RuntimeError) as error:
            raise StoreError(f"The adapter in {found} cannot be loaded: {error}") from error
    return _wrap(model, template, config, _version(found), found, base)


def load_judging(run: RunFolder, stage: str, config: RunConfig) -> LoadedPolicy:
    """The policy of a finished stage as the start of a reward model, with a fresh adapter if one is set.

    Raises:
        ConfigError: the stage has no checkpoint that is whole.
    """
    loaded = load_stage(run, stage, sampling_here(config))
    _adapt(loaded.model, config)
    return loaded


def load_reference(run: RunFolder, loaded: LoadedPolicy) -> Any:
    """The SFT policy that the KL is measured to; None if it counts nothing."""
    if not loaded.config.loss.kl_weight:
        return None
    if loaded.config.policy.lora is not None:
        return WithoutAdapter(loaded.model)
    return load_policy(_best(run, "sft"))[0]


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


def _make_engine(
    model: Any, template: ChatTemplate, config: RunConfig, version: int
) -> LocalEngine | SyncedEngine:
    if config.policy.server is not None:
        server = connect(config.policy.server)
        return SyncedEngine(server, model, template, temperature=config.rl.temperature, version=version)
    return LocalEngine(
        model,
        template.end_ids,
        slots=config.rollout.concurrency,
        context_tokens=config.policy.context_tokens,
    )


def _best(run: RunFolder, stage: str) -> Path:
    found = best_checkpoint(run.path / "checkpoints" / stage)
    if found is None:
        raise ConfigError(
            f"{run.path} has no whole checkpoint of stage {stage!r}; `palestra train --resume` makes one. If "
            "the stage counts as finished already, delete its file in stages/ first."
        )
    return found


def _version(checkpoint: Path) -> int:
    return int(checkpoint_state(checkpoint)["version"])


def _adapt(model: Any, config: RunConfig) -> None:
    lora = config.policy.lora
    if lora is not None:
        add_adapter(model, LoraSettings(lora.rank, lora.alpha, lora.targets), config.seed)


def _wrap(
    model: Any,
    template: ChatTemplate,
    config: RunConfig,
    version: int,
    checkpoint: Path | None,
    base: Path | None = None,
) -> LoadedPolicy:
    most = getattr(model.config, "max_position_embeddings", None)
    if most is not None and config.policy.context_tokens > most:
        raise ConfigError(
            f"policy.context_tokens is {config.policy.context_tokens}, and the model was made for at most "
            f"{most} tokens: lower it."
        )
    engine = _make_engine(model, template, config, version)
    return LoadedPolicy(model, template, engine, config, version, checkpoint, base)
