"""The toolkit: a world is a State dataclass, ``@tool`` methods, a generator, an observer and a verifier.

A subclass says what the world *is*; this base derives what training needs from it: tasks with a content hash
and a shortest length, the system prompt, parsing and masking of actions, the facts of each turn, seeds. The
reward ``step`` returns is only 1.0 for success; training rewards are computed elsewhere from the facts. The
one surprising choice: a refused tool call restores the state *in place*, so a live oracle that holds the
state object keeps seeing the truth.
"""

from __future__ import annotations

import copy
import random
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import partial
from typing import Any, ClassVar, Generic, TypeVar

import gymnasium

from palestra.actions import ActionFormat, error_observation, parse_action, render_call
from palestra.envs.faults import LOSING, NOT_DONE, EpisodeFaults, FaultSchedule, check_possible
from palestra.envs.hashing import canonical_json, state_hash
from palestra.envs.prompts import offered_tools, policy_prompt, system_prompt
from palestra.envs.spaces import UnicodeText
from palestra.envs.surface import Surface
from palestra.envs.tools import ToolError, collect_tools
from palestra.errors import ActionError, ConfigError, WorldError
from palestra.types import Action, Facts, ParseTier, Split, Task, ToolCall, ToolSpec

State = TypeVar("State")

MAX_ORACLE_TURNS = 64
"""An oracle that needs more turns than this is held not to solve its task."""
_MAX_OBSERVATION = 8_000
_MAX_ACTION = 65_536
_NAME = re.compile(r"\w[\w.-]{0,49}", re.ASCII)


@dataclass(frozen=True, slots=True)
class _Reply:
    """What one action came to, before its effects are judged."""

    observation: str
    tier: ParseTier
    call: ToolCall | None = None
    error: ActionError | None = None
    fault: str | None = None


