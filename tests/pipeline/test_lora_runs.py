"""Runs that train an adapter: through every stage, killed and resumed, with checkpoints others can load."""

from pathlib import Path

import pytest
import torch
from killed_runs import finish, kill_inside, metrics
from safetensors.torch import load_file

from palestra.errors import ConfigError
from palestra.pipeline import parse_config
from palestra.pipeline.load import check_config
from palestra.pipeline.model_parts import load_learning, load_reference, load_stage, make_critic
from palestra.pipeline.run import check_settings
from palestra.policy.adapters import frozen, has_adapter, trained_state
from palestra.policy.models import load_policy
from palestra.store import RunFolder
from palestra.training import best_checkpoint

WORLD = Path(__file__).with_name("echo_world.py")
CONFIG = f"""
world: {{name: "{WORLD}:EchoWorld"}}
policy: {{threads: 1, lora: {{rank: 4}}}}
collect: {{tasks: 8, attempts: 2, demonstrations: 8}}
sft: {{epochs: 2, rows_per_update: 4, optimizer: adamw, learning_rate: 0.002}}
gate: {{tasks: 4, min_format_compliance: 0, min_success_at_group: 0}}
rl: {{algorithm: ppo, optimizer: adamw, updates: 4, tasks_per_update: 4, group_size: 4, minibatches: 2,
  learning_rate: 0.001, final_learning_rate: 0.001, validate_every: 2, validation_tasks: 4}}
mine: {{rounds: 1, tasks: 8, attempts: 2, updates: 2}}
evaluation: {{tasks: 4, sampled: false}}
"""
IDS = torch.arange(20, 40)[None]


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> tuple[RunFolder, RunFolder]:
    folder = tmp_path_factory.mktemp("lora")
    (folder / "config.yaml").write_text(CONFIG)
    calm, killed = folder / "calm", folder / "killed"
    finish(str(folder / "config.yaml"), "--out", str(calm))
    kill_inside(killed, "rl", 3, str(folder / "config.yaml"), "--out", str(killed))
    kill_inside(killed, "mine1", 1, str(killed), "--resume")
    finish(str(killed), "--resume")
    return RunFolder.open(calm), RunFolder.open(killed)


def test_a_killed_run_with_an_adapter_and_a_critic_ends_as_one_left_alone(runs):
    calm, killed = (run.path for run in runs)
    assert metrics(calm) == metrics(killed)
    names = sorted(path.relative_to(calm) for path in calm.glob("checkpoints/**/*.safetensors"))
    assert sum(name.parent.name == "adapter" for name in names) >= 3
    for name in names:
        first, second = load_file(calm / name), load_file(killed / name)
        assert first.keys() == second.keys()
        assert all(first[key].equal(second[key]) for key in first), name


def test_it_learns_by_its_adapter_and_the_reference_stays_the_sft_policy(runs):
    run = runs[0]
    config = check_config(run.resolved())
    sft, rl = load_stage(run, "sft", config), load_learning(run, "rl", config)
    with torch.no_grad():
        before = sft.model(input_ids=IDS).logits
        with frozen(load_reference(run, rl)) as reference:
            assert torch.equal(reference(input_ids=IDS).logits, before)
        assert (rl.model(input_ids=IDS).logits - before).abs().max() > 1e-3
    rows = [row for row in run.read_metrics()[0] if row["stage"] == "mine1"]
    assert all(row["policy/kl_reference"] > 0 for row in rows)


def test_a_checkpoint_is_a_plain_model_equal_to_base_and_adapter(runs):
    run = runs[0]
    config = check_config(run.resolved())
    for stage in ("rl", "mine1"):
        found = best_checkpoint(run.path / "checkpoints" / stage)
        merged, _ = load_policy(found)
        learning = load_learning(run, stage, config)
        assert has_adapter(learning.model)
        assert not has_adapter(merged)
        with torch.no_grad():
            one, other = (model(input_ids=IDS).logits for model in (merged, learning.model))
        assert torch.allclose(one, other, atol=1e-4)


def test_the_critic_goes_on_with_an_adapter_of_its_own(runs):
    run = runs[0]
    critic = make_critic(load_learning(run, "rl", check_config(run.resolved())))
    assert critic is not None
    assert critic.updates > 0
    assert any(
        value.abs().max() > 0 for name, value in trained_state(critic.model).items() if "lora_B" in name
    )
    assert not any(name.startswith("model.embed") for name in critic.tensors())


def test_muon_is_refused_with_what_to_set_instead():
    config = parse_config("policy: {lora: {}}", ["rl.optimizer=adamw"])
    with pytest.raises(ConfigError, match=r"sft.optimizer is muon: set sft.optimizer=adamw"):
        check_settings(config)
