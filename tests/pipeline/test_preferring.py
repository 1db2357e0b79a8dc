"""From stored attempts to a policy that prefers the better ones, and to a reward model, in run folders."""

import io
import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console
from safetensors.torch import load_file

from palestra.errors import ConfigError, GateFailed, StoreError
from palestra.pipeline import Reporter, parse_config
from palestra.pipeline.judging import RewardModelOptions, split_by_task, train_reward_model
from palestra.pipeline.model_parts import context_window, load_judge, load_stage
from palestra.pipeline.preferring import DpoOptions, start_dpo, stored_pairs, with_ids
from palestra.pipeline.run import create_run, open_run, run_pipeline
from palestra.pipeline.workshop import Workshop
from palestra.policy import Transcript
from palestra.store import RunFolder
from palestra.training import PreferencePair, make_segments, pair_rows, preference_pairs
from palestra.types import Facts, Message, StopReason, Task, Trajectory, TrajectoryGroup, Turn

WORLD = Path(__file__).with_name("echo_world.py")
CONFIG = f"""
seed: 1
world: {{name: "{WORLD}:EchoWorld"}}
collect: {{tasks: 8, attempts: 3, wrong: 0.5, demonstrations: 8, vary_prompts: 0}}
policy: {{action_tokens: 24, threads: 1}}
rollout: {{max_turns: 2}}
sft: {{epochs: 1, rows_per_update: 8, learning_rate: 0.003}}
rl: {{updates: 1, tasks_per_update: 6, group_size: 4, minibatches: 1, learning_rate: 1.0e-9,
  final_learning_rate: 0, validate_every: 1, validation_tasks: 4}}
mine: {{rounds: 0}}
evaluation: {{tasks: 6, sampled: false}}
"""
LIMITS = parse_config(CONFIG).policy
DPO = DpoOptions(margin=0.1, beta=0.1, epochs=1, pairs_per_update=8, learning_rate=3e-4)
JUDGE = RewardModelOptions(margin=0.1, held_out=0.3, epochs=2, pairs_per_update=8, learning_rate=1e-3)


def quiet() -> Reporter:
    return Reporter(Console(file=io.StringIO()))


def shop(run: RunFolder) -> Workshop:
    return Workshop(*open_run(run.path), quiet())


def trained(path: Path, *changes: str, stages=("collect", "sft", "rl")) -> RunFolder:
    config = parse_config(CONFIG, changes)
    run = create_run(path, CONFIG, config, "test")
    run_pipeline(run, config, quiet(), stages)
    return run


def preferred(source: RunFolder, path: Path, options: DpoOptions = DPO) -> RunFolder:
    run = start_dpo(shop(source), path, options, "test")
    run_pipeline(*open_run(run.path), quiet(), ["dpo"])
    return run


