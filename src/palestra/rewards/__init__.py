"""Reward parts and the rubric that weighs them: facts in, named numbers out."""

from palestra.rewards.parts import BUILTIN_PARTS, RewardPart
from palestra.rewards.rubric import DEFAULT_WEIGHTS, MAX_SCALE_RATIO, Rubric

__all__ = ["BUILTIN_PARTS", "DEFAULT_WEIGHTS", "MAX_SCALE_RATIO", "RewardPart", "Rubric"]
