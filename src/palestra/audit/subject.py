"""A world under audit: how its tasks are begun, played by scripts and paid.

Any gymnasium environment with text actions will do. One that is a ``ToolEnv`` is paid by a rubric, as in
training; any other by the sum of what its steps return. Whatever a world raises becomes ``WorldFailed`` with
what was being done, so that the audit can report it and go on.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial
from itertools import islice
from typing import Any

import gymnasium

from palestra.audit.findings import Attempt, Step
from palestra.audit.watchdog import STEP_SECONDS, TookTooLong, deadline
from palestra.envs import ToolEnv
from palestra.envs.toolenv import MAX_ORACLE_TURNS
from palestra.rewards import Rubric
from palestra.types import Facts, StopReason, Task, ToolCall, ToolSpec, Trajectory, Turn

MakeWorld = Callable[[], gymnasium.Env[str, str]]
_FACTS = {each.name for each in fields(Facts)}
_PATIENCE = 3
"""Answers that may stay away before the audit gives up."""


class WorldFailed(Exception):
    """The world raised something; the text says what and when."""


class WorldHangs(WorldFailed):
    """The world does not answer."""


@dataclass(frozen=True)
class Start:
    """Where an episode begins."""

    seed: int
    task: Task | None
    """None where the world has no tasks, and the seed says all."""

    @property
    def name(self) -> str:
        """The task's id, or the seed."""
        return self.task.id if self.task else f"seed {self.seed}"


@dataclass
class View:
    """What a script sees of an episode."""

    world: gymnasium.Env[str, str]
    prompt: str
    rng: random.Random
    actions: list[str] = field(default_factory=list)
    observations: list[str] = field(default_factory=list)
    refused: bool = False
    """Whether the last action was no valid call."""
    solved: bool = False
    """Whether the world says that the last action succeeded."""


Script = Callable[[View], Iterator[str]]
"""Actions one by one; between them the view holds what was answered."""


class Subject:
    """The world under audit."""

    def __init__(self, make: MakeWorld, rubric: Rubric, *, tasks: int, max_turns: int) -> None:
        """Make a first world and its tasks.

        Args:
            make: a fresh world at each call.
            rubric: pays the attempts in a ``ToolEnv``.
            tasks: how many tasks are played.
            max_turns: most actions of an attempt.

        Raises:
            WorldFailed: there is no world, or it makes no tasks.
        """
        self.make, self.rubric, self.max_turns = make, rubric, max_turns
        self.failures: list[Attempt] = []
        """Attempts in which the world raised, or gave no answer."""
        self._hung = 0
        self.world = attempted(make, "making the world")
        self.starts = [self.start(seed) for seed in range(tasks)]

    @property
    def tool_env(self) -> ToolEnv[Any] | None:
        """The world, if it has tools, tasks and a verifier."""
        return self.world if isinstance(self.world, ToolEnv) else None

    @property
    def has_oracle(self) -> bool:
        """Whether the world can show solutions."""
        return self.tool_env is not None and self.tool_env.has_oracle

    @property
    def tools(self) -> Mapping[str, ToolSpec]:
        """The declared tools; none where the world has text actions only."""
        return self.tool_env.tools if self.tool_env else {}

    def start(self, seed: int, difficulty: int | None = None) -> Start:
        """The beginning that a seed stands for."""
        world = self.tool_env
        if world is None:
            return Start(seed, None)
        return Start(
            seed, attempted(lambda: world.make_task(seed, difficulty=difficulty), f"making task {seed}")
        )

    def open(self, start: Start, world: gymnasium.Env[str, str] | None = None) -> View:
        """Begin an episode in a fresh world, or in ``world``."""
        used = world or attempted(self.make, "making a world")
        options = {"task": start.task} if start.task else None
        prompt, _ = attempted(lambda: used.reset(seed=start.seed, options=options), f"reset to {start.name}")
        return View(used, prompt, random.Random(f"audit:{start.seed}"))

    def play(
        self,
        start: Start,
        script: Script,
        *,
        max_turns: int | None = None,
        world: gymnasium.Env[str, str] | None = None,
    ) -> Attempt:
        """Play a script to its end, the world's, or the turn limit; what the world raises ends it too.

        Raises:
            WorldFailed: it cannot be begun.
            WorldHangs: no answer came, for the third time.
        """
        view = self.open(start, world)
        recorder = Recorder(self, start, view)
        try:
            for action in islice(script(view), max_turns or self.max_turns):
                recorder.step(action)
                if recorder.ended:
                    break
        except WorldFailed as failure:
            attempt = replace(recorder.attempt(), failed=str(failure), success=False, total=0.0)
            self.failures.append(attempt)
            self._lose_patience(failure)
            return attempt
        return recorder.attempt()

    def _lose_patience(self, failure: WorldFailed) -> None:
        self._hung += isinstance(failure, WorldHangs)
        if self._hung == _PATIENCE:
            raise failure

    def solve(self, start: Start) -> Attempt:
        """The oracle's attempt; one that cannot even be begun has failed."""
        try:
            return self.play(start, oracle, max_turns=MAX_ORACLE_TURNS)
        except WorldHangs:
            raise
        except WorldFailed as failure:
            failed = Attempt(start.seed, start.name, (), 0.0, False, False, failed=str(failure))
            self.failures.append(failed)
            return failed

    def text(self, call: ToolCall) -> str:
        """A call as this world reads it."""
        world = self.tool_env
        return world.action_text(call) if world else ""


