"""The words of palestra: the records that every part produces or consumes.

Read this file first. Data takes one way through it::

    Task -> (Env, Policy) -> Turn, Turn, ... -> Trajectory -> TrajectoryGroup -> Segment -> Learner

Records are frozen and hold plain values only, so they can be stored, hashed and sent.
Standard library only: everything imports this file and it imports nothing of palestra.
One convention holds throughout: a value that could not be measured is ``None``, never 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal

Role = Literal["system", "user", "assistant", "tool"]
Split = Literal["train", "validation", "test"]
FinishReason = Literal["stop", "length"]
ParseTier = Literal["strict", "repaired", "error"]


class StopReason(StrEnum):
    """Why an episode ended. Exactly one per trajectory."""

    terminated = "terminated"
    """The world reached an end of its own: solved, failed or closed."""
    max_turns = "max_turns"
    """The turn limit cut the episode. A truncation: values bootstrap."""
    max_tokens = "max_tokens"
    """The episode's token budget was used up. A truncation."""
    context_full = "context_full"
    """The next prompt would not fit the model's context. A truncation."""
    repeated_action = "repeated_action"
    """The same action came too often in a row."""
    invalid_action = "invalid_action"
    """Too many actions in a row were refused or could not be understood."""
    timeout = "timeout"
    """The episode's wall-clock limit passed. A truncation."""
    env_error = "env_error"
    """The world itself failed, or the server of the policy. Never scored, never trained on."""

    @property
    def is_truncation(self) -> bool:
        """True where the episode was cut from outside, so that a value bootstraps."""
        return self in _TRUNCATIONS


_TRUNCATIONS = frozenset(
    {StopReason.max_turns, StopReason.max_tokens, StopReason.context_full, StopReason.timeout}
)


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """A declared tool: what the model may call.

    Example: ``ToolSpec("track", "Where a parcel is.", {"type": "object", ...})``
    """

    name: str
    """Unique within a world."""
    description: str
    """One sentence for the model."""
    parameters: Mapping[str, Any]
    """JSON Schema of the parameters object (``type: object``)."""
    aliases: Mapping[str, str] = field(default_factory=dict)
    """Other spellings of a parameter, mapped to the declared one."""


@dataclass(frozen=True, slots=True)
class Message:
    """One chat message. A conversation is a tuple of these."""

    role: Role
    """``tool`` is an observation that answers an action."""
    content: str
    """The text as it was said; a malformed action is kept raw."""
    tools: tuple[ToolSpec, ...] = ()
    """Of the first message: tools that the model's chat template is to declare in its own form. Empty where
    the text describes them."""


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A parsed action: one tool with its parameters.

    Example: ``ToolCall("track", {"order_id": "48213"})``
    """

    tool_name: str
    """A declared tool's name."""
    parameters: Mapping[str, Any]
    """Validated against the tool's schema."""
    reasoning: str | None = None
    """What the model wrote before acting, if it did."""


class Action(str):
    """The text a policy produced, with how its generation ended.

    A plain ``str`` to every world; a world that parses actions reads ``finish_reason`` so that a
    text cut at the length limit is reported as ``truncated`` and never run.
    """

    finish_reason: FinishReason

    def __new__(cls, text: str, finish_reason: FinishReason = "stop") -> Action:
        """Wrap ``text``; ``finish_reason`` is ``"length"`` when generation was cut."""
        action = super().__new__(cls, text)
        action.finish_reason = finish_reason
        return action


@dataclass(frozen=True, slots=True)
class Task:
    """One problem to attempt. Frozen data, so that it can be stored, hashed and sent.

    Example: ``Task(id="orders/train/17", env="orders", split="train", seed=17, prompt="Ticket ...")``
    """

    id: str
    """``env/split/seed``; unique."""
    env: str
    """The world it belongs to, as ``make_env`` names it."""
    split: Split
    """Which part of the seed range it was drawn from."""
    seed: int
    """Regenerates the initial state, and seeds the world's own randomness: one per group."""
    prompt: str
    """The first observation: what the agent is asked."""
    data: Mapping[str, Any] = field(default_factory=dict)
    """What ``reset`` needs besides the seed, such as the difficulty. Never shown to the model."""
    tools: tuple[str, ...] = ()
    """Names of the tools this task allows; empty means all of the world's."""
    optimal_turns: int | None = None
    """Turns of the shortest known solution; None where the world has no oracle."""
    content_hash: str = ""
    """Hash of the initial state: two tasks with one hash are the same problem."""


