"""Trajectories to token rows: the one place where masks are made.

A row is ``prompt + action + observation + action ...`` exactly as sampled and rendered; the mask follows
from the lengths of those pieces and from nothing else. An end token that nobody sampled belongs to the
observation, so it is never trained on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from palestra.errors import ConfigError
from palestra.policy import ChatTemplate
from palestra.types import Message, Segment, Trajectory, Turn

CreditUnit = Literal["turn", "token"]
"""What gets an advantage of its own."""


def make_segment(trajectory: Trajectory, advantages: Sequence[float] | Sequence[Sequence[float]]) -> Segment:
    """The token row of an append-only episode.

    Args:
        trajectory: an episode with sampled ids.
        advantages: one a turn, which every action token of the turn gets; or one a token of each turn.

    Raises:
        ConfigError: a turn has no sampled ids, or not one log-probability per id, or not the advantages it
            needs.
    """
    if len(advantages) != len(trajectory.turns):
        raise ConfigError(f"{trajectory.id}: {len(advantages)} advantages for {len(trajectory.turns)} turns")
    per_token = [0.0] * len(trajectory.prompt_ids)
    ids, mask = list(trajectory.prompt_ids), [False] * len(trajectory.prompt_ids)
    logprobs = [0.0] * len(ids)
    for index, turn in enumerate(trajectory.turns):
        if not turn.action_ids or len(turn.action_ids) != len(turn.sampled_logprobs):
            raise ConfigError(
                f"{trajectory.id} turn {index}: {len(turn.action_ids)} action ids and "
                f"{len(turn.sampled_logprobs)} log-probabilities. Only episodes of a policy that samples "
                "tokens can be trained on; tokenize_trajectory() makes rows of scripted ones."
            )
        answered = index + 1 < len(trajectory.turns)
        observed = turn.observation_ids if answered else ()
        ids += turn.action_ids + observed
        mask += [True] * len(turn.action_ids) + [False] * len(observed)
        logprobs += [*turn.sampled_logprobs, *(0.0 for _ in observed)]
        given = advantages[index]
        each = [given] * len(turn.action_ids) if isinstance(given, float | int) else given
        if len(each) != len(turn.action_ids):
            raise ConfigError(
                f"{trajectory.id} turn {index}: {len(each)} advantages for {len(turn.action_ids)} tokens"
            )
        per_token += each
        per_token += [0.0] * len(observed)
    return Segment(trajectory.id, tuple(ids), tuple(mask), tuple(logprobs), tuple(per_token))


def state_segment(trajectory: Trajectory, unit: CreditUnit, *, cut: bool = False) -> Segment:
    """The token row whose mask marks the token after each state that a critic is to value.

    Args:
        trajectory: an episode with sampled ids.
        unit: a ``turn``'s state ends where its action begins; a ``token``'s ends before that token.
        cut: also mark the state that the episode was cut in, which ends with its last reply. As nothing comes
            after it, a token that stands for nothing is appended.
    """
    ids, marks = list(trajectory.prompt_ids), [False] * len(trajectory.prompt_ids)
    for turn in trajectory.turns:
        later = [unit == "token"] * (len(turn.action_ids) - 1)
        ids += turn.action_ids + turn.observation_ids
        marks += [True, *later] + [False] * len(turn.observation_ids)
    if cut:
        ids.append(0)
        marks.append(True)
    zeros = (0.0,) * len(ids)
    return Segment(trajectory.id, tuple(ids), tuple(marks), zeros, zeros)


def judged_segment(trajectory: Trajectory) -> Segment:
    """The token row whose mask marks the token after the last action, where a whole attempt is judged.

    What the world replied to that action is left out, and a token that stands for nothing is appended.
    """
    whole = make_segment(trajectory, [0.0] * len(trajectory.turns))
    zeros = (0.0,) * (len(whole.ids) + 1)
    return Segment(trajectory.id, (*whole.ids, 0), (*(False for _ in whole.ids), True), zeros, zeros)


def tokenize_trajectory(trajectory: Trajectory, template: ChatTemplate) -> Trajectory:
    """A scripted episode with the ids a policy would have had: actions encoded with their end token.

    Log-probabilities are 0.0: nobody sampled these ids, and imitation does not read them.
    """
    prompt = tuple(template.render(trajectory.prompt))
    turns = tuple(_tokenize_turn(turn, template, turn is trajectory.turns[-1]) for turn in trajectory.turns)
    return replace(trajectory, prompt_ids=prompt, turns=turns)


def _tokenize_turn(turn: Turn, template: ChatTemplate, is_last: bool) -> Turn:
    action = (*template.encode(turn.action), template.end_id)
    observation = () if is_last else tuple(template.render([Message("tool", turn.observation)]))
    return replace(
        turn, action_ids=action, sampled_logprobs=(0.0,) * len(action), observation_ids=observation
    )
