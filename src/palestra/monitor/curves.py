"""Rules over metrics: what is wrong with the curves of a stage. Each is a function of a ``Window``.

Thresholds are module constants with their reason beside them. A rule that needs more updates than there
are says nothing.
"""

from __future__ import annotations

import math
from statistics import median

from palestra.monitor.alarms import REPLAYED, Finding, Window

RISE = 0.1
"""A share that moved by this much has moved; three-update means of 128 episodes scatter by about 0.04."""
COLLAPSED, GONE = (0.25, 0.5), (0.1, 0.25)
"""Entropy and variety as shares of those at the start: too low without a gain, and too low for a policy that
still fails more often than not, whatever it gained."""
SOLVED = 0.9
"""Success from which on entropy falls because the right way is known."""
FELL_BACK = 0.3
"""Points of success under the best three updates."""
FLAT_SHARE = 0.8
"""Of groups without spread: the update learns from a fifth of what it played."""
UNSOLVED = 0.2
"""Of groups, over six updates: one kind of task in five."""
FORMAT_FLOOR = 0.8
FAR = 1.0
"""Nats a token from the reference: the policy has become another one."""
SPIKE = 10.0
"""Times the median gradient norm."""
MISMATCH = 0.01
"""Nats a token between sampler and learner before any step, where they should be one distribution."""
GAP = 0.2
PATIENCE = 1000
"""Updates without a gain before a plateau is one; exploration often looks like a plateau for hundreds."""


def not_finite(window: Window) -> Finding | None:
    """A metric that is no number."""
    bad = sorted(name for name, value in window.rows[-1].items() if not math.isfinite(value))
    return Finding(f"{', '.join(bad)} is not finite") if bad else None


def entropy_collapse(window: Window) -> Finding | None:
    """Entropy and variety fell, and success did not rise over it, or they are gone before it is high.

    Where nearly all succeed there is nothing left to explore, and both may fall.

    The entropy is that of all episodes where it is known: the learner sees only those it learns from, and in
    a collapse hardly any is left.
    """
    name = "policy/sampled_entropy" if window.values("policy/sampled_entropy") else "policy/entropy"
    first, now = window.early(name), window.late(name)
    kinds_first, kinds = (f("actions/distinct_sequences") for f in (window.early, window.late))
    gain = _change(window, "success/mean")
    if first is None or now is None or kinds_first is None or kinds is None or gain is None:
        return None
    success = window.late("success/mean") or 0.0
    fallen = [now <= share * first and kinds <= variety * kinds_first for share, variety in (COLLAPSED, GONE)]
    if not (fallen[0] and gain <= RISE / 2 and success < SOLVED) and not (fallen[1] and success < 0.5):
        return None
    return Finding(
        f"entropy {first:.3f} -> {now:.3f} nats and different action sequences {kinds_first:.0%} -> "
        f"{kinds:.0%} of episodes, while success moved by {100 * gain:+.0f} points"
    )


def fell_back(window: Window) -> Finding | None:
    """Success lost most of what it had gained."""
    found = window.values("success/mean")
    means = [sum(found[at : at + 3]) / 3 for at in range(len(found) - 2)]
    if not means or max(means) - means[-1] < FELL_BACK:
        return None
    norm = window.late("gradient/norm")
    more = f"; gradient norm {norm:.2f}" if norm is not None else ""
    return Finding(f"success fell from {max(means):.0%} to {means[-1]:.0%} (means of three updates){more}")


def guessing(window: Window) -> Finding | None:
    """Success rises while more actions are invalid."""
    gain, worse = _change(window, "success/mean"), _change(window, "actions/invalid")
    before = window.early("actions/invalid")
    if gain is None or worse is None or before is None:
        return None
    if gain < RISE or worse < max(RISE, before / 2):
        return None
    return Finding(f"success {100 * gain:+.0f} points while invalid actions {worse:+.2f} an episode")


def process_without_success(window: Window) -> Finding | None:
    """The process reward rises and success does not."""
    gain, process = _change(window, "success/mean"), _change(window, "reward/part/process")
    if gain is None or process is None or process < RISE or gain > process / 4:
        return None
    evidence = f"process reward {process:+.2f} while success moved by {100 * gain:+.0f} points"
    lost = [each for each in window.scored if not each.success]
    lost.sort(key=lambda each: each.reward_parts.get("process") or 0.0, reverse=True)
    return Finding(evidence, tuple(each.id for each in lost[:REPLAYED]))


