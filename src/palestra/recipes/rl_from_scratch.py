"""Reinforcement learning in full: ``python -m palestra.recipes.rl_from_scratch CHECKPOINT --world orders``.

One file of the words, the worlds and torch, to be read from top to bottom: an agent plays a task several
times, attempts that earned more than their group's mean become likelier, the others less likely. It is GRPO
(Shao et al. 2024) as ``palestra train`` runs it with ``credit.negative_weight=1``, ``rl.minibatches=1``,
``rl.optimizer=adamw``, one rate and the outcome as the only reward; a test asserts the same first step.
What the library adds is speed, checkpoints, guards and everything that can go wrong.
"""

from __future__ import annotations

import argparse
import copy
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import torch
from tokenizers import Tokenizer
from torch import Tensor
from transformers import AutoModelForCausalLM

from palestra.envs import ToolEnv, make_env
from palestra.types import Action, Task

TEMPERATURE = 1.0
MAX_TURNS = 12
MAX_ACTION_TOKENS = 64
CLIP_LOW, CLIP_HIGH = 0.2, 0.28
KL_WEIGHT = 0.02
MAX_LOG_RATIO, MAX_KL_LOG_RATIO = 20.0, 5.0
"""Nats; beyond them one token could explode the loss."""


# 1. An episode is a row of tokens. Only those that the policy sampled are ever trained on. -------------


@dataclass
class Turn:
    """What the policy sampled, and the tokens of the world's reply."""

    action: list[int]
    logprobs: list[float]
    """Of each sampled token, under the weights that sampled it."""
    reply: list[int] = field(default_factory=list)
    """Empty after the last action: nothing is read after it."""


@dataclass
class Episode:
    """One attempt at a task."""

    prompt: list[int]
    turns: list[Turn]
    reward: float

    def ids(self) -> list[int]:
        """The whole row."""
        return self.prompt + [token for turn in self.turns for token in turn.action + turn.reply]

    def sampled(self) -> list[int]:
        """Positions of sampled tokens, from lengths alone: equal ids may stand elsewhere."""
        positions: list[int] = []
        start = len(self.prompt)
        for turn in self.turns:
            positions += range(start, start + len(turn.action))
            start += len(turn.action) + len(turn.reply)
        return positions


class Language:
    """A conversation as tokens: each message is opened by its role's token and closed by an end token."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        tokenizer.encode_special_tokens = True  # a control token inside a reply stays text
        self.tokenizer = tokenizer
        self.end, self.speak = self.control("end"), [self.control("assistant")]

    def control(self, name: str) -> int:
        """The id of a control token."""
        found = self.tokenizer.token_to_id(f"<|{name}|>")
        if found is None:
            raise ValueError(f"the tokenizer has no <|{name}|>: start from a folder that palestra wrote")
        return int(found)

    def message(self, role: str, text: str) -> list[int]:
        """A whole message."""
        said = self.tokenizer.encode(text, add_special_tokens=False).ids
        return [self.control(role), *said, self.end]

    def text(self, ids: list[int]) -> str:
        """What was sampled, without the end token."""
        return str(
            self.tokenizer.decode([token for token in ids if token != self.end], skip_special_tokens=False)
        )


# 2. Playing: the policy writes an action, the world replies, until one of them is done. ----------------


@torch.no_grad()
def write_action(model: Any, ids: list[int], end: int, generator: torch.Generator) -> Turn:
    """Sample tokens until the end token or the limit."""
    turn, cache, unread = Turn([], []), None, ids
    while len(turn.action) < MAX_ACTION_TOKENS and turn.action[-1:] != [end]:
        out = model(input_ids=torch.tensor([unread]), cache=cache, use_cache=True)
        distribution = torch.log_softmax(out.logits[0, -1].float() / TEMPERATURE, -1)
        token = int(torch.multinomial(distribution.exp(), 1, generator=generator))
        turn.action.append(token)
        turn.logprobs.append(float(distribution[token]))
        cache, unread = out.cache, [token]
    return turn


def play(
    model: Any, language: Language, world: ToolEnv[Any], task: Task, generator: torch.Generator
) -> Episode:
    """One attempt. The reward is the world's own verdict at the end, and nothing on the way."""
    question, _ = world.reset(options={"task": task})
    prompt = language.message("system", world.system_prompt) + language.message("user", question)
    episode = Episode(prompt + language.speak, [], 0.0)
    while len(episode.turns) < MAX_TURNS:
        turn = write_action(model, episode.ids(), language.end, generator)
        episode.turns.append(turn)
        cut = turn.action[-1] != language.end
        action = Action(language.text(turn.action), "length" if cut else "stop")
        reply, _, over, _, facts = world.step(action)
        episode.reward = float(facts["success"])
        if over:
            break
        closing = [language.end] if cut else []  # an end that nobody sampled is no part of the action
        turn.reply = closing + language.message("tool", reply) + language.speak
    episode.turns[-1].reply = []
    return episode


