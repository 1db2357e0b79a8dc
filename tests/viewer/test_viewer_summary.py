import json
from pathlib import Path

from rich.console import Console
from viewer_runs import new_run, solved

from palestra.evaluation import wilson_interval
from palestra.store import RunFolder
from palestra.viewer import run_summary, summary_table, trajectory_text


def printed(what: object, width: int = 80) -> str:
    console = Console(width=width, file=open("/dev/null", "w"), record=True, force_terminal=True)  # noqa: SIM115
    console.print(what)
    return console.export_text()


def test_a_summary_holds_the_stages_in_order_and_what_the_run_cost(full_run: Path) -> None:
    summary = run_summary(full_run)
    assert list(summary) == ["teacher", "sft", "rl", "oracle", "seconds", "peak_memory_mb", "world"]
    assert (summary["seconds"], summary["peak_memory_mb"], summary["world"]) == (341.5, 1200.5, "orders")
    assert summary["rl"]["success"] == solved(full_run, "rl") / 60
    assert summary["oracle"]["success"] == 1
    assert list(summary["rl"]) == [
        "success",
        "success_ci95",
        "turns",
        "invalid_actions",
        "format_compliance",
        "step_efficiency",
        "episodes",
    ]
    assert json.loads(json.dumps(summary)) == summary


def test_greedy_on_held_out_tasks_of_the_main_world_speaks_for_a_policy(tmp_path: Path) -> None:
    run = new_run(tmp_path / "run")
    for name, mode, split, world, success in (
        ("a", "sampled", "test", "orders", 0.1),
        ("b", "greedy", "train", "orders", 0.2),
        ("c", "greedy", "test", "alerts", 0.3),
        ("d", "greedy", "test", "orders", 0.4),
    ):
        run.write_eval(
            name, {"stage": "rl", "mode": mode, "split": split, "world": world, "success": success}
        )
    summary = run_summary(run.path)
    assert summary["rl"]["success"] == 0.4
    assert summary["rl"]["turns"] is None
    assert summary["world"] == "orders"


def test_an_empty_run_has_a_summary(tmp_path: Path) -> None:
    run = new_run(tmp_path / "run")
    assert run_summary(run.path) == {"seconds": None, "peak_memory_mb": None, "world": None}
    assert "Stage" in printed(summary_table(run.path))
    assert "nothing evaluated yet" in printed(summary_table(run.path))


def test_the_table_fits_a_terminal_of_80_columns(full_run: Path) -> None:
    text = printed(summary_table(full_run))
    low, high = wilson_interval(solved(full_run, "rl"), 60) or (0.0, 0.0)
    assert f"{solved(full_run, 'rl') / 0.6:.0f} % ({low * 100:.0f}–{high * 100:.0f})" in text
    assert "5 min 42 s in all stages · 1,200 MB at most" in text
    assert "…" not in text


def test_a_trajectory_is_told_turn_by_turn(full_run: Path) -> None:
    groups = list(RunFolder.open(full_run).read_groups("eval-sft"))
    failed = next(each for group in groups for each in group.trajectories if not each.success)
    text = printed(trajectory_text(failed), width=200)
    assert "failed" in text
    assert failed.task.prompt in text
    assert f"turn {len(failed.turns)}" in text
    assert f"ended: {failed.stop_reason}" in text
    assert failed.turns[0].action in text


def test_no_text_of_an_episode_reaches_the_terminal_as_a_command(hostile_run: Path) -> None:
    group = next(RunFolder.open(hostile_run).read_groups("eval-rl"))
    text = printed(trajectory_text(group.trajectories[0]), width=200)
    assert "\x1b" not in text
    assert "␛[2J [bold]" in text