def flat_groups(window: Window) -> Finding | None:
    """Most groups teach nothing, update after update."""
    share, success = window.late("groups/zero_spread"), window.late("success/mean")
    if share is None or success is None or share < FLAT_SHARE:
        return None
    if (window.late("episodes/trained") or 0.0) > 1.5 * (1 - FLAT_SHARE):
        return None  # credit that does not compare within groups learns from them all the same
    why = "the tasks are solved" if success > 0.5 else "no attempt gets further than another"
    return Finding(f"{share:.0%} of groups have no spread at a success of {success:.0%}: {why}")


def out_of_reach(window: Window) -> Finding | None:
    """Some tasks are never solved while the others are learned."""
    before, now = window.early("groups/unsolved", 6), window.late("groups/unsolved", 6)
    success = window.late("success/mean", 6)
    if before is None or now is None or success is None:
        return None
    if now < UNSOLVED or now < before / 2 or success < 2 * now:
        return None
    return Finding(
        f"no attempt of {now:.0%} of the groups succeeds ({before:.0%} at the start) at a success of "
        f"{success:.0%}",
        _unsolved(window),
    )


def format_low(window: Window) -> Finding | None:
    """Too many actions cannot be understood."""
    share = window.rows[-1].get("format/compliance")
    if share is None or share >= FORMAT_FLOOR:
        return None
    return Finding(f"{share:.0%} of the actions could be understood")


def mismatch(window: Window) -> Finding | None:
    """Sampler and learner disagree before the first step."""
    distance = window.rows[-1].get("policy/kl_mismatch")
    if distance is None or distance < MISMATCH:
        return None
    return Finding(f"sampler and learner are {distance:.4f} nats a token apart before any step was taken")


def far_from_reference(window: Window) -> Finding | None:
    """The policy left the reference, or leaps away from it, for two updates in a row.

    One alone is no sign: where nearly all groups are solved, the distance is that of a few failures' tokens.
    """
    found = window.values("policy/kl_reference")
    if len(found) < 2:
        return None
    now = min(found[-2:])
    usual = median(found[-12:-2]) if len(found) > 6 else math.inf
    if now < FAR and not (now > 0.2 and now > SPIKE * usual):
        return None
    before = f", {usual:.3f} before" if len(found) > 6 else ""
    return Finding(f"{now:.2f} nats a token from the reference in two updates in a row{before}")


def gradient_spike(window: Window) -> Finding | None:
    """A gradient much larger than the ones before it."""
    found = window.values("gradient/norm")
    if len(found) < 6:
        return None
    usual = median(found[-21:-1])
    if found[-1] <= SPIKE * usual or found[-1] < 1.0:
        return None
    return Finding(f"gradient norm {found[-1]:.1f}, where {usual:.2f} is usual")


def validation_gap(window: Window) -> Finding | None:
    """Training tasks are solved far more often than validation tasks."""
    train, held_out = window.late("success/mean"), window.values("validation/success")
    if not window.rows[-1].get("curriculum/complete", 1.0):
        return None  # validation is at full size already
    if train is None or not held_out or train - held_out[-1] < GAP:
        return None
    return Finding(f"success {train:.0%} on training tasks, {held_out[-1]:.0%} on validation tasks")


def plateau(window: Window) -> Finding | None:
    """No gain for as long as patience lasts."""
    found = window.values("success/mean")
    if len(found) < PATIENCE + 3:
        return None
    means = [sum(found[at : at + 3]) / 3 for at in range(len(found) - 2)]
    best = max(range(len(means)), key=means.__getitem__)
    if len(means) - 1 - best < PATIENCE:
        return None
    flat = window.late("groups/zero_spread") or 0.0
    return Finding(
        f"best success {means[best]:.0%} was {len(means) - 1 - best} updates ago; "
        f"{flat:.0%} of groups have no spread"
    )


def _unsolved(window: Window) -> tuple[str, ...]:
    """The first attempts of groups that nobody solved."""
    lost = [group for group in window.groups if not any(each.success for each in group.trajectories)]
    return tuple(group.trajectories[0].id for group in lost[:REPLAYED] if group.trajectories)


def _change(window: Window, name: str) -> float | None:
    before, now = window.early(name), window.late(name)
    return None if before is None or now is None else now - before
