"""Evaluation: metrics, intervals and comparisons over finished episodes.

It reads ``Trajectory`` records and gives numbers; whoever plays the episodes calls it afterwards. The one
surprising choice: success is reported over two denominators, because episodes lost to the world itself are
neither successes nor failures.
"""

from palestra.evaluation.compare import Comparison, ComparisonRow, compare
from palestra.evaluation.faults import FaultResult, fault_landed, fault_results
from palestra.evaluation.metrics import EvalReport, evaluate_groups, evaluate_trajectories, task_success
from palestra.evaluation.statistics import (
    PairedDifference,
    bootstrap_interval,
    paired_difference,
    pass_at_k,
    pass_hat_k,
    wilson_interval,
)

__all__ = [
    "Comparison",
    "ComparisonRow",
    "EvalReport",
    "FaultResult",
    "PairedDifference",
    "bootstrap_interval",
    "compare",
    "evaluate_groups",
    "evaluate_trajectories",
    "fault_landed",
    "fault_results",
    "paired_difference",
    "pass_at_k",
    "pass_hat_k",
    "task_success",
    "wilson_interval",
]
