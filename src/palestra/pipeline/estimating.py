"""What an update will cost: tokens, memory by part and time, from a few seconds of measuring this machine.

The teacher plays a handful of tasks, which tells how long episodes are. The engine then samples as many
tokens turn by turn, and the learner takes one step on those rows. The surprising choice: speed is not worked
out from sizes; what was run is multiplied by the number of episodes.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from palestra.pipeline.collecting import make_teacher
from palestra.pipeline.config import RunConfig
from palestra.pipeline.learning_parts import configured_algorithm
from palestra.pipeline.model_parts import LoadedPolicy, context_window, load_start
from palestra.pipeline.players import peak_memory_mb
from palestra.pipeline.workshop import Workshop
from palestra.policy import SamplingParams
from palestra.policy.local import LocalEngine
from palestra.policy.models import weight_count
from palestra.training import imitation_loss, make_segments, tokenize_trajectory
from palestra.types import Segment, Trajectory

_TASKS = 16
_MOST_ROWS = 16
"""Episodes that are sampled and learned from while measuring."""
_MB = 2**20


@dataclass(frozen=True)
class Estimate:
    """The cost of an update."""

    parameters: int
    trained: int
    episodes: int
    turns: float
    """Of an episode, as the teacher plays; a policy in training takes about as many or more."""
    prompt_tokens: float
    sampled_tokens: float
    row_tokens: float
    """Of an episode: prompt, actions and replies."""
    memory_mb: dict[str, float]
    """By part; what is only ever touched as far as it fills says ``at most``."""
    peak_mb: float
    """Of this process while it was measured."""
    rollout_speed: float
    """Sampled tokens a second, prompts and replies read on the way."""
    learning_speed: float
    """Row tokens a second, forward, backward and step."""

    @property
    def rollout_seconds(self) -> float:
        """Of an update's episodes, without the world's own time."""
        return self.episodes * self.sampled_tokens / self.rollout_speed

    @property
    def learning_seconds(self) -> float:
        """Of one pass over them."""
        return self.episodes * self.row_tokens / self.learning_speed


def estimate(workshop: Workshop) -> Estimate:
    """Measure; takes some seconds for a small model.

    Raises:
        ConfigError: the policy cannot be loaded, or an episode does not fit its context.
        WorldError: the world has no oracle to make a teacher of.
    """
    config = workshop.config
    loaded = load_start(
        config.model_copy(update={"policy": config.policy.model_copy(update={"server": None})})
    )
    played = _teacher_episodes(workshop, loaded)
    rows = [row for each in played for row in make_segments(each, [1.0] * len(each.turns))]
    few = played[:_MOST_ROWS]
    return Estimate(
        parameters=weight_count(loaded.model),
        trained=sum(p.numel() for p in loaded.model.parameters() if p.requires_grad),
        episodes=config.rl.tasks_per_update * config.rl.group_size,
        turns=_mean([len(each.turns) for each in played]),
        prompt_tokens=_mean([len(each.prompt_ids) for each in played]),
        sampled_tokens=_mean([sum(len(turn.action_ids) for turn in each.turns) for each in played]),
        row_tokens=sum(len(row.ids) for row in rows) / len(played),
        memory_mb=memory_by_part(loaded.model, config),
        rollout_speed=_rollout_speed(loaded, few),
        learning_speed=_learning_speed(loaded, [row for row in rows if row.trajectory_id in _ids(few)]),
        peak_mb=peak_memory_mb(),
    )


def memory_by_part(model: Any, config: RunConfig) -> dict[str, float]:
    """Megabytes of what a run holds at once, beside libraries and one micro-batch's activations."""
    total = sum(p.numel() * p.element_size() for p in model.parameters())
    trained = sum(p.numel() * p.element_size() for p in model.parameters() if p.requires_grad)
    matrices = sum(
        p.numel() * p.element_size()
        for name, p in model.named_parameters()
        if p.requires_grad and p.ndim == 2 and ".layers." in name
    )
    moments = 2 * trained - (matrices if config.rl.optimizer == "muon" else 0)
    parts = {"weights": total, "gradients": trained, "optimiser": moments}
    if config.loss.kl_weight and config.policy.lora is None:
        parts["reference policy"] = total
    if configured_algorithm(config).critic is not None:
        parts["critic, with gradients and moments"] = total + 3 * trained
    if config.policy.server is None:
        slots, tokens = config.rollout.concurrency, config.policy.context_tokens
        engine = LocalEngine(model, 0, slots=slots, context_tokens=tokens)
        parts["keys and values of episodes, at most"] = engine.cache_bytes
    return {name: size / _MB for name, size in parts.items()}


def _teacher_episodes(workshop: Workshop, loaded: LoadedPolicy) -> list[Trajectory]:
    scripted = workshop.config.collect.model_copy(update={"teacher": None})
    teacher = make_teacher(workshop.config.model_copy(update={"collect": scripted}))
    groups = workshop.collect(teacher, workshop.train_tasks(_TASKS, "plan"), 1, stage="plan", seed=0)
    window = context_window(workshop.config.policy)
    return [
        tokenize_trajectory(trajectory, loaded.template, window)
        for group in groups
        for trajectory in group.trajectories
        if trajectory.turns
    ]


def _rollout_speed(loaded: LoadedPolicy, played: Sequence[Trajectory]) -> float:
    """Sample as the episodes went: as many tokens an action, and the replies that came."""
    config = loaded.config
    engine = LocalEngine(
        loaded.model, -1, slots=config.rollout.concurrency, context_tokens=config.policy.context_tokens
    )

    async def episode(number: int, each: Trajectory) -> int:
        ids, count = list(each.prompt_ids), 0
        for turn in each.turns:
            ids = list(turn.prompt_ids) or ids
            most = min(len(turn.action_ids), config.policy.context_tokens - len(ids))
            if most < 1:
                break
            await engine.generate(ids, SamplingParams(most, 1.0, number), str(number))
            ids += turn.action_ids + turn.observation_ids
            count += most
        return count

    async def all_of_them() -> int:
        return sum(await asyncio.gather(*(episode(n, each) for n, each in enumerate(played))))

    asyncio.run(_warm_up(engine, played[0]))
    began = time.perf_counter()
    sampled = asyncio.run(all_of_them())
    return sampled / (time.perf_counter() - began)


async def _warm_up(engine: LocalEngine, first: Trajectory) -> None:
    await engine.generate(first.prompt_ids[:32], SamplingParams(2), "warm")
    engine.release("warm")


def _learning_speed(loaded: LoadedPolicy, rows: Sequence[Segment]) -> float:
    learner = loaded.rl_learner()
    rows = [replace(row, advantages=tuple(map(float, row.action_mask))) for row in rows]
    learner.update(rows[:1], imitation_loss, 0.0)
    began = time.perf_counter()
    learner.update(rows, imitation_loss, 0.0)
    return sum(len(row.ids) for row in rows) / (time.perf_counter() - began)


def _ids(played: Sequence[Trajectory]) -> set[str]:
    return {each.id for each in played}


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def free_memory_mb() -> float | None:
    """What the machine can still give; None where it does not say."""
    if torch.cuda.is_available():
        return torch.cuda.mem_get_info()[0] / _MB
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            found = next(line for line in file if line.startswith("MemAvailable"))
    except (OSError, StopIteration):
        return None
    return int(found.split()[1]) / 1024
