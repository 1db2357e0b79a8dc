"""What the stages of a run share: its folder, configuration, worlds, tasks, rubric and reporting.

Stages talk through the run folder only; this object holds no results, so any stage can be the first one
a resumed process executes.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from palestra.envs import FaultSchedule, IsolatedWorlds, ToolEnv, make_env, run_oracle
from palestra.errors import ConfigError, name_hint
from palestra.pipeline.config import RubricConfig, RunConfig, WorldConfig
from palestra.pipeline.progress import Reporter
from palestra.policy import Policy, ScriptedPolicy, check_model_name
from palestra.rewards import Rubric, preference
from palestra.rollout import Limits, Rollout, collect_groups
from palestra.store import RunFolder
from palestra.tasks import GeneratedTasks, TaskWeights
from palestra.types import Split, StopReason, Task, Trajectory, TrajectoryGroup

if TYPE_CHECKING:
    from palestra.pipeline.players import Players

Judge = Callable[[Trajectory], float | None]
"""A reward model as a function: from an attempt to a number from 0 to 1, or None where it cannot be read."""
_SEEN_FOR_KINDS = 300
"""Tasks among which a kind must occur to be known."""
PREFLIGHT_TASKS = 8
"""Tasks whose oracle must succeed before a run starts."""


def make_world(world: WorldConfig) -> ToolEnv[Any]:
    """A fresh world as configured.

    Raises:
        ConfigError: it is not one that the pipeline can train in.
    """
    made = make_env(world.name, **_world_options(world))
    if not isinstance(made, ToolEnv):
        raise ConfigError(
            f"world {world.name!r} is no ToolEnv; the pipeline needs tasks, tools and an oracle"
        )
    return made


def episode_worlds(world: WorldConfig) -> Callable[[], Any]:
    """What makes the worlds that episodes are played in; other processes can be sent it."""
    if world.isolation is None:
        return partial(make_world, world)
    limits = world.isolation
    return IsolatedWorlds(world.name, _world_options(world), limits.step_seconds, limits.memory_mb)


def _world_options(world: WorldConfig) -> dict[str, Any]:
    options: dict[str, Any] = {
        "action_format": world.action_format,
        "require_reasoning": world.require_reasoning,
    }
    if world.difficulty is not None:
        options["difficulty"] = world.difficulty
    if world.changed_surface:
        options["changed_surface"] = True
    if world.tools == "schemas":
        options["tool_schemas"] = True
    if world.faults is not None:
        options["faults"] = FaultSchedule(world.faults.kinds, world.faults.rate, world.faults.most)
    return options


def make_rubric(section: RubricConfig, judge: Judge | None) -> Rubric:
    """The rubric as configured; without its ``judge`` a reward model's part stays unscored.

    Raises:
        ConfigError: an unknown part, no part at all, or scales too far apart.
    """
    parts = [preference(judge or unscored)] if section.reward_model else []
    return Rubric(section.weights, extra_parts=parts, allow_uneven_scales=section.allow_uneven_scales)


def unscored(_: Trajectory) -> None:
    """The judge that knows nothing."""


@dataclass(frozen=True)
class Workshop:
    """The shared parts of one run."""

    run: RunFolder
    config: RunConfig
    reporter: Reporter
    players: Players | None = None
    """Processes that a model's episodes are shared out to; None to play them all in this one."""
    judge: Judge | None = None
    """The configured reward model; None where there is none, or nothing is to be played."""

    def make_world(self) -> ToolEnv[Any]:
        """A fresh world as configured."""
        return make_world(self.config.world)

    @cached_property
    def tasks(self) -> GeneratedTasks:
        """The world's task source, without the kinds that are held out."""
        return self._source(self.make_world().make_task)

    @cached_property
    def held_out_kinds(self) -> GeneratedTasks | None:
        """Tasks of the kinds that are held out; None if there are none."""
        held = self.config.world.hold_out
        return GeneratedTasks(self.make_world().make_task, keep=lambda t: _kind(t) in held) if held else None

    def _source(self, make_task: Callable[[int, Split], Task]) -> GeneratedTasks:
        held = self.config.world.hold_out
        return GeneratedTasks(make_task, keep=(lambda t: _kind(t) not in held) if held else None)

    @cached_property
    def rubric(self) -> Rubric:
        """The configured reward."""
        if self.config.rubric.reward_model and self.judge is None:
            raise ConfigError("rubric.reward_model is set, and nothing loaded it: use load_judge()")
        return make_rubric(self.config.rubric, self.judge)

    def rollout(self, policy: Policy, max_turns: int | None = None) -> Rollout:
        """How ``policy`` is played in this run; ``max_turns`` replaces the configured limit."""
        section = self.config.rollout
        limits = Limits(
            max_turns=section.max_turns if max_turns is None else max_turns,
            max_action_tokens=section.max_action_tokens,
            max_repeats=section.max_repeats,
            max_invalid=section.max_invalid,
            max_seconds=section.max_seconds,
        )
        make = episode_worlds(self.config.world)
        return Rollout(make, policy, self.rubric, limits, concurrency=section.concurrency)

    def collect(
        self,
        policy: Policy,
        tasks: Sequence[Task],
        attempts: int,
        *,
        stage: str,
        seed: int,
        max_turns: int | None = None,
        progress: Callable[[StopReason], None] = lambda _: None,
    ) -> list[TrajectoryGroup]:
        """``collect_groups`` for this run; a model plays in every process, a script in this one."""
        play: Callable[..., list[TrajectoryGroup]] = collect_groups
        if self.players is not None and not isinstance(policy, ScriptedPolicy):
            play = self.players.collect
        rollout = self.rollout(policy, max_turns)
        return play(rollout, tasks, attempts, stage=stage, seed=seed, progress=progress)

    def play(
        self, policy: Policy, tasks: Sequence[Task], attempts: int, *, stage: str, seed: int = 0
    ) -> list[TrajectoryGroup]:
        """Play with a progress bar; the seed is the run's, shifted by ``seed``."""
        seed += self.config.seed * 1_000_003
        with self.reporter.bar(stage, len(tasks) * attempts, "episodes") as bar:
            return self.collect(policy, tasks, attempts, stage=stage, seed=seed, progress=bar.advance)

    def train_tasks(self, count: int, purpose: str, difficulty: int | None = None) -> list[Task]:
        """Training tasks drawn for a purpose, the same each time; of another level if one is given."""
        source = self.tasks
        if difficulty is not None:
            source = self._source(partial(self.make_world().make_task, difficulty=difficulty))
        return source.sample("train", count, random.Random(f"tasks:{self.config.seed}:{purpose}"))

    def draw_weighted(self, weights: TaskWeights, count: int, purpose: str) -> list[Task]:
        """Different tasks drawn by weight for a purpose."""
        rng = random.Random(f"draw:{self.config.seed}:{purpose}")
        drawn: dict[str, Task] = {}
        while len(drawn) < min(count, weights.size):
            task = weights.next(rng)
            drawn[task.id] = task
        return list(drawn.values())

    def held_out_tasks(self, split: Split, count: int) -> list[Task]:
        """The first tasks of a split that are no copies of a training task.

        Validation keeps clear of the demonstrations, which are there before it and never change; the test
        keeps clear of everything the run ever trained on.
        """
        return self.tasks.take(split, count, exclude=self._trained_on(split))

    def preflight(self) -> None:
        """Refuse a run that cannot learn, before anything is spent.

        Raises:
            ConfigError: the curriculum has a level that the world has not, or a kind of task is held out that
                it has not.
            UnsolvableTask: the verifier is false for the oracle's own solution; names the task.
            WorldError: the world has no oracle to make a teacher of.
        """
        world = self.make_world()
        _check_kinds(world, self.config.world.hold_out)
        for task in self.tasks.take("train", PREFLIGHT_TASKS):
            run_oracle(world, task)
        for level in self.config.curriculum.difficulty:
            run_oracle(world, world.make_task(0, difficulty=level))
        make_rubric(self.config.rubric, None)
        judge = self.config.rubric.reward_model
        if judge is not None and not Path(judge, "reward_model.json").is_file():
            raise ConfigError(
                f"rubric.reward_model is {judge!r}, where there is no reward_model.json: make one with "
                "`palestra reward-model`"
            )
        check_model_name(self.config.policy.model)

    def _trained_on(self, split: Split) -> set[str]:
        stages = ["collect"]
        if split == "test":
            stages = [s for s in self.run.trajectory_stages() if not s.startswith(("eval", "gate"))]
        return {group.task.content_hash for stage in stages for group in self.run.read_groups(stage)}


def _kind(task: Task) -> str | None:
    return task.data.get("kind")


def _check_kinds(world: ToolEnv[Any], held: Sequence[str]) -> None:
    if not held:
        return
    found = {_kind(world.make_task(seed)) for seed in range(_SEEN_FOR_KINDS)}
    known = sorted(kind for kind in found if kind is not None)
    if not known:
        raise ConfigError(f"world.hold_out: tasks of {world.name} have no kind; see `kind_field` of ToolEnv")
    for kind in held:
        if kind not in known:
            raise ConfigError(
                f"world.hold_out: no task of {world.name} is {kind!r}. {name_hint(kind, known)}"
            )
    if found <= set(held):
        raise ConfigError("world.hold_out: nothing is left to train on; leave a kind out of the list")


Stage = Callable[[Workshop], dict[str, Any]]
"""A stage reads and writes the run folder and returns a small result."""