class ToolEnv(gymnasium.Env[str, str], Generic[State]):
    """Base of a world with tools: subclass it, and gymnasium, training and audit can use it.

    Required: ``generate``, ``observe``, ``verify`` and at least one ``@tool`` method, which reads and changes
    ``self.state``. Optional: ``oracle``, ``done``, ``required`` and the class attributes below.
    """

    name: ClassVar[str] = ""
    """As in ``Task.env``; by default the class name in snake case."""
    instructions: ClassVar[str] = ""
    """One or two short sentences of policy, first in the system prompt."""
    difficulties: ClassVar[tuple[int, ...]] = (1, 2, 3)
    """The levels ``generate`` understands."""
    default_difficulty: ClassVar[int] = 2
    """The level used where none is asked for."""
    milestones: ClassVar[Mapping[str, Callable[[Any], bool]]] = {}
    """Predicates over the state that every solution makes true on its way; each scores once an episode."""
    required_tools: ClassVar[tuple[str, ...]] = ()
    """Tools without which nothing counts: see ``required``."""
    kind_field: ClassVar[str] = "kind"
    """Field of the initial state that says what kind of task it is, if it has one; kinds can be held out."""
    upsets: ClassVar[Mapping[str, Callable[[Any, random.Random], str | None]]] = {}
    """Faults of the world's own, ``changed_requirement`` or ``slot_taken``: each changes the state in place
    and returns the news, or None where it cannot happen now."""
    tools: ClassVar[Mapping[str, ToolSpec]] = {}
    """Derived: the declared tools by name."""

    metadata: dict[str, Any] = {"render_modes": []}  # noqa: RUF012  (gymnasium declares it on instances)
    state: State
    """The world now; set by ``reset``."""
    rng: random.Random
    """For randomness inside an episode; seeded by ``reset``."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Read the tools and the name off the new class."""
        super().__init_subclass__(**kwargs)
        cls.tools = collect_tools(cls)
        taken = sorted(name for name in cls.tools if name in dir(ToolEnv))
        if taken:
            raise WorldError(
                f"{cls.__name__}: a tool cannot be called {', '.join(taken)}: the toolkit uses it"
            )
        if "name" not in vars(cls):
            cls.name = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", cls.__name__).lower()
        if not _NAME.fullmatch(cls.name):
            raise WorldError(
                f"{cls.__name__}: {cls.name!r:.80} is no name for a world, which is part of ids and of file "
                "names: set `name` to ASCII letters, digits and . _ -"
            )

    def __init__(
        self,
        *,
        difficulty: int | None = None,
        prompt_seed: int | None = None,
        action_format: ActionFormat = "json",
        require_reasoning: bool = False,
        faults: FaultSchedule | None = None,
        changed_surface: bool = False,
        tool_schemas: bool = False,
    ) -> None:
        """Make a world; ``reset`` starts an episode in it.

        Args:
            difficulty: level of the tasks made here; the class's default if None.
            prompt_seed: vary the system prompt from task to task; None keeps one prompt.
            action_format: how actions are written, such as ``json``, ``hermes`` or ``react``.
            require_reasoning: refuse an action that does not say why first.
            faults: what goes wrong with calls; nothing if None.
            changed_surface: other names of tools and parameters, and replies as tables; the same problems.
            tool_schemas: leave it to the model's chat template to declare the tools.

        Raises:
            ConfigError: for a difficulty or a fault the world does not have.
        """
        check_possible(faults, self.upsets, self.name)
        self.difficulty = self._known_difficulty(difficulty, self.default_difficulty)
        self.prompt_seed = prompt_seed
        self.action_format = action_format
        self.require_reasoning = require_reasoning
        self.tool_schemas = tool_schemas
        self._schedule = faults
        self._surface = Surface(self.tools) if changed_surface else None
        self._faults: EpisodeFaults | None = None
        self.reply_lost = False
        """Whether a fault took something from the last reply, so that a careful agent asks again."""
        self.observation_space = UnicodeText(_MAX_OBSERVATION)
        self.action_space = UnicodeText(_MAX_ACTION)
        self._task: Task | None = None
        self._finished = False
        self._key_records: list[str] = []

    # What an author writes -------------------------------------------------------------------------------

    def generate(self, rng: random.Random, difficulty: int) -> State:
        """A new initial state, drawn from ``rng`` alone."""
        raise NotImplementedError(f"{type(self).__name__} must define generate(rng, difficulty)")

    def observe(self, state: State) -> str:
        """The first observation: what the agent is asked."""
        raise NotImplementedError(f"{type(self).__name__} must define observe(state)")

    def verify(self, state: State) -> bool:
        """The only success predicate: whether the goal is reached in ``state``."""
        raise NotImplementedError(f"{type(self).__name__} must define verify(state)")

    def done(self, state: State) -> bool:
        """Whether the episode is over; by default as soon as ``verify`` holds."""
        return self.verify(state)

    def required(self, state: State) -> set[str]:
        """Tools that must have been called, validly and before the closing action, for success to count."""
        return set(self.required_tools)

    def oracle(self, state: State) -> Iterator[ToolCall]:
        """Lazily yield the right actions from ``state`` on; re-entrant, so asking anew each turn re-plans."""
        return iter(())

    def key_record(self, text: str) -> None:
        """Mark, in a tool, what of its reply is worth keeping once the reply is out of the agent's sight.

        Only what the reply says, or the agent would learn it for nothing.
        """
        self._key_records.append(text)

    # What the toolkit derives ----------------------------------------------------------------------------

    @property
    def has_oracle(self) -> bool:
        """Whether the world can show a solution."""
        return type(self).oracle is not ToolEnv.oracle

    @property
    def tool_specs(self) -> tuple[ToolSpec, ...]:
        """The tools as declared to the model in this episode, distractors included."""
        return offered_tools(self._allowed_tools(), self._wording_seed())

    @property
    def schema_tools(self) -> tuple[ToolSpec, ...]:
        """The tools that the model's chat template is to declare; none where the system prompt does."""
        return self.tool_specs if self.tool_schemas else ()

    @property
    def system_prompt(self) -> str:
        """Policy, one line a tool, and the action format, for the current task; or policy alone."""
        if not self.tool_schemas:
            return self.text_prompt
        return policy_prompt(self._instructions(), self.action_format, self.require_reasoning)

    @property
    def text_prompt(self) -> str:
        """The system prompt for a model that reads the tools as text, whatever ``tool_schemas`` says."""
        call = ToolCall("NAME", {"KEY": "VALUE"}, "WHY" if self.require_reasoning else None)
        example = render_call(call, self.action_format)
        return system_prompt(self._instructions(), self.tool_specs, example, self._wording_seed())

    def action_text(self, call: ToolCall) -> str:
        """A call as text in this world's format; a script's call that must give a reason gets a plain one."""
        if self.require_reasoning and call.reasoning is None and call.tool_name in self.tools:
            call = replace(call, reasoning=self.tools[call.tool_name].description)
        return render_call(self._surface.outward(call) if self._surface else call, self.action_format)

    def make_task(
        self,
        seed: int,
        split: Split = "train",
        *,
        difficulty: int | None = None,
        prompt_seed: int | None = None,
    ) -> Task:
        """The task of a seed: a pure function of its arguments, equal in every process.

        Args:
            seed: regenerates the initial state.
            split: recorded in the task and its id; does not change the problem.
            difficulty: overrides the world's own.
            prompt_seed: varies the system prompt for this task alone.

        Raises:
            ConfigError: for a difficulty the world does not have.
        """
        level = self._known_difficulty(difficulty, self.difficulty)
        state = self._initial_state(seed, level)
        data: dict[str, Any] = {"difficulty": level}
        if prompt_seed is not None:
            data["prompt_seed"] = prompt_seed
        if isinstance(kind := getattr(state, self.kind_field, None), str):
            data["kind"] = kind
        suffix = "" if level == self.default_difficulty else f"/{level}"
        return Task(
            id=f"{self.name}/{split}/{seed}{suffix}",
            env=self.name,
            split=split,
            seed=seed,
            prompt=self.observe(state),
            data=data,
            optimal_turns=self._optimal_turns(state, seed),
            content_hash=state_hash(state),
        )

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        """Start an episode: of ``options["task"]``, else of the task that ``seed`` makes.

        Returns:
            The task's prompt, and ``{"task": Task}``.

        Raises:
            WorldError: for a task of another world, or one whose content this world no longer produces.
        """
        super().reset(seed=seed)
        given = (options or {}).get("task")
        if given is None:
            given = self.make_task(int(self.np_random.integers(0, 1_000_000)) if seed is None else seed)
        task = self._checked_task(given)
        self.state = self._initial_state(task.seed, self._task_difficulty(task))
        self._hash = state_hash(self.state)
        if task.content_hash and task.content_hash != self._hash:
            raise WorldError(f"task {task.id!r} was made by another version of {self.name!r}: make it anew")
        self.rng = random.Random(f"episode:{task.seed if seed is None else seed}")
        self._task, self._finished = task, False
        self._faults = EpisodeFaults(self._schedule, task.seed) if self._schedule else None
        self.reply_lost = False
        self._called: set[str] = set()
        self._asked: set[tuple[str, str, str]] = set()
        self._last: tuple[str, str] | None = None
        self._reached = {name for name, holds in self.milestones.items() if holds(self.state)}
        return task.prompt, {"task": task}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Take one action given as text.

        Returns:
            The reply, 1.0 on the turn that ends in success and else 0.0, terminated, False, and the turn's
            ``Facts`` as a flat dict.

        Raises:
            WorldError: before ``reset`` and after the end of the episode.
        """
        if self._task is None or self._finished:
            raise WorldError(
                f"{self.name}: the episode is {'over' if self._task else 'not started'}; call reset"
            )
        before = self._hash
        self._key_records = []
        reply = self._reply(action)
        self._hash = state_hash(self.state) if reply.error is None else before
        self.reply_lost = reply.fault in LOSING
        repeated = reply.fault is None and self._is_repeat(before, action, reply.call)
        self._finished = self.done(self.state)
        entitled = self.required(self.state) <= self._called
        success = entitled and self.verify(self.state)
        counts = self._hash != before and (entitled or not self._finished)
        facts = Facts(
            parse_tier=reply.tier,
            valid=reply.error is None,
            error=reply.error.name if reply.error else None,
            tool_name=reply.call.tool_name if reply.call else None,
            parameters=dict(reply.call.parameters) if reply.call else None,
            state_changed=self._hash != before,
            new_milestones=self._new_milestones() if counts else (),
            repeated=repeated,
            success=success,
            key_records=tuple(self._key_records) if reply.error is None else (),
            state_hash=self._hash,
            fault=None if self._finished else reply.fault,
        )
        if reply.call and reply.error is None and reply.fault not in NOT_DONE:
            self._called.add(reply.call.tool_name)
        info = {f.name: getattr(facts, f.name) for f in fields(facts)}
        return reply.observation, float(self._finished and success), self._finished, False, info

    # How it does so --------------------------------------------------------------------------------------

    def _reply(self, action: str) -> _Reply:
        """Parse and run one action; a refused call leaves the state as it was."""
        finish = action.finish_reason if isinstance(action, Action) else "stop"
        try:
            parsed = parse_action(
                action, self._allowed_tools(), format=self.action_format, finish_reason=finish
            )
            if self.require_reasoning and not parsed.call.reasoning:
                raise ActionError("missing_parameter", "Say why in the action's reasoning before it acts.")
        except ActionError as error:
            return _Reply(error_observation(error), "error", error=error)
        call = self._surface.inward(parsed.call) if self._surface else parsed.call
        run = partial(self.execute, call)
        try:
            text, fault = self._faults.answer(call, run, self._upset) if self._faults else (run(), None)
            shown = self._surface.reply(text) if self._surface else text
            return _Reply(shown, parsed.tier, call, fault=fault)
        except ToolError as error:
            text = error_observation(error)
            return _Reply(self._surface.text(text) if self._surface else text, parsed.tier, call, error)

    def _upset(self, kind: str, rng: random.Random) -> str | None:
        return None if self.done(self.state) else self.upsets[kind](self.state, rng)

    def execute(self, call: ToolCall) -> str:
        """Run a tool on the state, restoring it in place if the tool refuses.

        Raises:
            ToolError: the tool refuses.
            WorldError: the call names no tool, which only the world's own code, its oracle, can bring about.
        """
        if call.tool_name not in self.tools:
            tools = ", ".join(self.tools)
            raise WorldError(
                f"{type(self).__name__}: its oracle calls {call.tool_name!r}; its tools are {tools}"
            )
        snapshot = copy.deepcopy(self.state)
        try:
            observation: str = getattr(self, call.tool_name)(**call.parameters)
        except ToolError:
            for f in fields(snapshot):  # type: ignore[arg-type]
                setattr(self.state, f.name, getattr(snapshot, f.name))
            raise
        return observation

    def _is_repeat(self, before: str, action: str, call: ToolCall | None) -> bool:
        """Whether this action was nearly made from the same state, or just now and changes nothing."""
        text = canonical_json(call.parameters) if call else action
        said = (call.tool_name if call else "", " ".join(text.casefold().split()))
        repeated = (before, *said) in self._asked or (said == self._last and before == self._hash)
        self._asked.add((before, *said))
        self._last = said
        return repeated

    def _new_milestones(self) -> tuple[str, ...]:
        """Milestones that hold now and never held before in this episode."""
        new = tuple(n for n, holds in self.milestones.items() if n not in self._reached and holds(self.state))
        self._reached.update(new)
        return new

    def _initial_state(self, seed: int, difficulty: int) -> State:
        state = self.generate(random.Random(f"{self.name}:{difficulty}:{seed}"), difficulty)
        if not is_dataclass(state):
            raise WorldError(
                f"{type(self).__name__}.generate must return a dataclass, not {type(state).__name__}"
            )
        return state

    def _optimal_turns(self, state: State, seed: int) -> int | None:
        """Turns the oracle takes from ``state``; None without an oracle, or if it does not succeed."""
        scratch = copy.copy(self)
        scratch.state = copy.deepcopy(state)
        scratch.rng = random.Random(f"episode:{seed}")
        for turn in range(1, MAX_ORACLE_TURNS + 1):
            call = next(iter(scratch.oracle(scratch.state)), None)
            if call is None:
                return None
            try:
                scratch.execute(call)
            except ToolError:
                return None
            if scratch.done(scratch.state):
                return turn if scratch.verify(scratch.state) else None
        return None

    def _allowed_tools(self) -> tuple[ToolSpec, ...]:
        """The tools this episode lets the agent call: the task's, or all."""
        names = self._task.tools if self._task else ()
        allowed = (spec for spec in self.tools.values() if not names or spec.name in names)
        return tuple(self._surface.spec(spec) if self._surface else spec for spec in allowed)

    def _instructions(self) -> str:
        return self._surface.text(self.instructions) if self._surface else self.instructions

    def _wording_seed(self) -> str | None:
        """What the wording of the system prompt is drawn from: the task's own seed, else the world's."""
        if self._task and "prompt_seed" in self._task.data:
            return str(self._task.data["prompt_seed"])
        if self.prompt_seed is None:
            return None
        return f"{self.prompt_seed}:{self._task.seed if self._task else ''}"

    def _checked_task(self, task: Any) -> Task:
        if not isinstance(task, Task) or task.env != self.name:
            raise WorldError(f"{self.name}: options['task'] must be a Task of this world, not {task!r:.80}")
        unknown = [name for name in task.tools if name not in self.tools]
        if unknown:
            raise WorldError(f"task {task.id!r} allows tools that {self.name!r} lacks: {', '.join(unknown)}")
        return task

    def _task_difficulty(self, task: Task) -> int:
        return self._known_difficulty(task.data.get("difficulty"), self.difficulty)

    def _known_difficulty(self, asked: int | None, default: int) -> int:
        level = default if asked is None else asked
        if level not in self.difficulties:
            raise ConfigError(f"{self.name} has difficulties {list(self.difficulties)}, not {level!r}")
        return level