def files(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    return trained(tmp_path_factory.mktemp("preferring") / "source")


@pytest.fixture(scope="module")
def template(source: RunFolder):
    return load_stage(source, "rl", parse_config(CONFIG)).template


@pytest.fixture(scope="module")
def judge(source: RunFolder, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("judge") / "judge"
    train_reward_model(shop(source), folder, JUDGE)
    return folder


def test_pairs_are_of_training_tasks_and_of_each_attempt_once(source: RunFolder, template, tmp_path: Path):
    run = RunFolder.open(shutil.copytree(source.path, tmp_path / "run"))
    before = stored_pairs(run, template, LIMITS, 0.1)
    groups = list(run.read_groups("rl"))
    assert any(pair.group_id.startswith("rl/") for pair in before)
    for stage in ("gate", "eval-sft", "demonstrations", "rl-rescored", "mine1-sft"):
        renamed = [
            replace(
                group,
                id=f"{stage}/{group.id}",
                trajectories=tuple(replace(t, id=f"{stage}/{t.id}") for t in group.trajectories),
            )
            for group in groups
        ]
        run.write_groups(stage, "more", renamed)
    after = stored_pairs(run, template, LIMITS, 0.1)
    assert [pair.rejected.id for pair in after] == [pair.rejected.id for pair in before]
    assert len({pair.rejected.id for pair in after}) == len(after)
    assert {pair.chosen.task.split for pair in after} == {"train"}


def test_a_teacher_s_attempts_get_the_ids_a_policy_would_have_had(source: RunFolder, template):
    pairs = [
        pair for pair in stored_pairs(source, template, LIMITS, 0.1) if pair.group_id.startswith("collect/")
    ]
    assert pairs
    for pair in pairs:
        for side in (pair.chosen, pair.rejected):
            (row,) = make_segments(side, [1.0] * len(side.turns))
            assert template.decode(side.turns[0].action_ids) == side.turns[0].action
            assert sum(row.action_mask) == sum(len(turn.action_ids) for turn in side.turns)


def scripted(turns: int, *, wrong: bool = False) -> Trajectory:
    """An attempt of a script that looks at letters, the first of which is long, and stamps."""
    task = Task("post/train/1", "post", "train", 1, "Sort.")
    looked = [
        Turn(f"look {n}", f"letter {n} goes to " + "Basel, " * (40 if n == 0 else 4), Facts(tool_name="look"))
        for n in range(turns)
    ]
    last = Turn("stamp 9" if wrong else "stamp 40", "sent", Facts(tool_name="stamp"))
    prompt = (Message("system", "Sort the post."), Message("user", "Sort."))
    return Trajectory(
        f"collect/0/{turns}{'x' if wrong else ''}",
        task,
        prompt,
        (*looked, last),
        StopReason.terminated,
        not wrong,
        reward=0.0 if wrong else 1.0,
    )


@pytest.mark.parametrize("mode", ["full", "window", "summary"])
def test_a_script_s_attempt_has_the_contexts_that_a_policy_is_shown(template, mode):
    """Played over again by a policy that says the same, it comes to the same rows."""
    limits = LIMITS.model_copy(update={"context": mode, "context_tokens": 260, "raw_turns": 1})
    attempt = scripted(3)
    (made,) = with_ids(TrajectoryGroup("collect/0", attempt.task, (attempt,)), template, limits).trajectories
    transcript = Transcript(template, context_window(limits), attempt.prompt)
    assert made.prompt_ids == tuple(transcript.ids)
    for turn in made.turns[:-1]:
        assert turn.prompt_ids == transcript.act(turn.action_ids)
        assert turn.observation_ids == transcript.observe(turn.action, turn.observation, turn.facts)
    assert "characters left out]" in template.decode(made.turns[0].observation_ids)


@pytest.mark.parametrize("mode", ["window", "summary"])
def test_attempts_whose_context_is_shortened_make_pairs_whose_rows_are_what_a_policy_is_shown(template, mode):
    limits = LIMITS.model_copy(update={"context": mode, "context_tokens": 260, "raw_turns": 1})
    attempts = tuple(scripted(turns, wrong=wrong) for turns in (1, 12) for wrong in (False, True))
    group = with_ids(TrajectoryGroup("collect/0", attempts[0].task, attempts), template, limits)
    cut = [bool(any(turn.prompt_ids for turn in each.turns)) for each in group.trajectories]
    assert cut == [False, False, True, True]
    for each in group.trajectories:
        for row in make_segments(each, [0.0] * len(each.turns)):
            assert len(row.ids) <= limits.context_tokens
    pairs = preference_pairs([group], 0.1)
    assert [(pair.chosen.id, pair.rejected.id, pair.turn) for pair in pairs] == [
        ("collect/0/1", "collect/0/1x", 1),
        ("collect/0/12", "collect/0/12x", 12),
    ]
    (chosen,), (rejected,) = pair_rows(pairs[1])
    start = chosen.action_mask.index(True)
    assert chosen.ids[:start] == rejected.ids[:start]
    assert template.decode(chosen.ids[start:]) == "stamp 40"
    assert ("earlier turns are not shown" in template.decode(chosen.ids)) == (mode == "window")
    (early,) = [t for t in group.trajectories if t.id == "collect/0/1"]
    parts = PreferencePair("collect/0", early, group.trajectories[3], 1)
    rows = pair_rows(parts)[1]
    assert len(rows) > 1
    acted = sum(len(turn.action_ids) for turn in group.trajectories[3].turns[1:])
    assert sum(sum(row.action_mask) for row in rows) == acted


def test_an_attempt_that_no_policy_could_have_played_out_is_in_no_pair(template):
    limits = LIMITS.model_copy(update={"context_tokens": 260})
    attempts = tuple(scripted(turns, wrong=wrong) for turns in (1, 12) for wrong in (False, True))
    group = with_ids(TrajectoryGroup("collect/0", attempts[0].task, attempts), template, limits)
    assert [bool(each.prompt_ids) for each in group.trajectories] == [True, True, False, False]
    assert len(preference_pairs([group], 0.1)) == 1
    short = limits.model_copy(update={"action_tokens": 3})
    group = with_ids(TrajectoryGroup("collect/0", attempts[0].task, attempts), template, short)
    assert not any(each.prompt_ids for each in group.trajectories)


def test_a_run_whose_attempts_fit_no_context_says_so(source: RunFolder, template):
    limits = LIMITS.model_copy(update={"context_tokens": 64, "action_tokens": 8})
    run = RunFolder.create(source.path.parent / "collected", config_text="", resolved={}, command="")
    run.write_groups("collect", "attempts", list(source.read_groups("collect")))
    count = sum(len(group.trajectories) for group in run.read_groups("collect"))
    with pytest.raises(GateFailed, match=f"{count} attempts of scripts are in no pair, as they do not fit"):
        stored_pairs(run, template, limits, 0.1)


def test_a_run_without_pairs_says_why_and_what_to_do(tmp_path: Path, template):
    run = trained(tmp_path / "run", "collect.attempts=1", stages=["collect"])
    with pytest.raises(
        GateFailed, match=r"8 groups .* \(stages: collect\) 8 have a single attempt.*--margin"
    ):
        stored_pairs(run, template, LIMITS, 0.1)


def test_dpo_starts_from_a_copy_that_stands_alone(source: RunFolder, tmp_path: Path):
    before = files(source.path)
    run = start_dpo(shop(source), tmp_path / "new", DPO, "palestra dpo")
    assert files(source.path) == before
    assert run.manifest["command"] == "palestra dpo"
    copied = files(run.path)
    changed = {"manifest.json", "dpo.json"}
    assert {name: copied[name] for name in copied.keys() - changed}.items() <= before.items()
    assert before.keys() <= copied.keys()


def test_of_each_stage_s_checkpoints_the_best_is_copied(source: RunFolder, tmp_path: Path):
    run = RunFolder.open(shutil.copytree(source.path, tmp_path / "run"))
    stage = run.path / "checkpoints" / "rl"
    shutil.copytree(stage / "step-1", stage / "step-0")  # as good, and earlier
    new = start_dpo(shop(run), tmp_path / "new", DPO, "test")
    assert [path.name for path in (new.path / "checkpoints" / "rl").iterdir()] == ["step-1"]


def test_dpo_refuses_a_place_that_is_taken_and_a_run_that_it_made(source: RunFolder, tmp_path: Path):
    run = start_dpo(shop(source), tmp_path / "new", DPO, "test")
    with pytest.raises(StoreError, match="already holds a run"):
        start_dpo(shop(source), run.path, DPO, "test")
    with pytest.raises(ConfigError, match="pairs are spent"):
        start_dpo(shop(run), tmp_path / "other", DPO, "test")
    assert not (tmp_path / "other").exists()


def test_dpo_leaves_pairs_metrics_and_an_evaluation_on_the_tasks_of_the_others(
    source: RunFolder, tmp_path: Path
):
    run = preferred(source, tmp_path / "new")
    pairs = [json.loads(line) for line in (run.path / "pairs.jsonl").read_text().splitlines()]
    result = run.stage_result("dpo")
    assert (result["pairs"], result["start"]) == (len(pairs), "rl")
    attempts = {
        t.id: t for stage in ("collect", "rl") for g in run.read_groups(stage) for t in g.trajectories
    }
    for pair in pairs:
        for side in ("chosen", "rejected"):
            assert attempts[pair[side]["id"]].turns[pair["turn"]].action == pair[side]["action"]
            assert attempts[pair[side]["id"]].reward == pair[side]["reward"]
    rows = [row for row in run.read_metrics()[0] if row["stage"] == "dpo" and "update" in row]
    assert [row["update"] for row in rows] == list(range(1, -(-len(pairs) // 8) + 1))
    assert rows[0]["dpo/loss"] == pytest.approx(0.6931, abs=1e-3)
    assert rows[-1]["dpo/loss"] < rows[0]["dpo/loss"]
    known = shop(source).held_out_tasks("test", 6)
    assert [group.task for group in run.read_groups("eval-dpo")] == known
    assert run.read_evals()["dpo-greedy"]["episodes"] == 6


class Interrupting(Reporter):
    """Stops at the second line about an update."""

    def line(self, text: str) -> None:
        if "dpo update 2/" in text:
            raise KeyboardInterrupt


def test_an_interrupted_dpo_comes_to_the_same_end(source: RunFolder, tmp_path: Path):
    calm = preferred(source, tmp_path / "calm")
    cut = start_dpo(shop(source), tmp_path / "cut", DPO, "test")
    with pytest.raises(KeyboardInterrupt):
        run_pipeline(*open_run(cut.path), Interrupting(Console(file=io.StringIO())), ["dpo"])
    assert cut.stage_result("dpo") is None
    run_pipeline(*open_run(cut.path), quiet(), ["dpo"])
    weights = [
        load_file(run.path / "checkpoints" / "dpo" / "step-1" / "model.safetensors") for run in (calm, cut)
    ]
    assert all(weights[0][name].equal(weights[1][name]) for name in weights[0])
    assert calm.read_metrics() == cut.read_metrics()
    assert calm.read_evals() == cut.read_evals()


def test_held_out_pairs_share_no_task_with_those_learned_from(source: RunFolder, template):
    pairs = stored_pairs(source, template, LIMITS, 0.1)
    known, held_out = split_by_task(pairs, 0.3, seed=0)
    assert known
    assert held_out
    assert len(known) + len(held_out) == len(pairs)
    tasks = [{pair.chosen.task.content_hash for pair in some} for some in (known, held_out)]
    assert not tasks[0] & tasks[1]
    with pytest.raises(GateFailed, match="of one task"):
        split_by_task([pairs[0]], 0.3, seed=0)


def test_a_reward_model_says_how_it_was_tested_and_is_not_made_twice(source: RunFolder, judge: Path):
    about = json.loads((judge / "reward_model.json").read_text())
    assert about["start"] == "rl"
    assert about["held_out_pairs"] > 0
    assert 0.0 <= about["held_out_accuracy"] <= 1.0
    count = len((judge / "pairs.jsonl").read_text().splitlines())
    assert about["pairs"] + about["held_out_pairs"] == count
    before = files(judge)
    assert train_reward_model(shop(source), judge, JUDGE) == about
    with pytest.raises(ConfigError, match="other options"):
        train_reward_model(shop(source), judge, replace(JUDGE, margin=0.2))
    assert files(judge) == before


def test_a_reward_model_takes_no_folder_with_something_else(source: RunFolder, tmp_path: Path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(StoreError, match="not empty"):
        train_reward_model(shop(source), tmp_path, JUDGE)


def test_reinforcement_learning_runs_with_the_reward_model_as_a_small_part(judge: Path, tmp_path: Path):
    run = trained(tmp_path / "run", f"rubric.reward_model={judge}")
    assert run.resolved()["rubric"]["weights"]["preference"] == 0.1
    attempts = [t for group in run.read_groups("rl") for t in group.trajectories]
    values = [t.reward_parts["preference"] for t in attempts]
    assert all(0.0 < value < 1.0 for value in values)
    assert len(set(values)) > 1
    for each in attempts:
        others = {"outcome": 1.0, "process": 0.25, "format": 0.1, "efficiency": 0.1, "repetition": -0.1}
        total = sum(weight * (each.reward_parts[name] or 0.0) for name, weight in others.items())
        assert each.reward == pytest.approx(total + 0.1 * each.reward_parts["preference"])
    scripted = [t for group in run.read_groups("collect") for t in group.trajectories]
    assert {t.reward_parts["preference"] for t in scripted} == {None}


def test_a_reward_model_of_another_vocabulary_is_refused(judge: Path, tmp_path: Path):
    other = shutil.copytree(judge, tmp_path / "judge")
    text = (other / "tokenizer.json").read_text(encoding="utf-8")
    changed = json.loads(text)
    changed["model"]["merges"] = changed["model"]["merges"][:-1]
    (other / "tokenizer.json").write_text(json.dumps(changed), encoding="utf-8")
    with pytest.raises(ConfigError, match="another vocabulary"):
        load_judge(str(other), "nano")


def test_the_reward_model_s_weight_can_be_set_and_needs_a_model(tmp_path: Path):
    section = parse_config("rubric: {reward_model: judge, weights: {outcome: 1, preference: 0.2}}").rubric
    assert section.weights == {"outcome": 1.0, "preference": 0.2}
    anchored = parse_config("rubric: {reward_model: judge}", folder=tmp_path).rubric
    overridden = parse_config("", ["rubric.reward_model=judge"], folder=tmp_path).rubric
    assert overridden.reward_model == str(Path.cwd() / "judge")
    assert anchored.reward_model == str(tmp_path / "judge")
    assert anchored.weights["preference"] == 0.1
    with pytest.raises(ConfigError, match=r"set rubric\.reward_model"):
        parse_config("rubric: {weights: {outcome: 1, preference: 0.2}}")
    with pytest.raises(ConfigError, match=r"no reward_model\.json"):
        Workshop(None, parse_config("rubric: {reward_model: nowhere}"), quiet()).preflight()


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_preferences_of_a_weak_policy_make_it_better_and_a_reward_model_that_is_right_more_often_than_not(
    tmp_path: Path, seed: int
):
    more = ["rl.updates=2", "rl.tasks_per_update=16", "rl.group_size=6", "rl.validate_every=2"]
    tested = ["evaluation.tasks=48", "evaluation.sampled=true", "rl.validation_tasks=16"]
    weak = ["sft.learning_rate=0.0025", "rollout.max_turns=1", "collect.attempts=1", "collect.wrong=0.06"]
    source = trained(
        tmp_path / "source",
        *more,
        *tested,
        *weak,
        f"seed={seed}",
        stages=["collect", "sft", "rl", "evaluate"],
    )
    run = preferred(source, tmp_path / "new", replace(DPO, epochs=2, pairs_per_update=16, learning_rate=1e-3))
    evals = run.read_evals()
    for mode in ("greedy", "sampled"):
        before, after = evals[f"rl-{mode}"]["success"], evals[f"dpo-{mode}"]["success"]
        print(f"seed {seed} {mode}: {before:.2f} to {after:.2f}")
        assert after >= before + 0.15, mode
    about = train_reward_model(shop(source), tmp_path / "judge", replace(JUDGE, pairs_per_update=16))
    print(f"seed {seed} reward model: {about['held_out_accuracy']:.2f} of {about['held_out_pairs']} pairs")
    assert about["held_out_accuracy"] >= 0.7
