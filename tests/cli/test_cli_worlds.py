"""Looking at worlds, playing them by hand and by script, starting a new one."""

from __future__ import annotations

import io
import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from palestra.cli.human import action_text
from palestra.envs import make_env, run_oracle
from palestra.policy import replay_script
from palestra.store import trajectory_from_dict
from palestra.types import Trajectory


def read(path: Path) -> list[Trajectory]:
    return [trajectory_from_dict(json.loads(line)) for line in path.read_text("utf-8").splitlines()]


def shorthand_solution(seed: int) -> list[str]:
    world = make_env("orders")
    calls = run_oracle(world, world.make_task(seed))
    return [" ".join([c.tool_name, *(f"{k}={v}" for k, v in c.parameters.items())]) for c in calls]


def test_the_list_of_worlds_counts_their_tasks(palestra) -> None:
    done = palestra("envs")
    assert done.code == 0
    rows = {line.split("│")[1].strip(): line for line in done.out.splitlines() if "│" in line}
    assert {
        "alerts",
        "code_repair",
        "meeting_room",
        "orders",
        "research_report",
        "research_report_leaky",
    } <= rows.keys()
    assert int(rows["orders"].split("│")[5].split()[0]) >= 495
    assert "1, 2*, 3" in rows["orders"]
    assert "test 1,000,000" in done.out


def test_one_world_is_shown_with_tools_prompt_and_task(palestra) -> None:
    done = palestra("envs", "orders")
    world = make_env("orders")
    assert world.system_prompt in done.out
    assert world.make_task(0).prompt in done.out
    assert "refunded | replaced" in done.out


def test_a_person_solves_a_task_in_shorthand(palestra, monkeypatch, tmp_path) -> None:
    lines = ["help", "tools", "", "nonsense", "finish refused", *shorthand_solution(0)]
    monkeypatch.setattr("sys.stdin", io.StringIO("\n".join(lines) + "\n"))
    done = palestra("play", "orders", "--out", tmp_path / "new" / "mine.jsonl")
    assert done.code == 0, done.err
    for words in (
        "Ticket from",
        "There is no tool 'nonsense'",
        "key=value",
        "milestone: informed",
        "Solved in",
    ):
        assert words in done.out
    (played,) = read(tmp_path / "new" / "mine.jsonl")
    assert (played.policy, played.success, played.reward) == ("human", True, pytest.approx(1.45))
    assert len(played.turns) == played.task.optimal_turns
    assert played.turns[0].action_ids == ()
    assert played.prompt[0].content == make_env("orders").system_prompt


def test_raw_text_is_sent_as_it_stands_and_errors_are_answered(palestra, monkeypatch, tmp_path) -> None:
    lines = ['{"tool_name": "finish"', '{"tool_name": "finish", "parameters": {"verdict": "wait"}}']
    monkeypatch.setattr("sys.stdin", io.StringIO("\n".join(lines)))
    done = palestra("play", "orders", "--seed", "2000001", "--out", tmp_path / "mine.jsonl")
    assert "Not solved in 2 turns" in done.out
    (played,) = read(tmp_path / "mine.jsonl")
    assert [turn.action for turn in played.turns] == lines
    assert (played.turns[0].facts.valid, played.success, played.task.split) == (False, False, "test")


def test_a_person_who_quits_leaves_no_half_episode(palestra, monkeypatch, tmp_path) -> None:
    for text in ("get_order order_id=1\nquit\n", "get_order order_id=1\n"):
        monkeypatch.setattr("sys.stdin", io.StringIO(text))
        done = palestra("play", "orders", "--episodes", "3", "--out", tmp_path / "mine.jsonl")
        assert done.code == 0
        assert "Solved 0 of 0." in done.out
    assert list(tmp_path.iterdir()) == []