class Recorder:
    """An episode as it goes on."""

    def __init__(self, subject: Subject, start: Start, view: View) -> None:
        """Record what is done in ``view``."""
        self._subject, self._start, self.view = subject, start, view
        self._steps: list[Step] = []
        self._turns: list[Turn] = []
        self._says_success = False
        self.ended = False

    def step(self, action: str) -> None:
        """Take an action.

        Raises:
            WorldFailed: the world raised, or answered with something that is no step.
        """
        world = self.view.world
        doing = f"{self._start.name}, action {len(self._steps) + 1}: {action[:80]!r}"
        answer = attempted(lambda: world.step(action), doing)
        try:
            observation, paid, terminated, truncated, info = answer
            reward = float(paid)
            known = {name: info[name] for name in _FACTS if name in info}
        except (TypeError, ValueError) as error:
            raise WorldFailed(f"{doing}: step returned {str(answer)[:200]}, which is no step") from error
        if not math.isfinite(reward):
            raise WorldFailed(f"{doing}: the reward is {reward}")
        if "success" in known and not isinstance(known["success"], bool | int):
            raise WorldFailed(f"{doing}: success is {known['success']!r}, not true or false")
        if not isinstance(observation, str):
            raise WorldFailed(f"{doing}: the observation is a {type(observation).__name__}, not text")
        self._says_success = self._says_success or "success" in known
        known.setdefault("success", bool(terminated) and reward > 0)
        self.view.actions.append(action)
        self.view.observations.append(observation)
        self.view.refused, self.view.solved = not known.get("valid", True), bool(known["success"])
        self._steps.append(Step(action, observation, reward))
        self._turns.append(Turn(action, observation, Facts(**known), env_reward=reward))
        self.ended = bool(terminated or truncated)

    def attempt(self) -> Attempt:
        """What it came to, if it ended here."""
        start, turns = self._start, tuple(self._turns)
        success = turns[-1].facts.success if turns else False
        total, parts = sum(step.reward for step in self._steps), tuple[tuple[str, float | None], ...]()
        if start.task is not None and turns:
            scored = self._subject.rubric.score(
                Trajectory(
                    id="audit",
                    task=start.task,
                    prompt=(),
                    turns=turns,
                    stop_reason=StopReason.terminated if self.ended else StopReason.max_turns,
                    success=success,
                    milestones=tuple(self._subject.tool_env.milestones) if self._subject.tool_env else (),
                )
            )
            total, parts = scored.reward or 0.0, tuple(scored.reward_parts.items())
        return Attempt(
            seed=start.seed,
            task=start.name,
            steps=tuple(self._steps),
            total=total,
            success=success if self._says_success or success else (None if start.task is None else False),
            ended=self.ended,
            milestones=tuple(turn.facts.new_milestones for turn in turns),
            parts=parts,
            hashes=tuple(turn.facts.state_hash for turn in turns),
        )


def attempted(do: Callable[[], Any], doing: str) -> Any:
    """What ``do`` returns.

    Raises:
        WorldFailed: it raised, whatever that was.
        WorldHangs: it did not come back.
    """
    try:
        with deadline(STEP_SECONDS):
            return do()
    except TookTooLong:
        raise WorldHangs(f"{doing}: no answer after {STEP_SECONDS:.0f} s") from None
    except (Exception, SystemExit) as error:
        raise WorldFailed(f"{doing}: {type(error).__name__}: {error}") from error


def oracle(view: View) -> Iterator[str]:
    """The oracle's actions, asked anew before each, until it has succeeded."""
    world = view.world
    assert isinstance(world, ToolEnv)
    while not view.solved:
        call = attempted(lambda: next(iter(world.oracle(world.state)), None), "asking the oracle")
        if call is None:
            return
        yield attempted(partial(world.action_text, call), "writing the oracle's call")


def replay(actions: Sequence[str]) -> Script:
    """The script that says ``actions``."""
    return lambda view: iter(actions)
