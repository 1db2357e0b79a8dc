"""``palestra doctor`` tells what it finds in a run's training."""

import json
from pathlib import Path

from palestra.monitor import DETECTORS
from palestra.store import RunFolder


def new_run(path: Path, shares: list[float]) -> Path:
    run = RunFolder.create(path, config_text="", resolved={}, command="palestra train")
    for update, share in enumerate(shares, start=1):
        row = {"stage": "rl", "update": update, "success/mean": 0.1, "groups/zero_spread": share}
        run.append_metrics(row)
    return path


def test_it_says_symptom_evidence_cause_and_remedy(palestra, tmp_path: Path):
    done = palestra("doctor", new_run(tmp_path / "run", [0.2, 0.9, 0.9, 0.9, 0.9]))
    assert done.code == 0
    assert "rl update 4: most groups teach nothing (flat_groups)" in done.out
    assert (
        "90% of groups have no spread at a success of 10%: no attempt gets further than another" in done.out
    )
    assert "mine.rounds" in done.out
    assert f"1 found by {len(DETECTORS)} detectors over 5 updates." in done.out


def test_a_healthy_run_and_an_empty_one_have_nothing(palestra, tmp_path: Path):
    for shares in ([0.2] * 5, []):
        done = palestra("doctor", new_run(tmp_path / f"run{len(shares)}", shares))
        assert (done.code, done.err) == (0, "")
        assert done.out == f"Nothing found by {len(DETECTORS)} detectors over {len(shares)} updates.\n"


def test_its_json_is_a_list_of_alarms(palestra, tmp_path: Path):
    done = palestra("doctor", new_run(tmp_path / "run", [0.9] * 4), "--json")
    (alarm,) = json.loads(done.out)
    assert (alarm["detector"], alarm["stage"], alarm["update"]) == ("flat_groups", "rl", 3)


def test_a_folder_that_is_no_run_is_a_clear_error(palestra, tmp_path: Path):
    done = palestra("doctor", tmp_path)
    assert done.code == 1
    assert "is not a run" in done.err


def test_it_tells_what_a_guard_changed_and_why(palestra, tmp_path: Path):
    path = new_run(tmp_path / "run", [0.2])
    RunFolder.open(path).append_change(
        {
            "stage": "rl",
            "update": 9,
            "setting": "rl.learning_rate",
            "before": 0.003,
            "after": 0.0015,
            "reason": "fell_back: success fell from 80% to 20%",
        }
    )
    out = palestra("doctor", path).out
    assert "rl update 9: changed rl.learning_rate 0.003 -> 0.0015\n  reason    fell_back: success fell" in out