def test_one_ctrl_c_at_the_prompt_is_enough() -> None:
    command = [sys.executable, "-u", "-m", "palestra.cli", "play", "orders"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        printed = b""
        while not printed.endswith(b"\n> "):
            byte = process.stdout.read(1)
            assert byte, "ended before it asked"
            printed += byte
        process.send_signal(signal.SIGINT)
        assert b"Stopped" in process.stdout.read()
        assert process.wait(timeout=20) == 0


def test_numbers_are_numbers_where_the_tool_wants_them() -> None:
    world = make_env("orders")
    sent = action_text("refund order_id=48213 amount=39", world.tools, "json")
    assert json.loads(sent)["parameters"] == {"order_id": "48213", "amount": 39}
    sent = action_text("check_stock item='red lamp'", world.tools, "json")
    assert json.loads(sent)["parameters"] == {"item": "red lamp"}
    with pytest.raises(ValueError, match="quotation"):
        action_text("check_stock item='red", world.tools, "json")


@pytest.mark.parametrize(("script", "solved"), [("oracle", 5), ("random", 0)])
def test_a_script_plays_and_its_trajectories_are_kept(palestra, tmp_path, script: str, solved: int) -> None:
    out = tmp_path / "x.jsonl"
    done = palestra("play", "alerts", "--script", script, "--episodes", 5, "--seed", 3, "--out", out)
    assert f"Solved {solved} of 5. Saved to" in done.out
    played = read(out)
    assert [t.task.seed for t in played] == [3, 4, 5, 6, 7]
    assert sum(bool(t.success) for t in played) == solved
    assert len({t.id for t in played}) == 5


def test_the_recorded_actions_replay_to_the_same_end(palestra, tmp_path) -> None:
    out = tmp_path / "x.jsonl"
    palestra("play", "orders", "--script", "teacher", "--difficulty", 3, "--out", out)
    (played,) = read(out)
    world = make_env("orders", difficulty=3)
    world.reset(seed=played.task.seed, options={"task": played.task})
    script = replay_script([turn.action for turn in played.turns])
    for number, turn in enumerate(played.turns):
        assert world.step(script(world, None, [""] * number))[0] == turn.observation


def test_a_new_world_passes_its_test_and_its_configuration_is_accepted(palestra, tmp_path) -> None:
    done = palestra("init", "pantry", "--folder", tmp_path)
    for command in ("pytest", "palestra play", "palestra train"):
        assert command in done.out
    test = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", str(tmp_path / "test_pantry.py")], check=False
    )
    assert test.returncode == 0
    planned = palestra("train", tmp_path / "pantry.yaml", "--dry-run")
    assert planned.code == 0
    assert yaml.safe_load(planned.out)["world"]["name"] == f"{tmp_path / 'pantry.py'}:Pantry"
    assert palestra("play", f"{tmp_path / 'pantry.py'}:Pantry", "--script", "oracle").out.endswith(
        "1 of 1.\n"
    )
    again = palestra("init", "pantry", "--folder", tmp_path)
    assert (again.code, "exists already" in again.err) == (2, True)


def test_parsing_cases_decide_the_exit_code(palestra, tmp_path) -> None:
    case = {
        "id": "one",
        "format": "json",
        "text": '{"tool_name": "go", "parameters": {}}',
        "tools": [{"name": "go", "parameters": {"type": "object", "properties": {}}}],
        "expected": {"tool_name": "go", "parameters": {}},
    }
    right, wrong = tmp_path / "right.jsonl", tmp_path / "wrong.jsonl"
    right.write_text(json.dumps(case))
    wrong.write_text(json.dumps(case) + "\n" + json.dumps({**case, "id": "two", "text": "stop"}))
    assert (palestra("parse", right).code, palestra("parse", right).out) == (0, "1 of 1 cases pass\n")
    done = palestra("parse", wrong)
    assert done.code == 1
    assert "two" in done.out
    assert '{"error": "no_call"}' in done.out
    assert done.out.endswith("1 of 2 cases pass\n")
