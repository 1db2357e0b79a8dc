"""Help is quick and shows how, and what goes wrong is one clear line with the right exit code."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from palestra.cli.app import EXTRAS, VERBS

NAMES = [name for verbs in VERBS.values() for name in verbs]

WITHOUT_TRAINING = """
import sys
from importlib.machinery import PathFinder
class Without(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name.partition(".")[0] in absent else super().find_spec(name, path, target)
absent = sys.argv[1].split(",")
sys.meta_path[sys.meta_path.index(PathFinder)] = Without
from palestra.cli import main
main(sys.argv[2:])
"""


def test_help_loads_nothing_that_is_slow() -> None:
    code = (
        "import sys\nfrom palestra.cli import main\n"
        "try:\n    main(['--help'])\nfinally:\n"
        "    slow = {'torch', 'numpy', 'pydantic', 'gymnasium', 'pyarrow', 'jinja2'} & set(sys.modules)\n"
        "    sys.exit(f'loads {slow}' if slow else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert all(name in done.stdout for name in NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_every_verb_shows_examples_of_itself(palestra, name: str) -> None:
    done = palestra(name, "--help")
    assert done.code == 0
    assert f"palestra {name}" in done.out.split("Examples:")[1]


def test_the_module_runs_like_the_command() -> None:
    done = subprocess.run([sys.executable, "-m", "palestra.cli", "--help"], capture_output=True, text=True)
    assert done.returncode == 0
    assert "Usage: palestra" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["train", "quickstart", "--set", "rl.updats=3"], 2, "Did you mean rl.updates?"),
        (["train", "quickstart", "--set", "rl.updates=many"], 2, "rl.updates"),
        (["train", "quickstart", "--set", "world.name=order"], 2, "did you mean 'orders'?"),
        (["train", "missing.yaml"], 2, "missing.yaml"),
        (["train", "missing", "--resume"], 1, "no run folder missing"),
        (["train", "quickstart", "--resume", "--seed", "1"], 2, "--seed"),
        (["eval", "missing"], 2, "model.safetensors"),
        (["dpo", "missing"], 1, "no run folder missing"),
        (["dpo", "missing", "--resume"], 1, "no run folder missing"),
        (["reward-model", "missing"], 1, "no run folder missing"),
        (["train", "quickstart", "--set", "rubric.reward_model=nowhere"], 2, "palestra reward-model"),
        (["report", "missing"], 1, "no run folder missing"),
        (["rescore", "missing", "--rubric", "outcome=1"], 1, "no run folder missing"),
        (["play", "fridges"], 2, "no world is called 'fridges'"),
        (["play", "orders", "--seed", "9000000"], 2, "belongs to no split"),
        (["play", "orders", "--difficulty", "9"], 2, "difficulties"),
        (["envs", "order"], 2, "orders"),
        (["init", "Two Words"], 2, "cannot be called"),
        (["parse", "missing.jsonl"], 2, "missing.jsonl"),
    ],
)
def test_a_mistake_is_told_in_one_line(palestra, monkeypatch, tmp_path, arguments, code, words) -> None:
    monkeypatch.chdir(tmp_path)
    done = palestra(*arguments)
    assert (done.code, done.out) == (code, "")
    assert done.err.startswith("Error: ")
    assert words in done.err
    assert "Traceback" not in done.err
    assert list(tmp_path.iterdir()) == []


def test_a_terminal_that_lacks_a_letter_ends_nothing(tmp_path: Path) -> None:
    env = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    command = [sys.executable, "-m", "palestra.cli"]
    shown = subprocess.run([*command, "envs"], capture_output=True, env=env)
    assert (shown.returncode, shown.stderr) == (0, b"")
    wrong = subprocess.run([*command, "doctor", "\u4f60\u597d"], capture_output=True, env=env, cwd=tmp_path)
    assert wrong.returncode == 1
    assert b"no run folder" in wrong.stderr


def test_a_core_install_says_what_training_needs(tmp_path: Path) -> None:
    command = [sys.executable, "-c", WITHOUT_TRAINING, ",".join(EXTRAS["train"])]
    for arguments in (["train", "quickstart"], ["eval", "nano", "--world", "orders"]):
        done = subprocess.run([*command, *arguments], cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 1
        assert re.match("Error: This needs (torch|httpx2), ", done.stderr)
        assert "pip install 'palestra[train]'" in done.stderr
    assert not (tmp_path / "runs").exists()


def test_serving_says_what_it_needs(tmp_path: Path) -> None:
    command = [sys.executable, "-c", WITHOUT_TRAINING, ",".join(EXTRAS["serve"]), "serve-model", "nano"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 1
    assert "pip install 'palestra[serve]'" in done.stderr


def test_a_core_install_plays_and_plans(tmp_path: Path) -> None:
    command = [sys.executable, "-c", WITHOUT_TRAINING, ",".join(EXTRAS["train"])]
    for arguments in (["play", "orders", "--script", "oracle"], ["train", "quickstart", "--dry-run"]):
        done = subprocess.run([*command, *arguments], cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr


def test_a_value_the_user_set_in_the_environment_stays(palestra, monkeypatch) -> None:
    monkeypatch.setenv("GOMP_SPINCOUNT", "7")
    palestra("--help")
    assert os.environ["GOMP_SPINCOUNT"] == "7"
