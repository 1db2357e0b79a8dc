"""The configuration of a run: one YAML file, checked before anything starts.

Every stage has its own small frozen model; an unknown key is refused with the nearest known name. The
defaults are those of the quickstart: the nano policy on two CPU cores. What a larger policy needs
differently is said in the field's description.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, PositiveInt, model_validator

from palestra.actions import ActionFormat
from palestra.envs import FaultKind
from palestra.monitor import GuardAction
from palestra.policy import ContextMode
from palestra.rewards import DEFAULT_WEIGHTS, PREFERENCE, PREFERENCE_WEIGHT


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class FaultsConfig(_Section):
    """What goes wrong with a world's tools, in training and in evaluation."""

    kinds: tuple[FaultKind, ...] = Field(description="Such as `timeout`; docs/faults.md lists them.")
    rate: float = Field(0.2, ge=0, le=1, description="Chance that a call is disturbed.")
    most: int = Field(1, ge=1, description="Disturbed calls of an episode.")


class IsolationConfig(_Section):
    """Each episode's world in a process of its own."""

    step_seconds: float = Field(30.0, gt=0, description="Most time for an answer; then it is stopped.")
    memory_mb: int | None = Field(None, ge=64, description="Most address space of a process, in MiB.")


class WorldConfig(_Section):
    """Which world, and how it is played."""

    name: str = Field("orders", description="A builtin world, `file.py:Class`, or `module:Class`.")
    difficulty: int | None = Field(None, description="Level of every task; the world's default if null.")
    action_format: ActionFormat = Field("json", description="How actions are written.")
    require_reasoning: bool = Field(False, description="Refuse an action that does not say why first.")
    faults: FaultsConfig | None = Field(None, description="Disturbances of its tools; none if null.")
    changed_surface: bool = Field(False, description="Other names of tools and fields, replies as tables.")
    hold_out: tuple[str, ...] = Field(
        (), description="Kinds of task that are never trained on; `palestra eval --tiers` plays them."
    )
    isolation: IsolationConfig | None = Field(
        None,
        description="Each episode in a process of its own, `{}` for the defaults; null plays in this one.",
    )
    tools: Literal["text", "schemas"] = Field(
        "text",
        description="`text` describes them in the system prompt, `schemas` leaves it to the model's chat "
        "template, if it declares tools; calls are then in its action_format.",
    )


class ServerConfig(_Section):
    """An OpenAI-compatible model server."""

    url: str = Field(description="Address, up to and with `/v1`.")
    model: str | None = Field(None, description="As the server calls it; null for the only one it has.")
    key_variable: str | None = Field(None, description="Environment variable that holds the key, if any.")
    timeout_seconds: float = Field(120.0, gt=0, description="Most time for an answer.")
    retries: int = Field(5, ge=0, description="Times that a request is sent again.")
    requests_at_once: int = Field(64, ge=1, description="Most requests that wait for an answer.")
    requests_per_minute: float | None = Field(None, gt=0, description="Most requests a minute.")
    input_price: float | None = Field(None, ge=0, description="Per million tokens sent; for the cost.")
    output_price: float | None = Field(None, ge=0, description="Per million tokens answered.")


class LoraConfig(_Section):
    """An adapter that is trained in place of the weights."""

    rank: int = Field(16, ge=1, description="Rank of what is added to each layer.")
    alpha: float = Field(32.0, gt=0, description="What is added counts alpha / rank times.")
    targets: tuple[str, ...] = Field(
        (), description="Linear layers, such as `q_proj`; none means all but the output."
    )


class PolicyConfig(_Section):
    """What acts and learns."""

    model: str = Field("nano", description="`nano`, `smollm2`, a folder, or a hub model `owner/model`.")
    context_tokens: int = Field(1536, ge=64, description="Most tokens of an episode.")
    action_tokens: int = Field(64, ge=1, description="Most sampled tokens of one action.")
    context: ContextMode = Field(
        "full",
        description="Older turns that no longer fit context_tokens: `full` ends the episode, `window` drops "
        "them, `summary` keeps a line of each.",
    )
    raw_turns: int = Field(2, ge=0, description="Latest turns shown as they were where older are shortened.")
    micro_batch_tokens: int | None = Field(
        None,
        ge=1,
        description="Tokens of a forward pass in learning; 4096, of a model over 20 M 1024, if null.",
    )
    lora: LoraConfig | None = Field(
        None, description="Train an adapter beside frozen weights, `{}` for the defaults; null trains all."
    )
    server: ServerConfig | None = Field(
        None, description="A model server that samples in place of this process, and is given the weights."
    )
    threads: int = Field(2, ge=1, description="CPU threads for learning; as many processes play.")


