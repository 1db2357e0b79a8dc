"""What an update's groups say in numbers, under the names that the metrics file and the viewer use."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from palestra.training.advantages import has_reward_spread
from palestra.types import StopReason, Trajectory, TrajectoryGroup


def summarize_groups(groups: Sequence[TrajectoryGroup]) -> dict[str, float]:
    """Means over scored episodes, and shares over groups; what could not be measured is left out."""
    trajectories = [trajectory for group in groups for trajectory in group.trajectories]
    scored = [trajectory for trajectory in trajectories if trajectory.reward is not None]
    metrics = {
        "groups/zero_spread": mean(float(_is_flat(group)) for group in groups),
        "groups/unsolved": mean(float(not any(t.success for t in group.trajectories)) for group in groups),
    }
    metrics["episodes/excluded"] = float(len(trajectories) - len(scored))
    metrics["episodes/retried"] = mean(float(t.retries > 0) for t in trajectories)
    if not scored:
        return metrics
    turns = [turn for trajectory in scored for turn in trajectory.turns]
    metrics |= {
        "success/mean": mean(float(bool(t.success)) for t in scored),
        "reward/mean": mean(t.reward or 0.0 for t in scored),
        "turns/mean": mean(len(t.turns) for t in scored),
        "tokens/action_mean": mean(sum(len(turn.action_ids) for turn in t.turns) for t in scored),
        **({"format/compliance": mean(float(t.facts.parse_tier != "error") for t in turns)} if turns else {}),
        "actions/invalid": sum(not turn.facts.valid for turn in turns) / len(scored),
        "actions/repeated": sum(turn.facts.repeated for turn in turns) / len(scored),
        "context/prefix_breaks": sum(bool(turn.prompt_ids) for turn in turns) / len(scored),
        "actions/distinct_sequences": len({_sequence(t) for t in scored}) / len(scored),
    }
    sampled = [value for turn in turns for value in turn.sampled_logprobs]
    if sampled:
        metrics["policy/sampled_entropy"] = -mean(sampled)
    for name in scored[0].reward_parts:
        values = [value for t in scored if (value := t.reward_parts.get(name)) is not None]
        if values:
            metrics[f"reward/part/{name}"] = mean(values)
    counts = Counter(trajectory.stop_reason for trajectory in trajectories)
    return metrics | {f"stop/{reason}": counts[reason] / len(trajectories) for reason in StopReason}


def mean(values: Iterable[float]) -> float:
    """Arithmetic mean of at least one value."""
    listed = list(values)
    return sum(listed) / len(listed)


def _is_flat(group: TrajectoryGroup) -> bool:
    return not has_reward_spread([t.reward for t in group.trajectories if t.reward is not None])


def _sequence(trajectory: Trajectory) -> tuple[str | None, ...]:
    return tuple(turn.facts.tool_name for turn in trajectory.turns)
