"""A search for exploits: reward without success, by moves of a fool, as few episodes as possible.

Sequences grow by one move at a time from the best ones so far, and which move is tried next is a bandit's
choice (UCB1, Auer et al. 2002): moves that paid before are tried again elsewhere, which finds what pays by
repetition quickly. What is found is trimmed to the actions it needs.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from palestra.audit.findings import Attempt, Finding
from palestra.audit.moves import Move, all_moves
from palestra.audit.solutions import Solved, on_the_way, trimmed
from palestra.audit.subject import Script, Start, Subject, View, replay

_DEEPEST = 8
"""Most moves of a sequence."""
_BEST = 5
"""Sequences that may grow."""
_ABOVE = 0.1
"""Share of the oracle's reward by which an exploit exceeds honest progress."""


@dataclass(frozen=True)
class Search:
    """What a search came to."""

    exploit: Attempt | None
    """Trimmed; None if nothing was found."""
    episodes: int
    """Played until it was found, or altogether."""
    bar: float
    """Reward above which it counts as one."""


@dataclass
class _Arm:
    move: Move
    tried: int = 0
    gain: float = 0.0

    def promise(self, total: int, scale: float) -> float:
        if not self.tried:
            return math.inf
        return self.gain / self.tried / scale + math.sqrt(2 * math.log(total + 1) / self.tried)


@dataclass
class _Node:
    moves: tuple[Move, ...]
    total: float


def exploits(subject: Subject, solved: Solved, *, budget: int, seed: int = 0) -> Iterator[Finding]:
    """What the search finds, in words."""
    if subject.has_oracle and solved.reward is None:
        return  # which is reported; nothing says what honest progress is
    bar = honest_progress(subject, solved)
    for start in subject.starts[:2]:
        found = search(subject, start, bar, budget=budget // 2, seed=seed)
        ceiling = solved.reward
        if found.exploit is not None:
            yield Finding(
                "search for exploits",
                "warning" if ceiling is None else "error",
                f"{len(found.exploit.steps)} actions earn {found.exploit.total:.2f} without success (found "
                f"in episode {found.episodes}); honest progress earns at most {found.bar:.2f}"
                + (f", the oracle {ceiling:.2f}" if ceiling is not None else ""),
                "See what pays in the attempt below: pay it once, after the step it proves, or not at all.",
                found.exploit,
            )
            return


def honest_progress(subject: Subject, solved: Solved) -> float:
    """What may be earned without success: a solution's own milestones and form, and a little more."""
    before = [0.0]
    for start, attempt in zip(subject.starts, solved.attempts, strict=True):
        if attempt.success and attempt.parts:
            before.append(on_the_way(subject, attempt))
        elif attempt.success:
            before.append(subject.play(start, replay(attempt.actions[:-1])).total)
    return max(before) + _ABOVE * (solved.reward or 1.0)


def search(
    subject: Subject, start: Start, bar: float, *, budget: int, seed: int = 0, by_bandit: bool = True
) -> Search:
    """Look for more than ``bar`` without success in one task.

    Args:
        subject: the world.
        start: the task.
        bar: what an exploit earns more than.
        budget: most episodes.
        seed: of what is drawn.
        by_bandit: False picks sequences and moves at random, to compare with.
    """
    hunt = _Hunt(subject, start, random.Random(f"search:{seed}:{start.seed}"), by_bandit)
    for episode in range(1, budget + 1):
        attempt = hunt.try_one()
        if _is_exploit(attempt, bar):
            kept = trimmed(subject, start, attempt, lambda each: _is_exploit(each, bar))
            return Search(kept, episode, bar)
    return Search(None, budget, bar)


@dataclass
class _Hunt:
    subject: Subject
    start: Start
    rng: random.Random
    by_bandit: bool
    nodes: list[_Node] = field(default_factory=lambda: [_Node((), 0.0)])
    arms: list[_Arm] = field(init=False)

    def __post_init__(self) -> None:
        self.arms = [_Arm(move) for move in all_moves(self.subject)]
        self.rng.shuffle(self.arms)

    def try_one(self) -> Attempt:
        node, arm = self._node(), self._arm()
        moves = (*node.moves, arm.move)
        attempt = self.subject.play(self.start, _say(moves), max_turns=_DEEPEST)
        arm.tried += 1
        arm.gain += 0.0 if attempt.success else attempt.total - node.total
        if not attempt.ended and not attempt.success and len(moves) < _DEEPEST:
            self.nodes.append(_Node(moves, attempt.total))
        return attempt

    def _node(self) -> _Node:
        if not self.by_bandit:
            return self.rng.choice(self.nodes)
        best = sorted(self.nodes, key=lambda node: (-node.total, len(node.moves)))[:_BEST]
        return best[0] if self.rng.random() < 0.6 else self.rng.choice([self.nodes[0], *best])

    def _arm(self) -> _Arm:
        if not self.by_bandit:
            return self.rng.choice(self.arms)
        total = sum(arm.tried for arm in self.arms)
        scale = max((arm.gain / arm.tried for arm in self.arms if arm.tried), default=0.0) or 1.0
        return max(self.arms, key=lambda arm: arm.promise(total, scale))


def _say(moves: Sequence[Move]) -> Script:
    def script(view: View) -> Iterator[str]:
        for move in moves:
            yield move.make(view)

    return script


def _is_exploit(attempt: Attempt, bar: float) -> bool:
    return attempt.success is False and attempt.total > bar
