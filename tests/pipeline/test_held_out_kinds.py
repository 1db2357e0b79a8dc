"""Kinds of task that are held out: never trained on, and played where they are asked for."""

import io
from pathlib import Path

import pytest
from rich.console import Console

from palestra.errors import ConfigError
from palestra.pipeline import Reporter, parse_config
from palestra.pipeline.workshop import Workshop
from palestra.store import RunFolder


def workshop(world):
    config = parse_config(f"world: {world}")
    return Workshop(RunFolder(Path(), {}), config, Reporter(Console(file=io.StringIO())))


@pytest.mark.parametrize(
    ("name", "held"),
    [
        ("orders", "broken"),
        ("meeting_room", "taken"),
        ("alerts", "overload"),
        ("code_repair", "comparison"),
        ("research_report", "replaced_and_held"),
    ],
)
def test_a_kind_that_is_held_out_is_in_no_source_but_its_own(name, held):
    shop = workshop(f"{{name: {name}, hold_out: [{held}]}}")
    trained = [*shop.train_tasks(60, "rl"), *shop.tasks.take("test", 60)]
    assert held not in {task.data["kind"] for task in trained}
    assert len({task.data["kind"] for task in trained}) >= 3
    assert {task.data["kind"] for task in shop.held_out_kinds.take("test", 20)} == {held}
    assert workshop(f"{{name: {name}}}").held_out_kinds is None


def test_a_kind_that_there_is_not_is_refused_with_the_nearest_one():
    with pytest.raises(ConfigError, match=r"no task of orders is 'brokn'. Did you mean 'broken'\?"):
        workshop("{name: orders, hold_out: [brokn]}").preflight()
    with pytest.raises(ConfigError, match="nothing is left to train on"):
        workshop("{name: orders, difficulty: 1, hold_out: [double_charge, parcel_not_arrived]}").preflight()
    world = Path(__file__).with_name("echo_world.py")
    with pytest.raises(ConfigError, match="tasks of echo_world have no kind"):
        workshop(f"{{name: '{world}:EchoWorld', hold_out: [x]}}").preflight()