@dataclass(frozen=True, slots=True)
class Facts:
    """What a world says happened in one turn. Rewards are computed from these and nothing else."""

    parse_tier: ParseTier = "strict"
    """How the action was understood: as it stood, after repair, or not at all."""
    valid: bool = True
    """False for a parse error, an illegal tool or parameters the tool refused."""
    error: str | None = None
    """The error's name when not valid, such as ``unknown_tool`` or ``truncated``."""
    tool_name: str | None = None
    """The tool that was called, if the action named one."""
    parameters: Mapping[str, Any] | None = None
    """Its parameters as validated."""
    state_changed: bool = False
    """Whether the action changed the world's state."""
    new_milestones: tuple[str, ...] = ()
    """Milestones reached by this turn's change of state, each once an episode."""
    repeated: bool = False
    """Whether the action nearly copies one made from the same state, or the last one and changes nothing."""
    fault: str | None = None
    """The injected disturbance the agent saw in this turn."""
    success: bool = False
    """``verify(state)`` after the turn. The only meaning of success."""
    key_records: tuple[str, ...] = ()
    """What of its reply the world marks as worth keeping once that is out of sight: ids, amounts ..."""
    state_hash: str = ""
    """Hash of the state after the turn, for credit anchored at equal states."""
    cost: float = 1.0
    """What the action cost in calls."""


@dataclass(frozen=True, slots=True)
class Turn:
    """One action and the reply to it, with the tokens exactly as they were sampled."""

    action: str
    """The text the policy produced, raw."""
    observation: str
    """The world's reply: the new text only."""
    facts: Facts
    """What happened, from ``info``."""
    finish_reason: FinishReason = "stop"
    """``length`` when generation was cut."""
    env_reward: float = 0.0
    """The number ``env.step`` returned."""
    reward: float | None = None
    """The rubric's weighted reward of this turn; None until scored."""
    action_ids: tuple[int, ...] = ()
    """Sampled token ids, the end token included; empty for scripted policies."""
    sampled_logprobs: tuple[float, ...] = ()
    """Log-probability of each action id under the policy that sampled it, same length."""
    observation_ids: tuple[int, ...] = ()
    """Ids appended between this action and the next: the rendered reply, never trained on."""
    prompt_ids: tuple[int, ...] = ()
    """The whole context of this action, where it was written anew instead of appended to: a prefix break, at
    which a new segment begins. Empty everywhere else."""


@dataclass(frozen=True, slots=True)
class Trajectory:
    """The record of one episode.

    Example: task P0, actions A0 A1, observations O0 O1: ``prompt_ids + A0 + O0 + A1 + O1`` is the
    episode's token row, and only A0 and A1 are trained on. Where turn 1 has ``prompt_ids`` P1 of its own
    there are two rows, ``P0 + A0`` and ``P1 + A1 + O1``.
    """

    id: str
    """Unique in a run: ``stage/update/group/attempt``."""
    task: Task
    """What was attempted."""
    prompt: tuple[Message, ...]
    """The messages before the first action: system prompt and task."""
    turns: tuple[Turn, ...]
    """In order. Empty when the world failed or a limit was reached before the first action."""
    stop_reason: StopReason
    """Why it ended."""
    success: bool | None
    """The world's ``verify``; None when it could not be measured (``env_error``)."""
    policy: str = ""
    """Who acted: ``oracle``, ``teacher``, ``sft``, ``rl`` ..."""
    policy_version: int = 0
    """Updates behind the policy when the episode started."""
    prompt_ids: tuple[int, ...] = ()
    """Rendered prompt, ending where the first action begins."""
    next_prompt_ids: tuple[int, ...] = ()
    """The whole context behind the last turn where its reply broke the prefix: what the next action would
    have been taken in, had the episode not been cut. Empty everywhere else."""
    milestones: tuple[str, ...] = ()
    """The milestones the task has, reached or not."""
    reward: float | None = None
    """The rubric's total; None until scored, or when unscored."""
    reward_parts: Mapping[str, float | None] = field(default_factory=dict)
    """Each part before weighting, in its own stated range."""
    error: str | None = None
    """Traceback of an ``env_error``, or of the world that failed before this one did not."""
    retries: int = 0
    """Worlds that failed before this one: each attempt has a fresh world."""
    seconds: float = 0.0
    """Wall time of the episode. Not reproducible; nothing is computed from it."""


@dataclass(frozen=True, slots=True)
class TrajectoryGroup:
    """The attempts at one task with one seed: the unit of GRPO, of the store and of the viewer."""

    id: str
    """Unique in a run: ``stage/update/group``."""
    task: Task
    """Shared by all attempts."""
    trajectories: tuple[Trajectory, ...]
    """The attempts, in the order they were asked for."""


@dataclass(frozen=True, slots=True)
class Segment:
    """One contiguous token row for training. All its sequences have one length."""

    trajectory_id: str
    """Where it came from."""
    ids: tuple[int, ...]
    """Token ids as sampled and as rendered."""
    action_mask: tuple[bool, ...]
    """True on sampled tokens: the only ones any loss, entropy or denominator counts."""
    sampled_logprobs: tuple[float, ...]
    """Where the mask is True; 0.0 elsewhere and never read there."""
    advantages: tuple[float, ...]
    """Where the mask is True; 0.0 elsewhere."""
    old_logprobs: tuple[float, ...] = ()
    """Under the learner before its first step on the batch; empty where those sampled stand for them."""
