"""Reinforcement learning of a program that is not ours: it plays and rewards, the server's policy learns.

The run folder is that of any training: metrics, trajectories, alarms and checkpoints are where ``report``,
``doctor`` and ``--resume`` look for them. The surprising choice: the learner has a thread of its own beside
the server's event loop, and the two never compute at once: the desk is closed while the weights change.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from palestra.errors import ConfigError
from palestra.monitor import Guards, Watch
from palestra.pipeline import Reporter
from palestra.pipeline.config import RunConfig
from palestra.pipeline.curriculum import Curriculum
from palestra.pipeline.learning import line_reporter, loop_settings, say_change, sound
from palestra.pipeline.learning_parts import make_controls, make_loss, make_rows
from palestra.pipeline.model_parts import (
    LoadedPolicy,
    load_learning,
    load_reference,
    load_start,
    make_critic,
)
from palestra.serving.captured import PART
from palestra.serving.desk import Desk
from palestra.store import RunFolder
from palestra.training import LoopParts, Sampled, best_checkpoint, save_checkpoint, timed, train_online
from palestra.types import Task

Result = TypeVar("Result")
STAGE = "rl"


def prepare(run: RunFolder, config: RunConfig) -> LoadedPolicy:
    """The policy that learns; a new run keeps the one it starts from as its SFT policy."""
    if config.rl.algorithm == "gigpo":
        raise ConfigError(
            "gigpo compares equal states of the world, and of an outside program's nothing is known"
        )
    folder = run.path / "checkpoints" / "sft"
    if best_checkpoint(folder) is None:
        start = load_start(config)
        save_checkpoint(folder / "step-1", start.learner(), start.template, {"version": 0})
    return load_learning(run, "sft", config)


def learn(
    run: RunFolder, loaded: LoadedPolicy, desk: Desk, loop: asyncio.AbstractEventLoop, reporter: Reporter
) -> None:
    """Learn from what comes to ``desk`` until the configured updates are done; goes on where it stopped.

    Args:
        run: the folder.
        loaded: from ``prepare``.
        desk: over the engine of ``loaded``.
        loop: the server's, which runs in another thread.
        reporter: says what happens.

    Raises:
        GateFailed: a gradient is not finite and no guard is set for it.
        TrainingPaused: a guard stopped the run.
        CancelledError: the server has ended.
    """
    config = loaded.config
    critic, controls = make_critic(loaded), make_controls(config)

    def begin(
        version: int, tasks: Sequence[Task], attempts: int, name: str, seed: int
    ) -> Callable[[], Sampled]:
        gather = partial(desk.gather, config.rl.tasks_per_update, version, name)
        return partial(timed, partial(_in, loop, gather))

    train_online(
        replace(loop_settings(loaded, STAGE, config.rl.updates), ahead=0),  # the program plays when it likes
        LoopParts(
            run=run,
            learner=loaded.rl_learner(),
            engine=loaded.engine,
            template=loaded.template,
            reference=load_reference(run, loaded),
            make_rows=make_rows(config, critic, controls),
            critic=critic,
            make_loss=make_loss(config),
            controls=controls,
            begin=begin,
            pick_tasks=lambda update: [],
            curriculum=Curriculum(config.curriculum),
            validate=lambda update: {},
            watch=Watch(run, STAGE, {PART: 1.0}, partial(sound, reporter)),
            guards=Guards(config.rl.guards, config.rl.validate_every),
            note=partial(say_change, reporter),
            report=line_reporter(reporter, STAGE),
        ),
    )
    run.finish_stage(STAGE, {"updates": config.rl.updates})


def _in(loop: asyncio.AbstractEventLoop, make: Callable[[], Coroutine[Any, Any, Result]]) -> Result:
    """What a coroutine comes to in the server's loop."""
    return asyncio.run_coroutine_threadsafe(make(), loop).result()
