"""The online stages: gate, reinforcement learning, hard-example rounds.

Each loads the weights its predecessor left in the run folder and leaves its own there, so a process that
was killed resumes at the stage, and inside reinforcement learning at the checkpoint.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from rich.markup import escape

from palestra.errors import GateFailed
from palestra.evaluation import evaluate_groups, pass_at_k
from palestra.monitor import Alarm, Change, Guards, Watch
from palestra.pipeline.collecting import demonstrate
from palestra.pipeline.config import GateConfig
from palestra.pipeline.curriculum import Curriculum, quarantine, weigh
from palestra.pipeline.imitating import imitate_groups
from palestra.pipeline.learning_parts import make_controls, make_loss, make_rows
from palestra.pipeline.model_parts import LoadedPolicy, load_learning, load_reference, load_stage, make_critic
from palestra.pipeline.progress import Reporter, time_left
from palestra.pipeline.sampling import make_begin
from palestra.pipeline.workshop import Workshop
from palestra.policy import Policy
from palestra.tasks import TaskWeights
from palestra.training import (
    Controls,
    LoopParts,
    LoopSettings,
    best_checkpoint,
    newest_state,
    train_online,
    validation_scores,
)
from palestra.types import Task, TrajectoryGroup

Report = Callable[[int, int, dict[str, float]], None]


def gate(workshop: Workshop) -> dict[str, Any]:
    """May reinforcement learning start? Format first; then whether any attempt of a group succeeds."""
    config = workshop.config
    loaded = load_stage(workshop.run, "sft", config)
    tasks = workshop.held_out_tasks("validation", config.gate.tasks)
    groups = workshop.play(
        loaded.policy("sft", config.rl.temperature), tasks, config.rl.group_size, stage="gate", seed=1
    )
    workshop.run.write_groups("gate", "attempts", groups)
    report = evaluate_groups(groups)
    size = config.rl.group_size
    reached = [pass_at_k(size, sum(bool(t.success) for t in group.trajectories), size) for group in groups]
    at_size = sum(value or 0.0 for value in reached) / len(reached)
    compliance, success = report.format_compliance or 0.0, report.success or 0.0
    workshop.reporter.line(
        f"  format compliance {compliance:.1%}, success at 1 {success:.1%}, at {size} {at_size:.1%}"
    )
    _refuse_unready(config.gate, compliance, at_size, size)
    return {"format_compliance": compliance, "success_at_1": success, f"success_at_{size}": at_size}


def _refuse_unready(needed: GateConfig, compliance: float, at_size: float, size: int) -> None:
    if compliance < needed.min_format_compliance:
        raise GateFailed(
            f"Format compliance is {compliance:.1%}, under {needed.min_format_compliance:.0%}: reinforcement "
            "learning would mostly see errors. Fix the data first: more demonstrations (collect.tasks), "
            "another epoch (sft.epochs), or look at what the policy writes: it is in trajectories/gate."
        )
    if at_size < needed.min_success_at_group:
        raise GateFailed(
            f"An attempt out of {size} succeeds on only {at_size:.1%} of the validation tasks, under "
            f"{needed.min_success_at_group:.0%}: most groups would be without spread. Collect more "
            "demonstrations (collect.tasks) or start at a lower world.difficulty."
        )


def reinforce(workshop: Workshop) -> dict[str, Any]:
    """Online reinforcement learning on fresh training tasks."""
    config = workshop.config

    curriculum = Curriculum(config.curriculum)

    def pick(update: int) -> list[Task]:
        return workshop.train_tasks(config.rl.tasks_per_update, f"rl:{update}", curriculum.difficulty)

    loaded = load_learning(workshop.run, "sft", config)
    return _train(workshop, "rl", config.rl.updates, loaded, pick, curriculum)


def mine(workshop: Workshop) -> dict[str, Any]:
    """Hard-example rounds: measure a pool, imitate the teacher where it failed, train on draws by failure."""
    config, result = workshop.config, dict[str, Any]()
    for number in range(1, config.mine.rounds + 1):
        stage = f"mine{number}"
        loaded = load_learning(workshop.run, final_stage(workshop, before=stage), config)
        pool = workshop.train_tasks(config.mine.tasks, stage)
        measured = workshop.play(
            loaded.policy("rl", config.rl.temperature),
            pool,
            config.mine.attempts,
            stage=f"{stage}-pool",
            seed=2,
        )
        workshop.run.write_groups(f"{stage}-pool", "attempts", measured)
        measured, bad = quarantine(measured)
        _say_quarantine(workshop.reporter, bad)
        weights = TaskWeights([group.task for group in measured])
        weigh(weights, measured)
        hard = [group for group in measured if any(t.success is False for t in group.trajectories)]
        workshop.reporter.line(
            f"  round {number}: {len(hard)} of {len(measured)} training tasks fail at least once"
        )
        _learn_from_teacher(workshop, loaded, measured, hard, stage)

        def pick(update: int, weights: TaskWeights = weights, stage: str = stage) -> list[Task]:
            return workshop.draw_weighted(weights, config.rl.tasks_per_update, f"{stage}:{update}")

        curriculum = Curriculum(weights=weights)
        trained = _train(workshop, stage, config.mine.updates, loaded, pick, curriculum)
        result[stage] = trained | {"hard_tasks": len(hard), "quarantined": [task.id for task in bad]}
    return result


def _say_quarantine(reporter: Reporter, tasks: Sequence[Task]) -> None:
    if tasks:
        named = ", ".join(task.id for task in tasks[:3]) + (" ..." if len(tasks) > 3 else "")
        reporter.line(f"  {len(tasks)} tasks in quarantine: their world fails in every attempt: {named}")


def _learn_from_teacher(
    workshop: Workshop,
    loaded: LoadedPolicy,
    measured: Sequence[TrajectoryGroup],
    hard: Sequence[TrajectoryGroup],
    stage: str,
) -> None:
    """Imitate what the teacher can show on the hard tasks.

    The policy's own successes are mixed in, one a task, so that what it can do is not forgotten over it.
    """
    attempts = workshop.config.mine.teacher_attempts
    tasks = [group.task for group in hard]
    shown = demonstrate(workshop, tasks, attempts, f"{stage}-teacher")[1] if tasks and attempts else []
    if not shown:
        return
    kept = [
        replace(group, trajectories=successes[:1])
        for group in measured
        if (successes := tuple(t for t in group.trajectories if t.success))
    ]
    workshop.reporter.line(f"  beside {len(kept)} of the policy's own successes")
    rate = workshop.config.rl.learning_rate
    imitate_groups(workshop, loaded, [*shown, *kept], f"{stage}-sft", epochs=1, rate=rate)


def final_stage(workshop: Workshop, before: str = "") -> str:
    """The stage that left the run's trained policy: the best on validation, the later of equals.

    A hard-example round can cost more elsewhere than it gains; then the policy before it is kept. Where
    nothing was validated it is the last stage's. With ``before`` only stages that ran earlier than it count.
    """
    rounds = range(1, workshop.config.mine.rounds + 1)
    order = ["sft", "rl", *(f"mine{number}" for number in rounds), "dpo"]
    earlier = order[: order.index(before)] if before else order
    best = {stage: best_checkpoint(workshop.run.path / "checkpoints" / stage) for stage in earlier}
    scores = {stage: score for stage, path in best.items() if path and (score := validation_scores(path))}
    unmeasured = [stage for stage, path in best.items() if path] or ["sft"]
    return max(reversed(scores), key=scores.__getitem__) if scores else unmeasured[-1]


def _controls(workshop: Workshop, stage: str) -> Controls:
    """A round goes on where the one before it ended, whichever of their checkpoints it starts from."""
    controls = make_controls(workshop.config)
    order = ["rl", *(f"mine{number}" for number in range(1, workshop.config.mine.rounds + 1))]
    for earlier in reversed(order[: order.index(stage)]):
        state = newest_state(workshop.run.path / "checkpoints" / earlier)
        if state is not None:
            controls.load(state["controls"])
            controls.forget_rewards()
            break
    return controls


def _train(
    workshop: Workshop,
    stage: str,
    updates: int,
    loaded: LoadedPolicy,
    pick: Callable[[int], list[Task]],
    curriculum: Curriculum,
) -> dict[str, Any]:
    rl = workshop.config.rl
    validation = workshop.held_out_tasks("validation", rl.validation_tasks)

    def validate(update: int) -> dict[str, float]:
        return validated(workshop, loaded.policy("rl", 0.0, loaded.version + update), validation, stage)

    critic = make_critic(loaded)
    controls = _controls(workshop, stage)
    train_online(
        loop_settings(loaded, stage, updates),
        LoopParts(
            run=workshop.run,
            learner=loaded.rl_learner(),
            engine=loaded.engine,
            template=loaded.template,
            reference=load_reference(workshop.run, loaded),
            make_rows=make_rows(workshop.config, critic, controls),
            critic=critic,
            make_loss=make_loss(workshop.config),
            controls=controls,
            begin=make_begin(
                workshop, lambda version: loaded.policy("rl", rl.temperature, version), curriculum
            ),
            pick_tasks=pick,
            curriculum=curriculum,
            validate=validate,
            watch=Watch(
                workshop.run, stage, workshop.config.rubric.weights, partial(sound, workshop.reporter)
            ),
            guards=Guards(rl.guards, rl.validate_every),
            note=partial(say_change, workshop.reporter),
            report=line_reporter(workshop.reporter, stage),
        ),
    )
    return {"updates": updates}


def validated(workshop: Workshop, policy: Policy, tasks: Sequence[Task], stage: str) -> dict[str, float]:
    """How a policy does on validation tasks; what could not be measured is left out."""
    report = evaluate_groups(workshop.play(policy, tasks, 1, stage=f"{stage} validation"))
    values = {
        "validation/success": report.success,
        "validation/reward": report.reward,
        "validation/turns": report.turns,
    }
    return {name: value for name, value in values.items() if value is not None}


def loop_settings(loaded: LoadedPolicy, stage: str, updates: int) -> LoopSettings:
    """The configured numbers of a stage that starts from a loaded policy."""
    rl, loss = loaded.config.rl, loaded.config.loss
    return LoopSettings(
        stage=stage,
        first_version=loaded.version,
        updates=updates,
        group_size=rl.group_size,
        first_rate=rl.learning_rate,
        last_rate=rl.final_learning_rate,
        minibatches=rl.minibatches,
        epochs=rl.epochs,
        kl_in_reward=loss.kl_in == "reward",
        recompute=loss.mismatch_cap is not None,
        max_policy_lag=rl.max_policy_lag,
        ahead=rl.max_policy_lag,
        checkpoint_every=rl.validate_every,
        seed=loaded.config.seed,
    )


def sound(reporter: Reporter, alarm: Alarm) -> None:
    """Say an alarm aloud."""
    text = f"{alarm.symptom}: {escape(alarm.evidence)}. Likely {alarm.cause}. Try: {alarm.remedy}."
    reporter.line(f"  [bold]alarm[/] {text}")


def say_change(reporter: Reporter, change: Change) -> None:
    """Say aloud that a setting was changed."""
    reporter.line(
        f"  [bold]changed[/] {change.setting} {change.before:g} -> {change.after:g}, {escape(change.reason)}"
    )


def line_reporter(reporter: Reporter, stage: str) -> Report:
    """Prints a line for each update of a stage."""
    started = time.perf_counter()
    first: list[int] = []

    def report(update: int, total: int, metrics: dict[str, float]) -> None:
        first.append(update)
        done = update - first[0] + 1
        shown = {
            "success": metrics.get("success/mean"),
            "reward": metrics.get("reward/mean"),
            "turns": metrics.get("turns/mean"),
            "entropy": metrics.get("policy/entropy"),
            "kl": metrics.get("policy/kl_reference"),
            "no spread": metrics.get("groups/zero_spread"),
            "excluded": metrics.get("episodes/excluded") or None,
            "validation": metrics.get("validation/success"),
        }
        text = " · ".join(f"{name} {value:.3f}" for name, value in shown.items() if value is not None)
        speed = (
            f"{metrics['tokens_per_second/rollout']:,.0f} tok/s rollout, "
            f"{metrics['tokens_per_second/update']:,.0f} update"
        )
        left = time_left(done, total - first[0] + 1, started)
        reporter.line(f"  {stage} {update}/{total} {text} · {speed} · {left} left")

    return report