# 3. Credit: how much better than its group an attempt was. ---------------------------------------------


def advantages(rewards: list[float]) -> list[float]:
    """Distances from the group's mean in units of its deviation; all 0 where nothing differs."""
    if max(rewards) - min(rewards) < 1e-9:
        return [0.0] * len(rewards)
    mean = sum(rewards) / len(rewards)
    deviation = math.sqrt(sum((reward - mean) ** 2 for reward in rewards) / len(rewards))
    return [(reward - mean) / deviation for reward in rewards]


# 4. The loss: make what was better likelier, not too fast, and stay near the policy it started from. --------


def token_logprobs(model: Any, episode: Episode) -> Tensor:
    """Log-probability of every sampled token: each is predicted by the position before it."""
    ids, at = torch.tensor([episode.ids()]), torch.tensor(episode.sampled())
    logits = model(input_ids=ids, use_cache=False).logits[0, at - 1].float() / TEMPERATURE
    chosen: Tensor = torch.log_softmax(logits, -1).gather(1, ids[0, at][:, None])[:, 0]
    return chosen


def episode_loss(model: Any, reference: Any, episode: Episode, advantage: float) -> Tensor:
    """PPO's clipped surrogate and the k3 distance to the reference, summed over sampled tokens."""
    now = token_logprobs(model, episode)
    then = torch.tensor([value for turn in episode.turns for value in turn.logprobs])
    ratio = (now - then).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()
    surrogate = torch.minimum(ratio * advantage, ratio.clamp(1 - CLIP_LOW, 1 + CLIP_HIGH) * advantage)
    with torch.no_grad():
        anchor = token_logprobs(reference, episode)
    apart = (anchor - now).clamp(-MAX_KL_LOG_RATIO, MAX_KL_LOG_RATIO)
    return (-surrogate + KL_WEIGHT * (apart.exp() - 1 - apart)).sum()


def update(model: Any, reference: Any, optimizer: torch.optim.Optimizer, groups: list[list[Episode]]) -> int:
    """One step on all attempts of groups that differ; the number of tokens it learned from."""
    pairs = [
        (episode, advantage)
        for group in groups
        for episode, advantage in zip(group, advantages([each.reward for each in group]), strict=True)
        if advantage
    ]
    count = sum(len(episode.sampled()) for episode, _ in pairs)
    optimizer.zero_grad()
    for episode, advantage in pairs:  # one at a time: the gradient adds up, memory does not
        torch.autograd.backward(episode_loss(model, reference, episode, advantage) / count)
    if count:
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    return count


# 5. The loop: play, learn, play better. ----------------------------------------------------------------


def load(folder: Path) -> tuple[Any, Language]:
    """A policy that ``palestra`` wrote: weights and tokenizer."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    return model.eval(), Language(Tokenizer.from_file(str(folder / "tokenizer.json")))


def make_optimizer(model: Any, rate: float) -> torch.optim.Optimizer:
    """AdamW without weight decay."""
    return torch.optim.AdamW(model.parameters(), lr=rate, betas=(0.9, 0.95), weight_decay=0.0)


def train(
    folder: Path, world: ToolEnv[Any], *, updates: int, tasks: int, attempts: int, rate: float, seed: int
) -> list[float]:
    """Train from a checkpoint; the share of attempts that succeeded, update by update."""
    model, language = load(folder)
    reference = copy.deepcopy(model)
    optimizer, generator = make_optimizer(model, rate), torch.Generator().manual_seed(seed)
    curve = []
    for number in range(updates):
        chosen = [world.make_task(seed * 1_000 + number * tasks + index) for index in range(tasks)]
        groups = [[play(model, language, world, task, generator) for _ in range(attempts)] for task in chosen]
        curve.append(sum(each.reward for group in groups for each in group) / (tasks * attempts))
        tokens = update(model, reference, optimizer, groups)
        print(
            f"update {number + 1}/{updates}: success {curve[-1]:.0%}, learned from {tokens} tokens",
            flush=True,
        )
    return curve


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("checkpoint", type=Path, help="such as runs/quickstart-1/checkpoints/sft/step-1")
    parser.add_argument("--world", default="orders")
    parser.add_argument("--updates", type=int, default=8)
    parser.add_argument("--tasks", type=int, default=8, help="an update")
    parser.add_argument("--attempts", type=int, default=8, help="at each task")
    parser.add_argument("--rate", type=float, default=3e-4)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    train(
        asked.checkpoint,
        cast(ToolEnv[Any], make_env(asked.world)),
        updates=asked.updates,
        tasks=asked.tasks,
        attempts=asked.attempts,
        rate=asked.rate,
        seed=asked.seed,
    )


if __name__ == "__main__":
    main()
