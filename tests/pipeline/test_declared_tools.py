"""A run whose policy is told of its tools by its own chat template."""

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from palestra.cli import main
from palestra.errors import ConfigError, StoreError
from palestra.pipeline import Reporter, parse_config
from palestra.pipeline.load import check_config
from palestra.pipeline.model_parts import context_window, load_stage
from palestra.pipeline.run import create_run, run_pipeline
from palestra.pipeline.workshop import Workshop
from palestra.policy.nano import NANO_FOLDER
from palestra.store import RunFolder
from palestra.training import make_segments, tokenize_trajectory
from small_models import write_llama

WORLD = Path(__file__).with_name("echo_world.py")


def config_text(model: Path) -> str:
    return f"""
world: {{name: "{WORLD}:EchoWorld", tools: schemas, action_format: qwen}}
policy: {{model: "{model}", action_tokens: 48, threads: 1}}
collect: {{tasks: 8, demonstrations: 8, vary_prompts: 0.5}}
sft: {{epochs: 1, rows_per_update: 4, optimizer: adamw, learning_rate: 0.001}}
gate: {{tasks: 2, min_format_compliance: 0, min_success_at_group: 0}}
rl: {{updates: 1, tasks_per_update: 2, group_size: 2, optimizer: adamw, validation_tasks: 2}}
rollout: {{max_turns: 3, max_invalid: 9, max_repeats: 9}}
mine: {{rounds: 0}}
evaluation: {{tasks: 2, sampled: false}}
"""


@pytest.fixture(scope="module")
def said() -> io.StringIO:
    return io.StringIO()


@pytest.fixture(scope="module")
def run(tmp_path_factory, said: io.StringIO) -> RunFolder:
    folder = tmp_path_factory.mktemp("declared")
    text = config_text(write_llama(folder / "model", declares=True))
    config = parse_config(text)
    made = create_run(folder / "run", text, config, "test")
    run_pipeline(made, config, Reporter(Console(file=said, width=300)))
    return made


def test_demonstrations_and_the_policy_s_episodes_have_the_same_prompt_ids(run: RunFolder):
    config = check_config(run.resolved())
    loaded = load_stage(run, "rl", config)
    shown = [t for group in run.read_groups("demonstrations") for t in group.trajectories]
    workshop = Workshop(run, config, Reporter(Console(file=io.StringIO())))
    tasks = [demonstration.task for demonstration in shown]
    groups = workshop.collect(loaded.policy("rl", 1.0), tasks, 1, stage="again", seed=0)
    offered = set()
    for demonstration, group in zip(shown, groups, strict=True):
        (played,) = group.trajectories
        made = tokenize_trajectory(demonstration, loaded.template, context_window(config.policy))
        assert made.prompt_ids == played.prompt_ids
        assert demonstration.prompt == played.prompt
        text = loaded.template.decode(played.prompt_ids)
        names = tuple(spec.name for spec in played.prompt[0].tools)
        lines = [json.loads(line) for line in text.splitlines() if line[:1] == "{"]
        assert tuple(line["function"]["name"] for line in lines) == names
        offered.add(names)
    assert ("say",) in offered
    assert any(len(names) > 1 for names in offered), "no prompt has distractors"


def test_demonstrated_calls_are_in_the_template_s_form(run: RunFolder):
    (demonstration, *_) = next(iter(run.read_groups("demonstrations"))).trajectories
    word = demonstration.turns[-1].facts.parameters["word"]
    assert demonstration.turns[-1].action == (
        f'<tool_call>\n{{"name": "say", "arguments": {{"word": "{word}"}}}}\n</tool_call>'
    )
    assert demonstration.turns[-1].facts.parse_tier == "strict"


def test_the_rows_that_are_learned_from_begin_with_the_prompt_that_declares_the_tools(run: RunFolder):
    template = load_stage(run, "rl", check_config(run.resolved())).template
    for group in run.read_groups("rl"):
        for played in group.trajectories:
            (row,) = make_segments(played, [1.0] * len(played.turns))
            prompt = tuple(template.render(played.prompt))
            assert played.prompt[0].tools
            assert row.ids[: len(prompt)] == prompt
            assert not any(row.action_mask[: len(prompt)])


def test_the_run_says_once_how_tools_and_observations_are_written(run: RunFolder, said: io.StringIO):
    result = run.stage_result("sft")
    assert (result["tools"], result["action_format"], result["observed_as"]) == ("schemas", "qwen", "user")
    assert said.getvalue().count("calls are in qwen, observations have the role user") == 1


def test_masks_and_eval_read_such_a_run(run: RunFolder, capsys):
    for words in (["masks", str(run.path)], ["eval", str(run.path), "--tasks", "2"]):
        with pytest.raises(SystemExit) as stopped:
            main(words)
        assert not stopped.value.code
    text = capsys.readouterr().out
    assert '"name": "say"' in text
    assert "0 prefix breaks" in text
    assert (run.path / "eval" / "cli-rl-greedy-test-echo_world.json").exists()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("world.action_format=json", "set world.action_format=qwen, not json"),
        (f"policy.model={NANO_FOLDER}", r"declares no tools.*world\.tools: text"),
    ],
)
def test_tools_that_cannot_be_declared_are_refused_before_anything_starts(
    run: RunFolder, tmp_path: Path, change: str, message: str
):
    text = run.config_text()
    with pytest.raises(ConfigError, match=message):
        create_run(tmp_path / "new", text, parse_config(text, [change]), "test")
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    ("missing", "message"),
    [
        ("tokenizer.json", r"tokenizer in .*/model cannot be (loaded|used)"),
        ("chat_template.jinja", r"tokenizer in .*/model cannot be used.*no chat template.*instruct or chat"),
    ],
)
def test_a_folder_that_cannot_say_how_tools_are_declared_is_refused_before_anything_starts(
    tmp_path: Path, missing: str, message: str
):
    text = config_text(write_llama(tmp_path / "model", declares=True))
    (tmp_path / "model" / missing).unlink()
    with pytest.raises((ConfigError, StoreError), match=message):
        create_run(tmp_path / "new", text, parse_config(text), "test")
    assert not (tmp_path / "new").exists()


def test_a_model_whose_template_leaves_tools_out_is_refused_by_name_with_the_remedy(tmp_path: Path):
    text = config_text(write_llama(tmp_path / "model"))
    with pytest.raises(
        ConfigError, match=r"policy\.model=.*/model: .*does not show tools.*world\.tools: text"
    ):
        create_run(tmp_path / "new", text, parse_config(text), "test")


def test_text_is_what_worlds_had_and_still_have(run: RunFolder):
    config = check_config(run.resolved())
    plain = config.world.model_copy(update={"tools": "text"})
    workshop = Workshop(run, config.model_copy(update={"world": plain}), Reporter())
    world = workshop.make_world()
    world.reset(seed=1)
    assert "- say(word): say a word" in world.system_prompt
    assert not world.schema_tools
