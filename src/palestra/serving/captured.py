"""An episode that an outside program plays: what it asked and was answered, as a trajectory's tokens.

The program sends its whole conversation with every request, as chat clients do. Where a request goes on from
the last answer by one message, that message is appended to the ids as they were sampled; anywhere else the
conversation is rendered anew and a new row begins, so that no token is ever trained on in a context it was
not sampled in. A request that is repeated, because its answer was lost, takes the answer's place.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import replace

from palestra.policy import ChatTemplate, Generation
from palestra.types import Facts, Message, StopReason, Task, Trajectory, Turn

PART = "posted"
"""The reward part that a program's own number goes to."""
_FAILED = "the program said that it failed, or got no answer"
WORLD = "outside"
"""The world that tasks of outside programs belong to."""


class CapturedEpisode:
    """One episode as it grows."""

    def __init__(self, episode: str, group: str, version: int) -> None:
        """Begin attempt ``episode`` at what ``group`` attempts, under a version of the policy."""
        self.id, self.group, self.version = episode, group, version
        self._said: list[Message] = []
        self._prompt: tuple[Message, ...] = ()
        self._prompt_ids: tuple[int, ...] = ()
        self._ids: list[int] = []
        self._anew: tuple[int, ...] = ()
        self._turns: list[Turn] = []

    def copy(self) -> CapturedEpisode:
        """The episode as it stands, to go back to if what comes next fails."""
        other = copy(self)
        other._said, other._ids, other._turns = list(self._said), list(self._ids), list(self._turns)
        return other

    def context(self, messages: Sequence[Message], template: ChatTemplate) -> list[int]:
        """The ids that the next action is sampled from, for a request that holds ``messages``."""
        said = list(messages)
        if self._turns and _same(said, self._said[:-1]):
            last = self._turns.pop()
            self._anew = last.prompt_ids
            self._ids = self._ids[: len(self._ids) - len(last.action_ids)]
        elif not (self._turns and self._append(said, template)):
            self._begin_row(said, template)
        self._said = said
        return list(self._ids)

    def act(self, generation: Generation, text: str) -> None:
        """Take in the answer to the request."""
        self._turns.append(
            Turn(
                action=text,
                observation="",
                facts=Facts(),
                finish_reason=generation.finish_reason,
                action_ids=generation.ids,
                sampled_logprobs=generation.logprobs,
                prompt_ids=self._anew,
            )
        )
        self._anew = ()
        self._ids += generation.ids
        self._said.append(Message("assistant", text))

    def finish(self, reward: float | None, success: bool | None) -> Trajectory:
        """The trajectory; without a reward, or an answer, it is a failure that is not trained on."""
        failed = reward is None or not self._turns
        turns = [replace(turn, reward=0.0) for turn in self._turns]
        if turns:
            turns[-1] = replace(turns[-1], reward=reward, facts=Facts(success=bool(success)))
        asked = self._prompt[-1].content if self._prompt else ""
        return Trajectory(
            id=self.id,
            task=task_of(self.group, asked),
            prompt=self._prompt,
            turns=tuple(turns),
            stop_reason=StopReason.env_error if failed else StopReason.terminated,
            success=None if failed else success,
            policy="rl",
            policy_version=self.version,
            prompt_ids=self._prompt_ids,
            reward=None if failed else reward,
            reward_parts={} if failed else {PART: reward},
            error=_FAILED if failed else None,
        )

    def _append(self, said: list[Message], template: ChatTemplate) -> bool:
        """Go on from the last answer, if the request does so by one message."""
        if (
            len(said) != len(self._said) + 1
            or not _same(said[:-1], self._said)
            or said[-1].role == "assistant"
        ):
            return False
        added = template.render_reply(self._said[:-1], self._said[-1].content, said[-1])
        if added is None:
            return False
        if self._ids[-1] in template.end_ids:
            added = added[1:]
        self._ids += added
        self._turns[-1] = replace(self._turns[-1], observation=said[-1].content, observation_ids=tuple(added))
        return True

    def _begin_row(self, said: list[Message], template: ChatTemplate) -> None:
        self._ids = list(template.render(said))
        if not self._turns:
            self._prompt, self._prompt_ids = tuple(said), tuple(self._ids)
            return
        self._anew = tuple(self._ids)
        self._turns[-1] = replace(self._turns[-1], observation=said[-1].content)


def task_of(group: str, prompt: str) -> Task:
    """The task that all attempts of a group share; what it is only the program knows."""
    return Task(id=f"{WORLD}/train/{group}", env=WORLD, split="train", seed=0, prompt=prompt)


def _same(said: Sequence[Message], known: Sequence[Message]) -> bool:
    """Whether two conversations are one, but for white space that clients strip."""
    one, other = ([(m.role, m.content.strip(), m.tools) for m in each] for each in (said, known))
    return one == other
