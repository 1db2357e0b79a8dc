"""A run in plain words: the headline and what stands out.

Pure functions from a run's evaluations, curves and episodes to sentences; the report prints them first. The
one surprising choice: a gain that may be chance is said to be so right beside the headline.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from palestra.types import StopReason, Trajectory
from palestra.viewer.curves import Curve, level
from palestra.viewer.stages import Eval
from palestra.viewer.words import number, percent, percent_with_interval, plural

_SPLIT_WORDS = {"test": "held-out tasks", "validation": "validation tasks", "train": "training tasks"}
_WHEN = {"dpo": "after DPO", "rl": "after RL", "sft": "after SFT", "base": "before training"}
_ENDINGS = {
    StopReason.terminated: "by a wrong ending",
    StopReason.max_turns: "at the turn limit",
    StopReason.max_tokens: "at the token budget",
    StopReason.context_full: "with a full context",
    StopReason.repeated_action: "by repeating an action",
    StopReason.invalid_action: "by invalid actions in a row",
    StopReason.timeout: "by taking too long",
    StopReason.env_error: "with the world",
}
FORMAT_GATE = 0.8
"""Under this share of understood actions, RL learns the format instead of the task."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """What the sentences are drawn from. Everything may be missing."""

    evals: Mapping[str, Eval] = field(default_factory=dict)
    """One evaluation a stage."""
    curves: Mapping[str, Curve] = field(default_factory=dict)
    """Of online learning."""
    episodes: Sequence[Trajectory] = ()
    """Of the best trained policy's evaluation, or whatever was collected."""
    torn: int = 0
    """Rows of metrics that a crash tore."""


def headline(evidence: Evidence) -> str:
    """One sentence: did the agent get better, from where to where, against whom."""
    evals = {stage: each for stage, each in evidence.evals.items() if each.get("success") is not None}
    trained = [stage for stage in _WHEN if stage in evals]
    others = _others(evals)
    if trained:
        split = evals[trained[0]].get("split")
        words = f"Success on {_SPLIT_WORDS.get(str(split), 'evaluation tasks')} {_change(evals, trained)}"
        return "; ".join([words, *others]) + "."
    if others:
        text = "; ".join(others)
        return f"{text[0].upper()}{text[1:]}; no trained policy has been evaluated yet."
    if evidence.episodes:
        known = [each.success for each in evidence.episodes if each.success is not None]
        solved = f", {percent(sum(known) / len(known))} of them solved" if known else ""
        return (
            f"{plural(len(evidence.episodes), 'episode')} collected{solved}; nothing has been evaluated yet."
        )
    if evidence.curves:
        return "Training has begun; nothing has been evaluated yet."
    return "Nothing has been collected, trained or evaluated in this run yet."


def notes(evidence: Evidence) -> list[str]:
    """What stands out, most telling first; empty where nothing does."""
    found = [
        _certainty(evidence.evals),
        _against_teacher(evidence.evals),
        _excluded(evidence.evals),
        _format_gate(evidence.evals),
        _turns(evidence.evals),
        _failures(evidence.episodes),
        _weak_milestone(evidence.evals),
        _zero_spread(evidence.curves),
        _reward_without_success(evidence.curves),
        _train_gap(evidence.curves),
        _entropy(evidence.curves),
        _time_split(evidence.curves),
    ]
    if evidence.torn:
        found.append(f"{plural(evidence.torn, 'row')} of metrics could not be read and are left out.")
    return [note for note in found if note is not None]


def _others(evals: Mapping[str, Eval]) -> list[str]:
    """``the teacher manages 71 %``, ``the oracle 100 %``: the verb once."""
    present = [stage for stage in ("teacher", "oracle") if stage in evals]
    return [
        f"the {stage}{' manages' if place == 0 else ''} {percent(evals[stage]['success'])}"
        for place, stage in enumerate(present)
    ]


def _change(evals: Mapping[str, Eval], trained: Sequence[str]) -> str:
    """``rose from A after SFT to B after RL``, or what is known of it."""
    after = evals[trained[0]]
    value = percent_with_interval(after["success"], after.get("success_ci95"))
    if len(trained) == 1:
        return f"is {value} {_WHEN[trained[0]]}"
    before = evals[trained[1]]
    if percent(before["success"]) == percent(after["success"]):
        return f"stayed at {value} from {_WHEN[trained[1]]} to {_WHEN[trained[0]]}"
    verb = "rose" if after["success"] > before["success"] else "fell"
    start = percent_with_interval(before["success"], before.get("success_ci95"))
    return f"{verb} from {start} {_WHEN[trained[1]]} to {value} {_WHEN[trained[0]]}"