class RubricConfig(_Section):
    """How reward parts are weighed."""

    weights: dict[str, float] = Field(
        default_factory=lambda: dict(DEFAULT_WEIGHTS),
        description="Weight per part; 0 records without counting.",
    )
    allow_uneven_scales: bool = Field(False, description="Accept scales that differ by more than 10 times.")
    reward_model: str | None = Field(
        None, description="Folder of `palestra reward-model`: fills the part `preference`, of weight 0.1."
    )

    @model_validator(mode="before")
    @classmethod
    def _weigh_preference(cls, values: Any) -> Any:
        """With a reward model, its part has a weight that can be read in the resolved configuration."""
        if not isinstance(values, dict) or not values.get("reward_model"):
            return values
        weights = values.get("weights", DEFAULT_WEIGHTS)
        if not isinstance(weights, Mapping):
            return values
        return {**values, "weights": {**weights, PREFERENCE: weights.get(PREFERENCE, PREFERENCE_WEIGHT)}}

    @model_validator(mode="after")
    def _need_a_model(self) -> RubricConfig:
        if PREFERENCE in self.weights and self.reward_model is None:
            raise ValueError(
                f"weights has {PREFERENCE!r}, which a reward model fills: set rubric.reward_model to a "
                "folder that `palestra reward-model` wrote"
            )
        return self


class RolloutConfig(_Section):
    """Limits of every episode."""

    max_turns: int = Field(12, ge=1, description="Actions in an episode.")
    max_action_tokens: int = Field(768, ge=1, description="Sampled tokens in an episode.")
    max_repeats: int = Field(3, ge=1, description="Repeated actions in a row before the episode ends.")
    max_invalid: int = Field(3, ge=1, description="Invalid actions in a row before the episode ends.")
    max_seconds: float = Field(120.0, gt=0, description="Wall time of an episode.")
    concurrency: int = Field(64, ge=1, description="Episodes at once.")


class CollectConfig(_Section):
    """Demonstrations from a noisy teacher, filtered by the verifier."""

    tasks: int = Field(300, ge=1, description="Training tasks the teacher attempts.")
    attempts: int = Field(1, ge=1, description="Attempts per task.")
    skip: float = Field(0.06, ge=0, le=1, description="Rate at which the teacher leaves out a step.")
    repeat: float = Field(0.06, ge=0, le=1, description="Rate at which it repeats itself.")
    wrong: float = Field(0.06, ge=0, le=1, description="Rate at which it picks a wrong value.")
    demonstrations: int = Field(120, ge=1, description="Most demonstrations kept.")
    min_efficiency: float = Field(0.6, ge=0, le=1, description="Optimal over actual turns a keeper needs.")
    vary_prompts: float = Field(0.1, ge=0, le=1, description="Share of tasks with a varied system prompt.")
    teacher: ServerConfig | None = Field(
        None, description="A model server that demonstrates in place of the noisy oracle."
    )


class SftConfig(_Section):
    """Imitation of the kept demonstrations."""

    epochs: int = Field(6, ge=1, description="Passes over the demonstrations.")
    optimizer: Literal["adamw", "muon"] = Field("muon", description="`adamw` suits larger policies.")
    rows_per_update: int = Field(8, ge=1, description="Demonstrations per optimiser step.")
    learning_rate: float = Field(0.01, gt=0, description="Peak; 1e-5 with adamw suits a large model.")


class GateConfig(_Section):
    """What a cold-started policy must show before reinforcement learning may start."""

    tasks: int = Field(24, ge=1, description="Validation tasks.")
    min_format_compliance: float = Field(0.8, ge=0, le=1, description="Share of actions that must parse.")
    min_success_at_group: float = Field(
        0.1, ge=0, le=1, description="Share of tasks on which an attempt of a group must succeed."
    )


class RlConfig(_Section):
    """Online reinforcement learning."""

    algorithm: str = Field("grpo", description="Credit and loss; docs/algorithms has a page for each.")
    updates: int = Field(16, ge=0, description="Batches of episodes to learn from.")
    tasks_per_update: int = Field(16, ge=1, description="Groups per update.")
    group_size: int = Field(8, ge=2, description="Attempts per task.")
    optimizer: Literal["adamw", "muon"] = Field("muon", description="`adamw` suits larger policies.")
    minibatches: int = Field(4, ge=1, description="Optimiser steps per pass, on a share of episodes each.")
    epochs: int = Field(1, ge=1, description="Passes over an update's episodes.")
    learning_rate: float = Field(3e-3, gt=0, description="At the start; 5e-6 with adamw suits a large model.")
    final_learning_rate: float = Field(3e-4, ge=0, description="At the end; linear in between.")
    temperature: float = Field(1.0, gt=0, description="Of sampling; training uses the same.")
    max_policy_lag: int = Field(
        0,
        ge=0,
        description="Updates that sampling may be behind; above 0 it goes on in processes beside learning.",
    )
    validate_every: int = Field(4, ge=1, description="Updates between validations and checkpoints.")
    validation_tasks: int = Field(64, ge=1, description="Validation tasks, greedy.")
    guards: dict[str, GuardAction] = Field(
        default_factory=dict,
        description="What is done when a detector speaks; a warning where none is named.",
    )


