"""From the configuration to the pieces of learning: credit, loss, how tokens are averaged.

All of them are made once before a run starts, so that what does not fit together is refused there.
"""

from __future__ import annotations

from collections.abc import Callable

from palestra.errors import ConfigError
from palestra.monitor import Guards
from palestra.pipeline.config import CreditConfig, CriticConfig, CurriculumConfig, RunConfig
from palestra.pipeline.curriculum import Curriculum
from palestra.training import (
    LAMBDA_WINDOW,
    Aggregation,
    Algorithm,
    Controls,
    Critic,
    CriticCredit,
    CriticSettings,
    LossFunction,
    RowMaker,
    advantage_segments,
    find_algorithm,
    make_surrogate,
    policy_loss,
)


def check_learning(config: RunConfig) -> None:
    """Refuse settings of ``rl``, ``credit`` and ``loss`` that do not fit or would do nothing.

    Raises:
        ConfigError: names the key and what to do.
    """
    algorithm, loss = configured_algorithm(config), config.loss
    make_loss(config)
    _check_credit(config, algorithm)
    _check_negative(config, algorithm)
    _check_guards(config)
    _check_lora(config)
    if algorithm.critic is None and config.critic != CriticConfig():
        raise ConfigError(
            f"rl.algorithm {config.rl.algorithm!r} has no critic; leave the critic section out."
        )
    if loss.kl_target is not None and not loss.kl_weight:
        raise ConfigError("loss.kl_target moves loss.kl_weight, which is 0: give it a weight to start from.")
    if loss.kl_in == "reward" and not loss.kl_weight:
        raise ConfigError("loss.kl_in=reward has no effect with a loss.kl_weight of 0.")
    if loss.kl_in == "reward" and algorithm.own_spread:
        raise ConfigError(
            f"loss.kl_in=reward does not fit rl.algorithm {config.rl.algorithm!r}: attempts that earned the "
            "same would be told apart by the cost alone. Use kl_in=loss, or rloo, dr_grpo or ppo."
        )
    surrogate = loss.surrogate or algorithm.surrogate
    if config.rl.max_policy_lag and surrogate == "policy_gradient" and loss.mismatch_cap is None:
        raise ConfigError(
            "rl.max_policy_lag needs a ratio to the policy that sampled, which the surrogate policy_gradient "
            "has not: set it to 0, loss.surrogate to clip, or loss.mismatch_cap."
        )
    if algorithm.critic is not None and config.critic.warmup >= config.rl.updates > 0:
        raise ConfigError("critic.warmup is not under rl.updates: the policy would never learn.")


def _check_lora(config: RunConfig) -> None:
    """Muon makes an update of full rank, which is not what an adapter's two narrow matrices are for."""
    named = {"sft.optimizer": config.sft.optimizer, "rl.optimizer": config.rl.optimizer}
    wrong = [key for key, optimizer in named.items() if optimizer != "adamw"]
    if config.policy.lora is not None and wrong:
        raise ConfigError(
            f"policy.lora trains with adamw, and {' and '.join(wrong)} is muon: set "
            f"{', '.join(f'{key}=adamw' for key in wrong)} and smaller rates, such as "
            "sft.learning_rate=0.001, rl.learning_rate=0.0002 and rl.final_learning_rate=0.00002."
        )


def _check_credit(config: RunConfig, algorithm: Algorithm) -> None:
    """A share against the batch where nothing is compared, a schedule where there is no lambda."""
    share = config.credit.batch_share
    if algorithm.critic is None:
        algorithm.make_credit(share)
    elif share:
        raise ConfigError("credit.batch_share: a critic does not compare attempts; leave it out.")
    if share and config.rl.tasks_per_update == 1:
        raise ConfigError("credit.batch_share has no effect with one task an update: the batch is the group.")
    if config.credit.schedule_lambda and algorithm.gae_lambda is None:
        raise ConfigError(
            f"credit.schedule_lambda: rl.algorithm {config.rl.algorithm!r} has no lambda; leave it out."
        )
    if config.credit.schedule_lambda and config.rl.updates < LAMBDA_WINDOW:
        raise ConfigError(f"credit.schedule_lambda looks at {LAMBDA_WINDOW} updates and rl.updates is fewer.")


def _check_negative(config: RunConfig, algorithm: Algorithm) -> None:
    """Settings of negative advantages where there are none."""
    weight, usual = config.credit.negative_weight, CreditConfig().negative_weight
    given = {"loss.dual_clip": config.loss.dual_clip, "loss.clip_low": config.loss.clip_low}
    if not algorithm.pushes_away:
        given["credit.negative_weight"] = weight if weight != usual else None
    elif weight:
        return
    for name, value in given.items():
        if value is not None:
            why = "with a credit.negative_weight of 0" if algorithm.pushes_away else "with this rl.algorithm"
            raise ConfigError(f"{name} has no effect {why}: no advantage is negative; leave it out.")


