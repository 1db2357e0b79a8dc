"""The plan of a run: sizes are exact, and what is measured is of this machine and no round number."""

from pathlib import Path

import pytest

from palestra.pipeline import Reporter, parse_config
from palestra.pipeline.estimating import estimate, memory_by_part
from palestra.pipeline.model_parts import load_start
from palestra.pipeline.workshop import Workshop
from palestra.policy.models import weight_count
from palestra.store import RunFolder

WORLD = Path(__file__).with_name("echo_world.py")
TEXT = f'world: {{name: "{WORLD}:EchoWorld"}}\nrollout: {{concurrency: 8}}\npolicy: {{threads: 1}}'
MB = 2**20


def test_memory_is_that_of_weights_gradients_moments_and_copies():
    config = parse_config(TEXT, ["rl.algorithm=ppo", "rl.optimizer=adamw"])
    model = load_start(config).model
    size = 4 * weight_count(model) / MB
    parts = memory_by_part(model, config)
    assert parts["weights"] == parts["gradients"] == parts["reference policy"] == pytest.approx(size)
    assert parts["optimiser"] == pytest.approx(2 * size)
    assert parts["critic, with gradients and moments"] == pytest.approx(4 * size)
    layers, heads, width = 3, 2, 64  # attention layers of the nano policy
    cache = 8 * 1537 * layers * 2 * heads * width * 4 / MB
    assert parts["keys and values of episodes, at most"] == pytest.approx(cache, rel=0.01)


def test_an_adapter_needs_no_reference_and_little_for_its_moments():
    config = parse_config(TEXT, ["policy.lora={rank: 4}", "rl.optimizer=adamw", "sft.optimizer=adamw"])
    parts = memory_by_part(load_start(config).model, config)
    assert "reference policy" not in parts
    assert parts["gradients"] < 0.2 * parts["weights"]


def test_an_update_is_what_the_teacher_plays_times_the_episodes():
    config = parse_config(TEXT, ["rl.tasks_per_update=3", "rl.group_size=5"])
    found = estimate(Workshop(RunFolder(Path(), {}), config, Reporter()))
    assert found.episodes == 15
    assert found.turns >= 1
    assert found.row_tokens > found.prompt_tokens + found.sampled_tokens - 1
    assert found.rollout_seconds == pytest.approx(15 * found.sampled_tokens / found.rollout_speed)
    assert found.learning_speed > found.rollout_speed > 0
    assert found.trained == found.parameters
    assert found.peak_mb > sum(size for name, size in found.memory_mb.items() if "at most" not in name)


def test_larger_models_learn_in_smaller_passes_unless_told_otherwise():
    loaded = load_start(parse_config(TEXT))
    assert loaded.micro_batch_tokens == 4096
    assert load_start(parse_config(TEXT, ["policy.micro_batch_tokens=512"])).micro_batch_tokens == 512
