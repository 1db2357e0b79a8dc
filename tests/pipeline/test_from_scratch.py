"""The recipe that writes reinforcement learning out in full takes the library's first step."""

import copy
import io
import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from rich.console import Console

from palestra.envs import ToolEnv, make_env
from palestra.pipeline import Reporter, parse_config
from palestra.pipeline.run import create_run, run_pipeline
from palestra.recipes import rl_from_scratch as recipe
from palestra.training import ALGORITHMS, Learner, advantage_segments, clipped, policy_loss
from palestra.types import Facts, StopReason, Trajectory, TrajectoryGroup, Turn

WORLD = f"{Path(__file__).with_name('echo_world.py')}:EchoWorld"
CONFIG = f"""
seed: 1
world: {{name: "{WORLD}"}}
collect: {{tasks: 8, attempts: 1, demonstrations: 8, vary_prompts: 0}}
policy: {{action_tokens: 24}}
sft: {{epochs: 1, rows_per_update: 8, learning_rate: 0.003}}
"""
RATE = 1e-3


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    config = parse_config(CONFIG)
    run = create_run(tmp_path_factory.mktemp("scratch") / "run", CONFIG, config, "test")
    run_pipeline(run, config, Reporter(Console(file=io.StringIO())), ["collect", "sft"])
    return run.path / "checkpoints" / "sft" / "step-1"


@pytest.fixture(scope="module")
def groups(checkpoint: Path) -> list[list[recipe.Episode]]:
    model, language = recipe.load(checkpoint)
    world = make_env(WORLD)
    assert isinstance(world, ToolEnv)
    generator = torch.Generator().manual_seed(3)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(recipe, "MAX_TURNS", 2)
        patch.setattr(recipe, "MAX_ACTION_TOKENS", 24)
        return [
            [recipe.play(model, language, world, world.make_task(seed), generator) for _ in range(4)]
            for seed in range(3)
        ]


def as_group(number: int, episodes: list[recipe.Episode]) -> TrajectoryGroup:
    world = make_env(WORLD)
    assert isinstance(world, ToolEnv)
    task = world.make_task(number)
    attempts = tuple(
        Trajectory(
            id=f"rl/1/{number}/{index}",
            task=task,
            prompt=(),
            turns=tuple(
                Turn(
                    "a",
                    "o",
                    Facts(),
                    action_ids=tuple(turn.action),
                    sampled_logprobs=tuple(turn.logprobs),
                    observation_ids=tuple(turn.reply),
                )
                for turn in episode.turns
            ),
            stop_reason=StopReason.terminated,
            success=bool(episode.reward),
            prompt_ids=tuple(episode.prompt),
            reward=episode.reward,
        )
        for index, episode in enumerate(episodes)
    )
    return TrajectoryGroup(f"rl/1/{number}", task, attempts)


def test_the_recipe_and_the_library_take_the_same_first_step(checkpoint: Path, groups):
    assert any(len({episode.reward for episode in group}) > 1 for group in groups)
    mine, _ = recipe.load(checkpoint)
    theirs = copy.deepcopy(mine)
    reference = copy.deepcopy(mine)
    before = [parameter.detach().clone() for parameter in mine.parameters()]
    tokens = recipe.update(mine, reference, recipe.make_optimizer(mine, RATE), groups)

    rows = advantage_segments(
        [as_group(number, episodes) for number, episodes in enumerate(groups)],
        ALGORITHMS["grpo"].make_credit(),
    )
    loss = policy_loss(clipped(), kl_weight=recipe.KL_WEIGHT)
    metrics = Learner(theirs, optimizer="adamw").update(rows, loss, RATE, reference)
    assert metrics["tokens/trained"] == tokens
    moved = [(now - was).abs().max() for now, was in zip(mine.parameters(), before, strict=True)]
    assert max(moved) > RATE / 2
    apart = [(one - other).abs() for one, other in zip(mine.parameters(), theirs.parameters(), strict=True)]
    # Adam's first step is the gradient's sign times the rate: only gradients near 0 may differ, by rounding.
    assert sum((each > RATE / 100).sum() for each in apart) < 1e-3 * sum(each.numel() for each in apart)
    gradients = [
        (one.grad - other.grad).norm() / one.grad.norm().clamp(min=1e-12)
        for one, other in zip(mine.parameters(), theirs.parameters(), strict=True)
    ]
    assert max(gradients) < 1e-4


def test_sampled_positions_come_from_lengths():
    turns = [recipe.Turn([5, 5], [0.0, 0.0], [5, 5, 5]), recipe.Turn([5], [0.0])]
    episode = recipe.Episode([5, 5], turns, 1.0)
    assert episode.ids() == [5] * 8
    assert episode.sampled() == [2, 3, 7]


def test_the_command_trains_and_says_how_it_goes(checkpoint: Path):
    command = [sys.executable, "-m", "palestra.recipes.rl_from_scratch", str(checkpoint), "--world", WORLD]
    done = subprocess.run(
        [*command, "--updates", "1", "--tasks", "1", "--attempts", "2"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.dumps(done.stdout).count("update 1/1: success") == 1
