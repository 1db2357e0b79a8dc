"""Learning: advantages, losses, segments and batches, the learner, imitation, and the online loop."""

from palestra.training.advantages import (
    anchored_zscore,
    batch_zscore,
    best_success,
    discounted_returns,
    group_mean,
    group_mean_batch_scale,
    group_zscore,
    leave_one_out,
    turn_leave_one_out,
)
from palestra.training.algorithms import ALGORITHMS, Algorithm
from palestra.training.batch import MicroBatch, make_micro_batches
from palestra.training.checkpoint import (
    best_checkpoint,
    checkpoint_state,
    checkpoints,
    load_checkpoint,
    load_newest,
    save_checkpoint,
    validation_scores,
)
from palestra.training.credit import Credit, TurnAdvantages
from palestra.training.learner import Learner, OptimizerName
from palestra.training.loop import advantage_segments, train_online
from palestra.training.loop_parts import LoopParts, LoopSettings
from palestra.training.losses import (
    LossFunction,
    TokenTerms,
    clipped_policy_loss,
    entropy,
    imitation_loss,
    k3,
)
from palestra.training.metrics import summarize_groups
from palestra.training.muon import Muon
from palestra.training.segments import make_segment, tokenize_trajectory
from palestra.training.sft import SftSettings, imitate, supervised_share

__all__ = [
    "ALGORITHMS",
    "Algorithm",
    "Credit",
    "Learner",
    "LoopParts",
    "LoopSettings",
    "LossFunction",
    "MicroBatch",
    "Muon",
    "OptimizerName",
    "SftSettings",
    "TokenTerms",
    "TurnAdvantages",
    "advantage_segments",
    "anchored_zscore",
    "batch_zscore",
    "best_checkpoint",
    "best_success",
    "checkpoint_state",
    "checkpoints",
    "clipped_policy_loss",
    "discounted_returns",
    "entropy",
    "group_mean",
    "group_mean_batch_scale",
    "group_zscore",
    "imitate",
    "imitation_loss",
    "k3",
    "leave_one_out",
    "load_checkpoint",
    "load_newest",
    "make_micro_batches",
    "make_segment",
    "save_checkpoint",
    "summarize_groups",
    "supervised_share",
    "tokenize_trajectory",
    "train_online",
    "turn_leave_one_out",
    "validation_scores",
]
