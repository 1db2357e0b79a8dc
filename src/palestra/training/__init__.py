"""Learning: advantages, losses, segments and batches, the learner, imitation, and the online loop."""

from palestra.training.advantages import (
    anchored_zscore,
    batch_mean,
    batch_zscore,
    best_success,
    discounted_returns,
    gae,
    group_mean,
    group_mean_batch_scale,
    group_zscore,
    leave_one_out,
    turn_leave_one_out,
)
from palestra.training.aggregation import Aggregation, row_weights
from palestra.training.algorithms import ALGORITHMS, Algorithm, find_algorithm, make_surrogate
from palestra.training.batch import MicroBatch, make_micro_batches
from palestra.training.checkpoint import (
    CRITIC_FILE,
    best_checkpoint,
    checkpoint_state,
    checkpoints,
    load_checkpoint,
    load_critic,
    load_newest,
    save_checkpoint,
    validation_scores,
)
from palestra.training.controls import (
    Controls,
    adapted_kl_weight,
    floored_entropy_weight,
    scheduled_lambda,
)
from palestra.training.credit import Credit, TurnAdvantages
from palestra.training.critic import Critic, CriticSettings, explained_variance, value_loss
from palestra.training.critic_credit import CriticCredit
from palestra.training.kl_reward import subtract_kl
from palestra.training.learner import Learner, OptimizerName
from palestra.training.loop import advantage_segments, train_online
from palestra.training.loop_parts import LoopParts, LoopSettings, RowMaker
from palestra.training.losses import (
    LossFunction,
    TokenTerms,
    entropy,
    imitation_loss,
    k3,
    policy_loss,
)
from palestra.training.metrics import summarize_groups
from palestra.training.muon import Muon
from palestra.training.segments import CreditUnit, make_segment, state_segment, tokenize_trajectory
from palestra.training.sft import SftSettings, imitate, imitation_weights, supervised_share
from palestra.training.surrogates import clipped, policy_gradient, ratio_clipped, sequence_clipped

__all__ = [
    "ALGORITHMS",
    "CRITIC_FILE",
    "Aggregation",
    "Algorithm",
    "Controls",
    "Credit",
    "CreditUnit",
    "Critic",
    "CriticCredit",
    "CriticSettings",
    "Learner",
    "LoopParts",
    "LoopSettings",
    "LossFunction",
    "MicroBatch",
    "Muon",
    "OptimizerName",
    "RowMaker",
    "SftSettings",
    "TokenTerms",
    "TurnAdvantages",
    "adapted_kl_weight",
    "advantage_segments",
    "anchored_zscore",
    "batch_mean",
    "batch_zscore",
    "best_checkpoint",
    "best_success",
    "checkpoint_state",
    "checkpoints",
    "clipped",
    "discounted_returns",
    "entropy",
    "explained_variance",
    "find_algorithm",
    "floored_entropy_weight",
    "gae",
    "group_mean",
    "group_mean_batch_scale",
    "group_zscore",
    "imitate",
    "imitation_loss",
    "imitation_weights",
    "k3",
    "leave_one_out",
    "load_checkpoint",
    "load_critic",
    "load_newest",
    "make_micro_batches",
    "make_segment",
    "make_surrogate",
    "policy_gradient",
    "policy_loss",
    "ratio_clipped",
    "row_weights",
    "save_checkpoint",
    "scheduled_lambda",
    "sequence_clipped",
    "state_segment",
    "subtract_kl",
    "summarize_groups",
    "supervised_share",
    "tokenize_trajectory",
    "train_online",
    "turn_leave_one_out",
    "validation_scores",
    "value_loss",
]
