"""What finished episodes say about a policy: never one number, each with its own denominator.

Pure functions over ``Trajectory`` records; nothing is played here. The one surprising choice: every metric
of an episode is averaged over episodes, so that a long episode weighs no more than a short one; only the
metrics that are by name a share of turns are pooled over all turns.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from palestra.evaluation.statistics import wilson_interval
from palestra.types import StopReason, Trajectory, TrajectoryGroup, Turn


@dataclass(frozen=True, slots=True)
class EvalReport:
    """The metrics of one evaluation. A value that could not be measured is None, never 0.

    Example: 50 episodes, 5 lost to the world, 36 successes: ``success`` 0.80, ``success_of_attempted`` 0.72.
    """

    episodes: int
    """Attempted."""
    scored: int
    """Those whose success could be measured."""
    excluded: int
    """Those that could not: the world itself failed. Not scored as failures."""
    tasks: int
    """Different tasks among the attempted."""
    success: float | None
    """Share of the scored."""
    success_of_attempted: float | None
    """Share of the attempted, where an excluded episode counts as no success."""
    success_ci95: list[float] | None
    """Wilson interval of ``success``, ``[low, high]``."""
    success_by_task: float | None
    """Mean over tasks of each task's own rate: differs from ``success`` if attempts are uneven."""
    turns: float | None
    """Mean over scored episodes, as everything below where nothing else is said."""
    invalid_actions: float | None
    """Turns an episode whose action was not valid."""
    repeated_actions: float | None
    """Turns an episode that nearly repeated an action from the same state."""
    truncated_actions: float | None
    """Turns an episode whose action was cut at the length limit."""
    action_tokens: float | None
    """Sampled tokens an episode; None for policies without tokens."""
    format_compliance: float | None
    """Share of turns that could be understood."""
    strict_format: float | None
    """Share of turns that were understood as they stood."""
    tool_call_accuracy: float | None
    """Share of the understood turns whose tool and parameters the world accepted."""
    step_efficiency: float | None
    """Shortest solution over turns taken, at most 1: mean over successes with a known shortest solution."""
    recovery: float | None
    """Share of success among episodes that met a fault or made an invalid action."""
    milestone_rates: dict[str, float]
    """Share of the episodes that have the milestone and reached it."""
    milestone_counts: dict[str, int]
    """Episodes that reached it."""
    stop_reasons: dict[str, int]
    """Episodes by reason, over all attempted."""
    reward: float | None
    """Mean total reward."""
    reward_parts: dict[str, float | None]
    """Mean of each part, unweighted, in the part's own range."""

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return asdict(self)


def evaluate_groups(groups: Iterable[TrajectoryGroup]) -> EvalReport:
    """The report of all attempts in ``groups``."""
    return evaluate_trajectories([t for group in groups for t in group.trajectories])


def evaluate_trajectories(trajectories: Iterable[Trajectory]) -> EvalReport:
    """All metrics of these episodes; of none at all, every rate is None."""
    attempted = list(trajectories)
    scored = [each for each in attempted if is_scored(each)]
    successes = sum(each.success is True for each in scored)
    interval = wilson_interval(successes, len(scored))
    rates, counts = _milestones(scored)
    return EvalReport(
        episodes=len(attempted),
        scored=len(scored),
        excluded=len(attempted) - len(scored),
        tasks=len({each.task.id for each in attempted}),
        success=_share(successes, len(scored)),
        success_of_attempted=_share(successes, len(attempted)),
        success_ci95=list(interval) if interval else None,
        success_by_task=_mean(task_success(attempted).values()),
        turns=_mean(len(each.turns) for each in scored),
        invalid_actions=_mean_count(scored, lambda turn: not turn.facts.valid),
        repeated_actions=_mean_count(scored, lambda turn: turn.facts.repeated),
        truncated_actions=_mean_count(scored, lambda turn: turn.facts.error == "truncated"),
        action_tokens=_mean(_tokens(each) for each in scored),
        format_compliance=_turn_share(scored, _understood),
        strict_format=_turn_share(scored, lambda turn: turn.facts.parse_tier == "strict"),
        tool_call_accuracy=_tool_call_accuracy(scored),
        step_efficiency=_mean(_efficiency(each) for each in scored),
        recovery=_mean(float(each.success is True) for each in scored if _met_trouble(each)),
        milestone_rates=rates,
        milestone_counts=counts,
        stop_reasons=_stop_reasons(attempted),
        reward=_mean(each.reward for each in scored),
        reward_parts=_reward_parts(scored),
    )


