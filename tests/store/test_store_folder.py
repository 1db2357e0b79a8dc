"""The run folder: created once, opened or refused with the reason, with names that cannot reach outside."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from palestra.errors import StoreError
from palestra.store import FORMAT_VERSION, RunFolder

CONFIG = "env: orders\nname: prenotazione è già\n"


def create(path: Path) -> RunFolder:
    return RunFolder.create(
        path, config_text=CONFIG, resolved={"env": "orders", "gamma": 0.99}, command="palestra train x.yaml"
    )


def test_a_created_run_opens_with_what_it_was_given(tmp_path: Path) -> None:
    run = create(tmp_path / "deep" / "run")
    opened = RunFolder.open(tmp_path / "deep" / "run")
    assert opened == run
    assert opened.config_text() == CONFIG
    assert opened.resolved() == {"env": "orders", "gamma": 0.99}
    assert opened.manifest["command"] == "palestra train x.yaml"
    assert opened.manifest["libraries"]["numpy"]


def test_a_second_creation_is_refused_with_the_way_to_go_on(tmp_path: Path) -> None:
    create(tmp_path)
    with pytest.raises(StoreError, match="--resume"):
        create(tmp_path)


def test_a_folder_with_other_things_in_it_is_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(StoreError, match="not empty and is not a run"):
        create(tmp_path)
    with pytest.raises(StoreError, match="is a file"):
        create(tmp_path / "thesis.tex")
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_what_is_no_run_is_not_opened(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="no run folder"):
        RunFolder.open(tmp_path / "nowhere")
    with pytest.raises(StoreError, match="not a run"):
        RunFolder.open(tmp_path)


@pytest.mark.parametrize("torn", ['{"format_version": 1, "pal', "[]", "{}", "", "\udce9"])
def test_a_torn_manifest_is_named(tmp_path: Path, torn: str) -> None:
    create(tmp_path)
    (tmp_path / "manifest.json").write_bytes(torn.encode("utf-8", "surrogateescape"))
    with pytest.raises(StoreError, match=r"manifest\.json"):
        RunFolder.open(tmp_path)


def test_a_run_of_a_newer_format_is_refused_with_both_versions(tmp_path: Path) -> None:
    create(tmp_path)
    newer = {"format_version": FORMAT_VERSION + 1, "palestra": "9.9"}
    (tmp_path / "manifest.json").write_text(json.dumps(newer))
    with pytest.raises(StoreError, match=rf"format {FORMAT_VERSION + 1}.*9\.9.*up to {FORMAT_VERSION}"):
        RunFolder.open(tmp_path)


@pytest.mark.parametrize(
    "name", ["../x", "/etc/x", "a/b", "a\0b", "", ".", "..", ".hidden", "a\nb", "è", "x" * 300]
)
def test_a_name_cannot_reach_outside_the_run(tmp_path: Path, name: str) -> None:
    run = create(tmp_path / "run")
    for use in (
        lambda: run.write_groups(name, "a", []),
        lambda: run.write_groups("a", name, []),
        lambda: run.read_groups(name),
        lambda: run.finish_stage(name, {}),
        lambda: run.stage_result(name),
        lambda: run.write_eval(name, {}),
    ):
        with pytest.raises(StoreError, match="no name"):
            use()
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_a_path_with_a_zero_in_it_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="is no path"):
        create(tmp_path / "a\0b")


def test_stage_results_and_evaluations_come_back(tmp_path: Path) -> None:
    run = create(tmp_path)
    assert run.stage_result("sft") is None
    run.finish_stage("sft", {"format_compliance": 0.93, "recovery": float("nan")})
    run.write_eval("update-10", {"success": 0.5})
    run.write_eval("update-9", {"success": 0.25})
    assert run.stage_result("sft") == {"format_compliance": 0.93, "recovery": None}
    assert list(run.read_evals().items()) == [
        ("update-9", {"success": 0.25}),
        ("update-10", {"success": 0.5}),
    ]


def test_an_unreadable_evaluation_is_named_and_skipped(tmp_path: Path) -> None:
    run = create(tmp_path)
    run.write_eval("whole", {"success": 1})
    (tmp_path / "eval" / "broken.json").write_text('{"succ')
    with pytest.warns(UserWarning, match=r"broken\.json"):
        assert run.read_evals() == {"whole": {"success": 1}}


def test_text_beyond_ascii_survives_an_ascii_locale(tmp_path: Path) -> None:
    script = (
        "import sys; from palestra.store import RunFolder\n"
        "run = RunFolder.create(sys.argv[1], command='c',\n"
        "    config_text='n: \\u8bad\\n', resolved={'n': '\\u8bad'})\n"
        "run.append_metrics({'note': '\\u8bad'}); run.write_eval('x', {'a': '\\u8bad'})\n"
    )
    env = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    subprocess.run([sys.executable, "-c", script, str(tmp_path)], check=True, env=env)
    run = RunFolder.open(tmp_path)
    assert run.config_text() == "n: 训\n"
    assert run.resolved() == {"n": "训"}
    assert run.read_metrics()[0] == [{"note": "训"}]
    assert run.read_evals() == {"x": {"a": "训"}}
    assert "训" in (tmp_path / "metrics.jsonl").read_text(encoding="utf-8")
