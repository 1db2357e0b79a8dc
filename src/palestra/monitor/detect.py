"""All detectors with their causes and remedies, and what they find in a run so far."""

from __future__ import annotations

import warnings
from collections.abc import Iterable

from palestra.monitor import curves, episodes
from palestra.monitor.alarms import Alarm, Detector, Window

DETECTORS: tuple[Detector, ...] = (
    Detector(
        "not_finite",
        "a metric is no number",
        "the learning rate is far too high, or a reward is not finite",
        "lower rl.learning_rate; look at the rewards of the episodes before it",
        curves.not_finite,
    ),
    Detector(
        "shortcut",
        "successes are shorter than the shortest solution",
        "the verifier accepts a guess, or a step that should be needed is not",
        "demand the evidence in verify, or name the look-up in required_tools",
        episodes.shortcut,
    ),
    Detector(
        "guessing",
        "success rises while tools are used worse",
        "the policy guesses around the tools",
        "required_tools or evidence in verify; a larger rubric weight for process",
        curves.guessing,
    ),
    Detector(
        "process_without_success",
        "process reward rises and success does not",
        "milestones are farmed: they can be had without solving the task",
        "milestones on states that only solutions pass; a smaller rubric weight for process",
        curves.process_without_success,
    ),
    Detector(
        "part_dominates",
        "one part decides the reward",
        "its weight is too large, or no attempt ever succeeds",
        "lower its weight in rubric.weights; if success is near 0, more demonstrations or easier tasks",
        episodes.part_dominates,
    ),
    Detector(
        "scales_apart",
        "reward parts are of different size",
        "a part's values or its weight dwarf the outcome",
        "scale it to 0 to 1, or lower its weight in rubric.weights",
        episodes.scales_apart,
    ),
    Detector(
        "entropy_collapse",
        "entropy and variety fall without a gain",
        "the policy settled on one way before it found a good one",
        "loss.entropy_floor; a higher rl.temperature; a lower rl.learning_rate",
        curves.entropy_collapse,
    ),
    Detector(
        "one_action",
        "one action whatever the state",
        "the policy collapsed onto it",
        "go back to an earlier checkpoint; loss.entropy_floor; a lower rl.learning_rate",
        episodes.one_action,
    ),
    Detector(
        "looping",
        "actions repeat in pairs",
        "an omen of collapse: the policy goes round in circles where it does not know on",
        "a more negative rubric weight for repetition; loss.entropy_floor",
        episodes.looping,
    ),
    Detector(
        "duplicate_calls",
        "calls are made again",
        "asking again costs too little",
        "larger rubric weights for efficiency and repetition; a smaller rollout.max_repeats",
        episodes.duplicate_calls,
    ),
    Detector(
        "fell_back",
        "success fell back",
        "the learning rate is too high or the KL too weak",
        "lower rl.learning_rate; a larger loss.kl_weight; start again from the best checkpoint",
        curves.fell_back,
    ),
    Detector(
        "far_from_reference",
        "the policy left the reference",
        "the KL is too weak for the learning rate",
        "loss.kl_target or a larger loss.kl_weight; a lower rl.learning_rate",
        curves.far_from_reference,
    ),
    Detector(
        "gradient_spike",
        "the gradient leapt",
        "an episode far from all others, or a learning rate too high",
        "lower rl.learning_rate; more tasks an update; look at the update's episodes",
        curves.gradient_spike,
    ),
    Detector(
        "mismatch",
        "sampler and learner disagree",
        "they differ in weights, precision, temperature or chat template",
        "check that the engine has the newest weights; loss.mismatch_cap bounds the damage",
        curves.mismatch,
    ),
    Detector(
        "world_fails",
        "worlds fail under the policy",
        "the world raises, dies or hangs on what the policy does, and what it plays is not what it would",
        "replay one, its error stands at the end; world.isolation bounds what hangs",
        episodes.world_fails,
    ),
    Detector(
        "format_low",
        "actions are not understood",
        "the cold start was too short, or the format reward is too weak",
        "more demonstrations or sft.epochs; a larger rubric weight for format",
        curves.format_low,
    ),
    Detector(
        "flat_groups",
        "most groups teach nothing",
        "the tasks are all solved, or all out of reach",
        "solved: mine.rounds or a higher world.difficulty; out of reach: more demonstrations",
        curves.flat_groups,
    ),
    Detector(
        "out_of_reach",
        "some tasks are never solved",
        "no attempt ever takes the step that they need, so nothing rewards it",
        "see which kind of task it is; demonstrations of it, or a tool that says what a wrong look-up misses",
        curves.out_of_reach,
    ),
    Detector(
        "validation_gap",
        "training tasks go far better than others",
        "tasks are learned by heart; or, as validation is greedy, the likeliest action is a bad one",
        "`palestra eval --tiers` tells which; by heart: more different tasks (rl.tasks_per_update, the "
        "world's generate); a bad action: what is said of the reward",
        curves.validation_gap,
    ),
    Detector(
        "plateau",
        "no gain for long",
        "what can be learned from these tasks is learned, or exploration is over",
        "hard-example rounds; if groups have no spread, other tasks; if they have, a higher temperature",
        curves.plateau,
    ),
)
"""In the order of how bad they are."""


def detect(window: Window) -> list[Alarm]:
    """What is wrong at the window's last update."""
    update = int(window.rows[-1].get("update", len(window.rows)))
    alarms = []
    for detector in DETECTORS:
        try:
            found = detector.look(window)
        except Exception as error:  # whatever a world or a reward put there, a detector must not end a run
            warnings.warn(f"detector {detector.name} could not look: {error!r}", stacklevel=2)
            continue
        if found is not None:
            alarms.append(
                Alarm(
                    detector.name,
                    window.stage,
                    update,
                    detector.symptom,
                    found.evidence,
                    detector.cause,
                    detector.remedy,
                    found.replay,
                )
            )
    return alarms


def first_alarms(windows: Iterable[Window]) -> list[Alarm]:
    """Of each detector and stage the first alarm in windows that follow each other."""
    seen: dict[tuple[str, str], Alarm] = {}
    for window in windows:
        for alarm in detect(window):
            seen.setdefault((alarm.stage, alarm.detector), alarm)
    return list(seen.values())
