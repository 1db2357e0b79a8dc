"""Trajectories to token rows: the one place where masks are made.

A row is ``prompt + action + observation + action ...`` exactly as sampled and rendered; the mask follows
from the lengths of those pieces and from nothing else. An end token that nobody sampled belongs to the
observation, so it is never trained on. Where the context was written anew (a prefix break) a new row begins.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from palestra.errors import ConfigError
from palestra.policy import ChatTemplate, ContextWindow, Transcript
from palestra.types import Segment, Trajectory, Turn

CreditUnit = Literal["turn", "token"]
"""What gets an advantage of its own."""


def make_segments(trajectory: Trajectory, advantages: Sequence[float | Sequence[float]]) -> list[Segment]:
    """The token rows of an episode: one, and another from each turn whose context was written anew.

    Args:
        trajectory: an episode with sampled ids.
        advantages: one a turn, which every action token of the turn gets; or one a token of each turn.

    Raises:
        ConfigError: a turn has no sampled ids, or not one log-probability per id, or not the advantages it
            needs.
    """
    if len(advantages) != len(trajectory.turns):
        raise ConfigError(f"{trajectory.id}: {len(advantages)} advantages for {len(trajectory.turns)} turns")
    each = [_per_token(trajectory, index, given) for index, given in enumerate(advantages)]
    return [
        _row(trajectory.id, prompt, turns, each[first : first + len(turns)])
        for first, prompt, turns in _stretches(trajectory)
    ]


def _stretches(trajectory: Trajectory) -> list[tuple[int, tuple[int, ...], tuple[Turn, ...]]]:
    """Turns that only append to one another: number of the first, the prompt before them, themselves."""
    starts = [index for index, turn in enumerate(trajectory.turns) if index == 0 or turn.prompt_ids]
    ends = [*starts[1:], len(trajectory.turns)]
    return [
        (start, trajectory.turns[start].prompt_ids or trajectory.prompt_ids, trajectory.turns[start:end])
        for start, end in zip(starts, ends, strict=True)
    ]


def _per_token(trajectory: Trajectory, index: int, given: float | Sequence[float]) -> Sequence[float]:
    """The advantage of each action token of a turn."""
    turn = trajectory.turns[index]
    count = len(turn.action_ids)
    if not count or count != len(turn.sampled_logprobs):
        raise ConfigError(
            f"{trajectory.id} turn {index}: {count} action ids and "
            f"{len(turn.sampled_logprobs)} log-probabilities. Only episodes of a policy that samples "
            "tokens can be trained on; tokenize_trajectory() makes rows of scripted ones."
        )
    each = [given] * count if isinstance(given, float | int) else given
    if len(each) != count:
        raise ConfigError(f"{trajectory.id} turn {index}: {len(each)} advantages for {count} tokens")
    return each


def _row(
    trajectory_id: str, prompt: Sequence[int], turns: Sequence[Turn], advantages: Sequence[Sequence[float]]
) -> Segment:
    ids, mask = list(prompt), [False] * len(prompt)
    logprobs, per_token = [0.0] * len(prompt), [0.0] * len(prompt)
    for index, (turn, each) in enumerate(zip(turns, advantages, strict=True), start=1):
        observed = turn.observation_ids if index < len(turns) else ()
        ids += turn.action_ids + observed
        mask += [True] * len(turn.action_ids) + [False] * len(observed)
        logprobs += [*turn.sampled_logprobs, *(0.0 for _ in observed)]
        per_token += [*each, *(0.0 for _ in observed)]
    return Segment(trajectory_id, tuple(ids), tuple(mask), tuple(logprobs), tuple(per_token))


def state_segments(trajectory: Trajectory, unit: CreditUnit, *, cut: bool = False) -> list[Segment]:
    """The token rows whose masks mark the token after each state that a critic is to value.

    Args:
        trajectory: an episode with sampled ids.
        unit: a ``turn``'s state ends where its action begins; a ``token``'s ends before that token.
        cut: also mark the state that the episode was cut in, which ends with its last reply. As nothing comes
            after it, a token that stands for nothing is appended. It has a row of its own where that reply
            broke the prefix.
    """
    rows = []
    stretches = _stretches(trajectory)
    for first, prompt, turns in stretches:
        ids, marks = list(prompt), [False] * len(prompt)
        for turn in turns:
            later = [unit == "token"] * (len(turn.action_ids) - 1)
            ids += turn.action_ids + turn.observation_ids
            marks += [True, *later] + [False] * len(turn.observation_ids)
        if cut and first == stretches[-1][0] and not trajectory.next_prompt_ids:
            ids.append(0)
            marks.append(True)
        rows.append(_marked(trajectory.id, ids, marks))
    if cut and trajectory.next_prompt_ids:
        last = [False] * len(trajectory.next_prompt_ids)
        rows.append(_marked(trajectory.id, [*trajectory.next_prompt_ids, 0], [*last, True]))
    return rows


def _marked(trajectory_id: str, ids: Sequence[int], marks: Sequence[bool]) -> Segment:
    zeros = (0.0,) * len(ids)
    return Segment(trajectory_id, tuple(ids), tuple(marks), zeros, zeros)


def judged_segment(trajectory: Trajectory) -> Segment:
    """The token row whose mask marks the token after the last action, where a whole attempt is judged.

    What the world replied to that action is left out, and a token that stands for nothing is appended. Where
    the context was written anew, the row is what the last action was chosen from.
    """
    whole = make_segments(trajectory, [0.0] * len(trajectory.turns))[-1]
    return _marked(trajectory.id, [*whole.ids, 0], [*(False for _ in whole.ids), True])


def tokenize_trajectory(
    trajectory: Trajectory, template: ChatTemplate, window: ContextWindow | None = None
) -> Trajectory:
    """A scripted episode with the ids a policy would have had: actions encoded with their end token.

    Log-probabilities are 0.0: nobody sampled these ids, and imitation does not read them.
    """
    transcript = Transcript(template, window or ContextWindow(), trajectory.prompt)
    prompt_ids, turns = tuple(transcript.ids), list[Turn]()
    for number, turn in enumerate(trajectory.turns, start=1):
        action = transcript.encode_action(turn.action)
        anew = transcript.act(action)
        is_last = number == len(trajectory.turns)
        turns.append(
            replace(
                turn,
                action_ids=action,
                sampled_logprobs=(0.0,) * len(action),
                observation_ids=()
                if is_last
                else transcript.observe(turn.action, turn.observation, turn.facts),
                prompt_ids=anew,
            )
        )
    return replace(trajectory, prompt_ids=prompt_ids, turns=tuple(turns))
