"""Settings of the learner that do not fit together are refused, and the others act."""

import pytest

from palestra.errors import ConfigError
from palestra.pipeline import parse_config
from palestra.pipeline.learning_parts import aggregation, check_learning, configured_algorithm, make_rows
from palestra.training import ALGORITHMS, Controls


def config(*changes: str):
    return parse_config("", changes)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_algorithm_fits_its_own_defaults(name: str):
    check_learning(config(f"rl.algorithm={name}"))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (["rl.algorithm=grpoo"], "Did you mean 'grpo'"),
        (["credit.gamma=0.9"], "credit.gamma is 0.9, but this rl.algorithm has no use"),
        (["credit.gae_lambda=0.9", "rl.algorithm=turn_rloo"], "those that use it are ppo, ppo_token"),
        (["critic.epochs=4"], "has no critic"),
        (["loss.clip_low=0.1", "loss.surrogate=policy_gradient"], r"loss\.clip_low has no effect"),
        (["loss.kl_target=0.1", "loss.kl_weight=0"], "kl_weight, which is 0"),
        (
            ["loss.kl_in=reward", "loss.kl_weight=0", "rl.algorithm=rloo"],
            "no effect with a loss.kl_weight of 0",
        ),
        (["loss.kl_in=reward"], "told apart by the cost alone"),
        (["rl.algorithm=ppo", "critic.warmup=16"], "would never learn"),
        (["credit.schedule_lambda=true"], "has no lambda"),
        (["credit.schedule_lambda=true", "rl.algorithm=ppo", "rl.updates=5"], "looks at 6 updates"),
        (["credit.batch_share=0.5", "rl.algorithm=ppo"], "a critic does not compare attempts"),
        (["credit.batch_share=0.5", "rl.algorithm=reinforce"], "has no use for it"),
        (["rl.max_policy_lag=1", "rl.algorithm=reinforce"], "needs a ratio"),
        (["loss.clip_low=0.1", "rl.algorithm=raft"], r"loss\.clip_low has no effect with this rl\.algorithm"),
        (["loss.dual_clip=3", "credit.negative_weight=0"], "negative_weight of 0: no advantage is negative"),
        (["credit.batch_share=0.5", "rl.tasks_per_update=1"], "the batch is the group"),
        (["rl.guards.far_from_reference=pause", "loss.kl_weight=0"], "nothing is measured"),
        (["rl.guards.mismatch=pause", "rl.max_policy_lag=1"], "the lag would be measured"),
        (
            ["rl.max_policy_lag=2", "policy.server={url: 'http://localhost:1'}"],
            "does not go with policy.server",
        ),
        (["rl.guards.fell_back=roll_back", "rl.max_policy_lag=1"], "does not go with rl.max_policy_lag"),
        (["rl.guards.not_finite=pause"], "can be lower_rate or roll_back"),
        (["loss.dual_clip=3", "rl.algorithm=raft"], r"loss\.dual_clip has no effect"),
        (["credit.negative_weight=1", "rl.algorithm=raft"], r"credit\.negative_weight has no effect"),
        (["rl.guards.fel_back=pause"], "Did you mean 'fell_back'"),
    ],
)
def test_what_does_not_fit_or_would_do_nothing_is_refused(changes: list[str], said: str):
    with pytest.raises(ConfigError, match=said):
        check_learning(config(*changes))


def test_a_lag_fits_a_plain_policy_gradient_that_is_weighed_for_the_mismatch():
    check_learning(config("rl.max_policy_lag=1", "rl.algorithm=reinforce", "loss.mismatch_cap=2"))


def test_the_cost_of_straying_fits_credit_that_keeps_the_size_of_rewards():
    for name in ("rloo", "dr_grpo", "turn_rloo", "reinforce", "ppo"):
        check_learning(config(f"rl.algorithm={name}", "loss.kl_in=reward"))


def test_the_configuration_goes_before_the_algorithm_s_own():
    assert configured_algorithm(config("rl.algorithm=ppo", "credit.gae_lambda=0")).gae_lambda == 0.0
    assert configured_algorithm(config("rl.algorithm=gigpo")).gamma == 0.95
    assert aggregation(config("rl.algorithm=gspo")) == "sequence_mean"
    assert aggregation(config("rl.algorithm=gspo", "loss.aggregation=constant")) == "constant"


def test_an_algorithm_with_a_critic_makes_no_rows_without_one():
    with pytest.raises(ConfigError, match="by its critic"):
        make_rows(config("rl.algorithm=ppo"), None, Controls(0.0))


def test_a_key_that_moved_to_another_section_is_named_there():
    with pytest.raises(ConfigError, match=r"rl\.negative_weight. Did you mean credit\.negative_weight"):
        config("rl.negative_weight=0.5")
