"""Playing episodes: one, or many at once."""

from palestra.rollout.answers import read_reset
from palestra.rollout.collect import (
    MAX_FAILED_SHARE,
    Rollout,
    collect_groups,
    collect_share,
    refuse_many_failures,
)
from palestra.rollout.episode import EpisodeKey, World, run_episode
from palestra.rollout.limits import Limits

__all__ = [
    "MAX_FAILED_SHARE",
    "EpisodeKey",
    "Limits",
    "Rollout",
    "World",
    "collect_groups",
    "collect_share",
    "read_reset",
    "refuse_many_failures",
    "run_episode",
]
