"""Reward parts and the rubric that weighs them: facts in, named numbers out."""

from palestra.rewards.parts import BUILTIN_PARTS, PREFERENCE, RewardPart, preference
from palestra.rewards.rubric import DEFAULT_WEIGHTS, MAX_SCALE_RATIO, PREFERENCE_WEIGHT, Rubric

__all__ = [
    "BUILTIN_PARTS",
    "DEFAULT_WEIGHTS",
    "MAX_SCALE_RATIO",
    "PREFERENCE",
    "PREFERENCE_WEIGHT",
    "RewardPart",
    "Rubric",
    "preference",
]