def _check_guards(config: RunConfig) -> None:
    """Guards that could never act, and guards or a server that do not go with other settings."""
    rl, loss = config.rl, config.loss
    Guards(rl.guards)
    if "far_from_reference" in rl.guards and not loss.kl_weight:
        raise ConfigError("rl.guards.far_from_reference: with a loss.kl_weight of 0 nothing is measured.")
    if rl.max_policy_lag and config.policy.server is not None:
        raise ConfigError(
            "rl.max_policy_lag does not go with policy.server: its weights would change under the episodes "
            "that it plays."
        )
    if rl.max_policy_lag and "mismatch" in rl.guards:
        raise ConfigError("rl.guards.mismatch never acts with rl.max_policy_lag: the lag would be measured.")
    if rl.max_policy_lag and "roll_back" in rl.guards.values():
        raise ConfigError(
            "rl.guards: roll_back does not go with rl.max_policy_lag, for the weights put back would learn "
            "from the batch of those that failed. Use lower_rate or pause."
        )


def check_curriculum(config: RunConfig) -> None:
    """Refuse a curriculum that cannot be climbed.

    Raises:
        ConfigError: steps that do not grow, or more turns than the limit that evaluation has.
    """
    section = config.curriculum
    Curriculum(section)
    if section != CurriculumConfig() and not (section.max_turns or section.difficulty):
        raise ConfigError("curriculum has no steps: give it max_turns or difficulty, or leave it out.")
    if section.difficulty and section.by == "truncation":
        raise ConfigError("curriculum.by=truncation would make tasks harder when too many are cut short.")
    most = max(section.max_turns, default=0)
    if most > config.rollout.max_turns:
        raise ConfigError(
            f"curriculum.max_turns goes up to {most}, rollout.max_turns is {config.rollout.max_turns}: "
            "training would allow what evaluation does not."
        )


def configured_algorithm(config: RunConfig) -> Algorithm:
    """The algorithm with what the configuration changes in its credit."""
    section = config.credit
    return find_algorithm(config.rl.algorithm).with_credit(gamma=section.gamma, gae_lambda=section.gae_lambda)


def make_controls(config: RunConfig) -> Controls:
    """What follows the metrics, at its start."""
    loss = config.loss
    return Controls(
        loss.kl_weight,
        loss.kl_target,
        loss.entropy_floor,
        gae_lambda=configured_algorithm(config).gae_lambda,
        schedule_lambda=config.credit.schedule_lambda,
    )


def make_rows(config: RunConfig, critic: Critic | None, controls: Controls) -> RowMaker:
    """What makes token rows with advantages of an update's groups."""
    algorithm, weight = configured_algorithm(config), config.credit.negative_weight
    if critic is None:
        credit = algorithm.make_credit(config.credit.batch_share)
        return lambda groups: (advantage_segments(groups, credit, weight), {})
    return CriticCredit(
        critic,
        unit=algorithm.critic or "turn",
        gamma=1.0 if algorithm.gamma is None else algorithm.gamma,
        gae_lambda=lambda: 1.0 if controls.gae_lambda is None else controls.gae_lambda,
        warmup=config.critic.warmup,
        negative_weight=weight,
    )


def critic_settings(config: RunConfig) -> CriticSettings:
    """How the configured critic learns."""
    section = config.critic
    return CriticSettings(
        learning_rate=section.learning_rate,
        epochs=section.epochs,
        minibatches=config.rl.minibatches,
        value_clip=section.value_clip,
        seed=config.seed,
    )


def make_loss(config: RunConfig) -> Callable[[float, float], LossFunction]:
    """The algorithm's loss, given the weights of KL and entropy."""
    section = config.loss
    surrogate = make_surrogate(
        section.surrogate or find_algorithm(config.rl.algorithm).surrogate,
        {"clip_low": section.clip_low, "clip_high": section.clip_high, "dual_clip": section.dual_clip},
    )
    return lambda kl_weight, entropy_weight: policy_loss(
        surrogate,
        kl_weight=kl_weight,
        entropy_weight=entropy_weight,
        mismatch_cap=section.mismatch_cap,
    )


def aggregation(config: RunConfig) -> Aggregation:
    """How the configured loss averages tokens."""
    return config.loss.aggregation or find_algorithm(config.rl.algorithm).aggregation
