"""Runs from the command line: made, gone on with, reported and scored anew."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

from palestra.cli import main
from palestra.cli.rescoring import best_changes, rank_correlation, read_rubric
from palestra.pipeline import RunConfig, parse_config
from palestra.store import RunFolder


@pytest.fixture(scope="module")
def collected(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that collected from six tasks."""
    folder = tmp_path_factory.mktemp("cli") / "run"
    options = ["--set", "collect.tasks=6", "--set", "collect.attempts=2", "--seed", "5"]
    with pytest.raises(SystemExit) as stopped:
        main(["collect", "quickstart", *options, "--out", str(folder)])
    assert not stopped.value.code
    return folder


def files(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def test_collect_leaves_a_whole_run(collected: Path) -> None:
    run = RunFolder.open(collected)
    assert run.resolved()["seed"] == 5
    assert run.resolved()["collect"]["tasks"] == 6
    assert len(list(run.read_groups("collect"))) == 6
    assert list(run.read_groups("demonstrations"))
    assert run.stage_result("collect")["attempts"] == 12


def test_settings_that_do_not_fit_are_refused_before_a_run_is_made(palestra, tmp_path: Path) -> None:
    out = tmp_path / "run"
    done = palestra("train", "quickstart", "--out", out, "--set", "rl.algorithm=grpoo")
    assert done.code == 2
    assert "Did you mean 'grpo'?" in done.err
    assert not out.exists()


def test_a_finished_stage_is_not_repeated(palestra, collected: Path) -> None:
    before = files(collected)
    done = palestra("collect", collected, "--resume")
    assert done.code == 0
    assert "finished already" in done.out
    assert files(collected) == before


def test_a_run_is_gone_on_with_only_if_asked(palestra, collected: Path) -> None:
    done = palestra("train", collected)
    assert done.code == 2
    assert f"palestra train {collected} --resume" in done.err
    done = palestra("train", collected, "--resume", "--set", "rl.updates=1")
    assert (done.code, "--set" in done.err) == (2, True)


def test_a_run_that_is_done_ends_in_its_table_and_report(palestra, collected: Path, tmp_path) -> None:
    path = shutil.copytree(collected, tmp_path / "run")
    run = RunFolder.open(path)
    for stage in ("sft", "gate", "rl", "mine", "evaluate"):
        run.finish_stage(stage, {"seconds": 1.0})
    run.write_eval("oracle-scripted", {"stage": "oracle", "success": 1.0, "episodes": 9, "world": "orders"})
    done = palestra("train", path, "--resume")
    assert done.code == 0
    assert "World: orders" in done.out
    assert "Oracle" in done.out
    assert done.out.endswith(f"Report: {path / 'report.html'}\n")
    assert (path / "report.html").exists()


def test_an_existing_folder_is_never_written_over(palestra, collected: Path) -> None:
    before = files(collected)
    done = palestra("collect", "quickstart", "--out", collected)
    assert done.code == 1
    assert "already holds a run" in done.err
    assert files(collected) == before


def test_a_stage_without_weights_is_not_evaluated(palestra, collected: Path) -> None:
    done = palestra("eval", collected)
    assert done.code == 2
    assert "no whole checkpoint" in done.err


def test_the_report_is_json_alone_or_a_table_and_a_page(palestra, collected: Path) -> None:
    done = palestra("report", collected, "--json")
    assert json.loads(done.out)["world"] == "orders"
    assert not (collected / "report.html").exists()
    done = palestra("report", collected)
    assert "World: orders" in done.out
    assert "orders" in (collected / "report.html").read_text("utf-8")


def test_a_dry_run_prints_a_configuration_that_means_the_same(palestra, monkeypatch, tmp_path) -> None:
    monkeypatch.chdir(tmp_path)
    done = palestra("train", "quickstart", "--set", "rl.updates=5", "--seed", "3", "--dry-run")
    assert list(tmp_path.iterdir()) == []
    planned = parse_config(done.out)
    assert planned == RunConfig.model_validate({"seed": 3, "rl": {"updates": 5}})
    assert "300 episodes by the teacher" in done.out
    assert "5 updates, 768 episodes with validation" in done.out
    assert "evaluate  1,200 episodes: 6 policies" in done.out


def test_a_dry_run_of_one_verb_plans_its_stages_alone(palestra, collected: Path) -> None:
    done = palestra("sft", collected, "--dry-run")
    assert done.code == 0
    assert "12 episodes by the teacher" in done.out
    assert "passes over" in done.out
    assert "#   rl" not in done.out


def test_runs_are_numbered_by_what_is_free(palestra, monkeypatch, tmp_path) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny.yaml").write_text("collect: {tasks: 2}\n")
    (tmp_path / "runs" / "tiny-1").mkdir(parents=True)
    done = palestra("collect", "tiny.yaml")
    assert "Next: palestra sft runs/tiny-2" in done.out
    assert RunFolder.open("runs/tiny-2").config_text() == "collect: {tasks: 2}\n"


def test_ctrl_c_says_how_to_go_on(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "palestra.cli", "collect", "quickstart", "--set", "collect.tasks=200000"]
    process = subprocess.Popen(
        command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    with process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == "Run: runs/quickstart-1\n"
        process.send_signal(signal.SIGINT)
        assert "palestra collect runs/quickstart-1 --resume" in process.stderr.read()
        assert process.wait(timeout=30) == 130


def test_ctrl_c_while_libraries_load_ends_the_process(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "palestra.cli", "train", "quickstart"]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        time.sleep(1.0)
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=30) in (-signal.SIGINT, 130)


def test_scoring_anew_shows_what_changes_and_writes_only_if_asked(
    palestra, collected: Path, tmp_path
) -> None:
    run = shutil.copytree(collected, tmp_path / "run")
    before = files(run)
    done = palestra("rescore", run, "--rubric", "outcome=1,process=0.5")
    assert done.code == 0
    assert "collect: 12 episodes" in done.out
    assert "demonstrations:" in done.out
    assert "best attempt changes" in done.out
    assert files(run) == before

    (tmp_path / "rubric.yaml").write_text(yaml.safe_dump({"weights": {"efficiency": 1.0}}))
    done = palestra("rescore", run, "--rubric", tmp_path / "rubric.yaml", "--stage", "collect", "--write")
    after = files(run)
    assert after.keys() - before.keys() == {"trajectories/collect-rescored/attempts.parquet"}
    assert {name: after[name] for name in before} == before
    for group in RunFolder.open(run).read_groups("collect-rescored"):
        for t in group.trajectories:
            shortest = t.task.optimal_turns
            assert t.reward == pytest.approx(min(1.0, shortest / len(t.turns)) if t.success else 0.0)
    assert "collect-rescored:" not in palestra("rescore", run, "--rubric", "outcome=1").out


@pytest.mark.parametrize("rubric", ["outcome=1,proces=1", "outcome=much", "none.yaml", "outcome=0"])
def test_a_rubric_with_a_mistake_is_refused(palestra, collected: Path, rubric: str) -> None:
    done = palestra("rescore", collected, "--rubric", rubric)
    assert (done.code, done.out) == (2, "")


def test_an_unknown_stage_is_refused_with_the_known(palestra, collected: Path) -> None:
    done = palestra("rescore", collected, "--rubric", "outcome=1", "--stage", "rll")
    assert done.code == 2
    assert "collect, demonstrations" in done.err


def test_a_rubric_reads_from_every_form(tmp_path: Path) -> None:
    whole, plain = tmp_path / "config.yaml", tmp_path / "plain.yaml"
    whole.write_text("seed: 1\nrubric:\n  allow_uneven_scales: true\n  weights: {outcome: 100, format: 1}\n")
    plain.write_text("outcome: 1\nprocess: 0.5\n")
    assert read_rubric(str(whole)).weights == {"outcome": 100.0, "format": 1.0}
    assert read_rubric(str(plain)).weights == read_rubric("outcome=1, process=0.5").weights


def test_a_best_attempt_changes_when_no_attempt_is_best_twice() -> None:
    assert best_changes([([1.0, 0.0], [0.0, 1.0]), ([1.0, 1.0], [0.0, 1.0])]) == 0.5
    assert best_changes([([1.0], [0.0])]) is None


def test_rank_correlation_shares_ranks_among_ties() -> None:
    assert rank_correlation([1, 2, 3], [10, 20, 30]) == pytest.approx(1.0)
    assert rank_correlation([1, 2, 3], [3, 2, 1]) == pytest.approx(-1.0)
    assert rank_correlation([1, 1, 2], [5, 6, 7]) == pytest.approx(3**0.5 / 2)
    assert rank_correlation([1, 1], [1, 2]) is None


def test_a_dry_run_refuses_settings_of_the_learner_that_do_not_fit(palestra) -> None:
    for change, said in (
        ("rl.algorithm=grpoo", "Did you mean 'grpo'"),
        ("credit.gae_lambda=0.9", "has no use for it"),
        ("curriculum.max_turns=[4,99]", "rollout.max_turns is 12"),
    ):
        done = palestra("train", "quickstart", "--set", change, "--dry-run")
        assert done.code == 2
        assert said in done.err