def is_scored(trajectory: Trajectory) -> bool:
    """Whether the episode's success was measured: not so where the world itself failed."""
    return trajectory.success is not None and trajectory.stop_reason is not StopReason.env_error


def task_success(trajectories: Iterable[Trajectory]) -> dict[str, float | None]:
    """Success rate of each task id over its scored attempts; None where none was scored."""
    attempts: dict[str, list[float]] = defaultdict(list)
    for each in trajectories:
        scores = attempts[each.task.id]
        if is_scored(each):
            scores.append(float(each.success is True))
    return {task: _mean(scores) for task, scores in attempts.items()}


def _mean(values: Iterable[float | None]) -> float | None:
    """Mean of what was measured; None if nothing was."""
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None


def _mean_count(episodes: Sequence[Trajectory], counts: Callable[[Turn], bool]) -> float | None:
    return _mean(sum(counts(turn) for turn in each.turns) for each in episodes)


def _turn_share(episodes: Sequence[Trajectory], counts: Callable[[Turn], bool]) -> float | None:
    turns = [turn for each in episodes for turn in each.turns]
    return _share(sum(counts(turn) for turn in turns), len(turns))


def _understood(turn: Turn) -> bool:
    return turn.facts.parse_tier != "error"


def _tool_call_accuracy(episodes: Sequence[Trajectory]) -> float | None:
    understood = [turn for each in episodes for turn in each.turns if _understood(turn)]
    accepted = sum(turn.facts.valid and turn.facts.tool_name is not None for turn in understood)
    return _share(accepted, len(understood))


def _tokens(episode: Trajectory) -> int | None:
    """Sampled tokens; None where a turn has none, which is how text without tokens looks."""
    if not episode.turns or not all(turn.action_ids for turn in episode.turns):
        return None
    return sum(len(turn.action_ids) for turn in episode.turns)


def _efficiency(episode: Trajectory) -> float | None:
    shortest = episode.task.optimal_turns
    if episode.success is not True or shortest is None or not episode.turns:
        return None
    return min(1.0, shortest / len(episode.turns))


def _met_trouble(episode: Trajectory) -> bool:
    return any(not turn.facts.valid or turn.facts.fault is not None for turn in episode.turns)


def _milestones(episodes: Sequence[Trajectory]) -> tuple[dict[str, float], dict[str, int]]:
    """Rates and counts by name, in the order in which the tasks declare them."""
    having: Counter[str] = Counter()
    reached: Counter[str] = Counter()
    for each in episodes:
        met = dict.fromkeys(name for turn in each.turns for name in turn.facts.new_milestones)
        reached.update(met.keys())
        having.update(dict.fromkeys((*each.milestones, *met)).keys())
    return {name: reached[name] / having[name] for name in having}, {name: reached[name] for name in having}


def _stop_reasons(episodes: Sequence[Trajectory]) -> dict[str, int]:
    counts = Counter(each.stop_reason for each in episodes)
    return {reason.value: counts[reason] for reason in StopReason if counts[reason]}


def _reward_parts(episodes: Sequence[Trajectory]) -> dict[str, float | None]:
    parts: Mapping[str, list[float | None]] = defaultdict(list)
    for each in episodes:
        for name, value in each.reward_parts.items():
            parts[name].append(value)
    return {name: _mean(values) for name, values in parts.items()}