class CreditConfig(_Section):
    """From rewards to advantages."""

    gamma: float | None = Field(
        None,
        gt=0,
        le=1,
        description="Discount per step; the algorithm's own if null, refused where it has none.",
    )
    gae_lambda: float | None = Field(
        None, ge=0, le=1, description="0 trusts the critic, 1 what was earned; only with a critic."
    )
    schedule_lambda: bool = Field(
        False, description="Lower lambda when the reward oscillates, raise it when it crawls."
    )
    batch_share: float = Field(
        0.0, ge=0, le=1, description="Share of an advantage taken against the batch instead of the group."
    )
    negative_weight: float = Field(
        0.3, ge=0, le=1, description="Weight of attempts worse than their group; 1 is plain GRPO."
    )


class CriticConfig(_Section):
    """The value model of algorithms that have one."""

    learning_rate: float = Field(1e-3, gt=0, description="Of AdamW; 1e-5 suits a large model.")
    epochs: int = Field(2, ge=1, description="Passes over an update's episodes.")
    warmup: int = Field(1, ge=0, description="First updates from which only the critic learns.")
    value_clip: float = Field(0.2, gt=0, description="How far a value may move in one update.")


class LossConfig(_Section):
    """From advantages to a gradient. What is null is the algorithm's own."""

    surrogate: Literal["clip", "gspo", "cispo", "policy_gradient"] | None = Field(
        None, description="What becomes of tokens whose probability has moved."
    )
    aggregation: Literal["token_mean", "sequence_mean", "constant"] | None = Field(
        None, description="How tokens are averaged."
    )
    clip_low: float | None = Field(None, gt=0, description="Lower clip of the ratio; 0.2 with `clip`.")
    clip_high: float | None = Field(None, gt=0, description="Upper clip of the ratio; 0.28 with `clip`.")
    dual_clip: float | None = Field(None, gt=1, description="Clip of the ratio for negative advantages.")
    mismatch_cap: float | None = Field(
        None, gt=0, description="Most that learner over sampler may weigh a token; null trusts the sampler."
    )
    kl_weight: float = Field(0.02, ge=0, description="Weight of the distance to the SFT policy.")
    kl_in: Literal["loss", "reward"] = Field("loss", description="Where the distance is counted.")
    kl_target: float | None = Field(
        None,
        gt=0,
        description="Distance in nats a token that the weight is moved toward; null keeps it fixed.",
    )
    entropy_floor: float | None = Field(
        None, gt=0, description="Nats a token under which a bonus grows; above it there is none."
    )


class CurriculumConfig(_Section):
    """What grows during reinforcement learning; hard-example rounds and evaluation are at full size."""

    max_turns: tuple[PositiveInt, ...] = Field(
        (), description="Turn limits in turn; none keeps rollout.max_turns."
    )
    difficulty: tuple[int, ...] = Field((), description="Levels in turn; none keeps world.difficulty.")
    by: Literal["updates", "success", "truncation"] = Field(
        "updates", description="What the next step takes."
    )
    after: int = Field(4, ge=1, description="Updates on a step before the next may come.")
    threshold: float = Field(
        0.7, ge=0, le=1, description="Share of an update's episodes that must succeed, or be cut."
    )


class MineConfig(_Section):
    """Hard-example rounds after the first reinforcement learning."""

    rounds: int = Field(2, ge=0, description="How many rounds.")
    tasks: int = Field(96, ge=1, description="Training tasks that are measured to find the hard ones.")
    attempts: int = Field(3, ge=2, description="Attempts at each while measuring.")
    teacher_attempts: int = Field(3, ge=0, description="The teacher's attempts at each task that failed.")
    updates: int = Field(6, ge=1, description="Batches of episodes per round.")


class EvaluationConfig(_Section):
    """Held-out evaluation at the end."""

    tasks: int = Field(200, ge=1, description="Test tasks, the same for every policy.")
    sampled: bool = Field(True, description="Also evaluate at the training temperature.")


class RunConfig(_Section):
    """A whole run."""

    seed: int = Field(0, ge=0, description="Everything random follows from it.")
    world: WorldConfig = Field(WorldConfig(), description="The world.")
    policy: PolicyConfig = Field(PolicyConfig(), description="The policy.")
    rubric: RubricConfig = Field(default_factory=RubricConfig, description="The reward.")
    rollout: RolloutConfig = Field(RolloutConfig(), description="Limits of episodes.")
    collect: CollectConfig = Field(CollectConfig(), description="Demonstrations.")
    sft: SftConfig = Field(SftConfig(), description="Cold start.")
    gate: GateConfig = Field(GateConfig(), description="Readiness.")
    rl: RlConfig = Field(RlConfig(), description="Reinforcement learning.")
    credit: CreditConfig = Field(CreditConfig(), description="Advantages.")
    curriculum: CurriculumConfig = Field(CurriculumConfig(), description="What grows.")
    critic: CriticConfig = Field(CriticConfig(), description="Value model.")
    loss: LossConfig = Field(LossConfig(), description="Loss.")
    mine: MineConfig = Field(MineConfig(), description="Hard examples.")
    evaluation: EvaluationConfig = Field(EvaluationConfig(), description="Held-out test.")