def _certainty(evals: Mapping[str, Eval]) -> str | None:
    before, after = _get(evals, "sft", "success_ci95"), _get(evals, "rl", "success_ci95")
    if not before or not after:
        return None
    if before[1] < after[0] or after[1] < before[0]:
        return "The 95 % intervals of SFT and RL do not overlap: the change is hardly chance."
    return "The 95 % intervals of SFT and RL overlap: evaluate more tasks before believing the change."


def _against_teacher(evals: Mapping[str, Eval]) -> str | None:
    teacher, policy = _get(evals, "teacher", "success"), _get(evals, "rl", "success")
    if teacher is None or policy is None:
        return None
    if policy > teacher:
        return f"The policy beats the teacher it first imitated by {_points(policy - teacher)}."
    return f"The policy is {_points(teacher - policy)} short of the teacher it first imitated."


def _points(difference: float) -> str:
    return f"{abs(100 * difference):.0f} points"


def _excluded(evals: Mapping[str, Eval]) -> str | None:
    lost = sum(each.get("excluded") or 0 for each in evals.values())
    total = sum(each.get("episodes") or 0 for each in evals.values())
    if not lost:
        return None
    return (
        f"{lost} of {plural(total, 'evaluation episode')} were lost to failures of the world itself "
        "and count neither as successes nor as failures."
    )


def _format_gate(evals: Mapping[str, Eval]) -> str | None:
    share = _get(evals, "sft", "format_compliance")
    if share is None or share >= FORMAT_GATE:
        return None
    return f"After SFT only {percent(share)} of actions could be understood: mend the data before RL."


def _turns(evals: Mapping[str, Eval]) -> str | None:
    before, after = _get(evals, "sft", "turns"), _get(evals, "rl", "turns")
    if not before or after is None or abs(after - before) < 0.05 * before:
        return None
    verb = "fewer" if after < before else "more"
    return f"RL takes {verb} turns an episode than SFT: {number(after)} against {number(before)}."


def _failures(episodes: Sequence[Trajectory]) -> str | None:
    failed = [each for each in episodes if each.success is False]
    if not failed:
        return None
    reasons = Counter(each.stop_reason for each in failed).most_common()
    listed = ", ".join(f"{count} {_ENDINGS[reason]}" for reason, count in reasons)
    policies = {each.policy for each in episodes}
    whose = f" of {policies.pop() or 'the policy'}" if len(policies) == 1 else ""
    return f"{len(failed)} of {plural(len(episodes), 'stored episode')}{whose} failed: {listed}."


def _weak_milestone(evals: Mapping[str, Eval]) -> str | None:
    rates: Mapping[str, float] = _get(evals, "rl", "milestone_rates") or {}
    if not rates:
        return None
    name, rate = min(rates.items(), key=lambda item: item[1])
    if rate >= 1:
        return None
    return f"The milestone most often missed after RL is “{name}”: {percent(rate)} of episodes reach it."


def _zero_spread(curves: Mapping[str, Curve]) -> str | None:
    share = level(curves.get("groups/zero_spread", {}), end=True, share=1.0)
    if share is None or not 0.25 <= share <= 1:
        return None
    return (
        f"In {percent(share)} of groups all attempts earned the same reward and taught nothing: "
        "tasks nearer to the edge of what the policy can do would use the time better."
    )


def _reward_without_success(curves: Mapping[str, Curve]) -> str | None:
    reward = _rise(curves.get("reward/mean", {}))
    success = _rise(curves.get("validation/success", {}))
    if reward is None or success is None or reward < 0.1 or success > 0.01:
        return None
    return (
        f"Reward rose by {number(reward)} while validation success did not: look through the episodes "
        "below for a reward that is farmed."
    )


def _train_gap(curves: Mapping[str, Curve]) -> str | None:
    train = level(curves.get("success/mean", {}), end=True)
    held_out = level(curves.get("validation/success", {}), end=True)
    if train is None or held_out is None or train - held_out < 0.1:
        return None
    return f"At the end, success is {percent(train)} in training but {percent(held_out)} in validation."


def _entropy(curves: Mapping[str, Curve]) -> str | None:
    start, end = (level(curves.get("policy/entropy", {}), end=at_end) for at_end in (False, True))
    if not start or end is None or end > 0.2 * start:
        return None
    return f"Entropy fell from {number(start)} to {number(end)}: the policy hardly explores any more."


def _time_split(curves: Mapping[str, Curve]) -> str | None:
    rollout, update = (sum(curves.get(f"time/{part}", {}).values()) for part in ("rollout", "update"))
    if not rollout or not update:
        return None
    share = percent(rollout / (rollout + update))
    return f"Playing episodes took {share} of the training time, updates the rest."


def _rise(curve: Curve) -> float | None:
    start, end = level(curve, end=False), level(curve, end=True)
    return None if start is None or end is None or len(curve) < 2 else end - start


def _get(evals: Mapping[str, Eval], stage: str, key: str) -> Any:
    return evals.get(stage, {}).get(key)
