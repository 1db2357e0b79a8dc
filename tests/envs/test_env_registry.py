"""Worlds by name."""

from __future__ import annotations

import sys
from pathlib import Path

import gymnasium
import pytest

from palestra.envs import list_envs, make_env
from palestra.envs.template import write_template
from palestra.errors import ConfigError


def test_the_builtin_worlds_are_listed_with_a_summary() -> None:
    known = list_envs()
    assert {
        "orders",
        "meeting_room",
        "alerts",
        "code_repair",
        "research_report",
        "research_report_leaky",
    } <= known.keys()
    assert all(known.values())


def test_an_unknown_name_is_refused_with_the_nearest_one() -> None:
    with pytest.raises(ConfigError, match="'orders'"):
        make_env("ordres")
    with pytest.raises(ConfigError, match="'Orders'"):
        make_env("palestra.envs.builtin.orders:Ordres")
    with pytest.raises(ConfigError, match="no module"):
        make_env("no_such_module:Thing")
    with pytest.raises(ConfigError, match="no file"):
        make_env("nowhere/world.py:Thing")


def test_a_file_without_a_class_says_how_to_name_one() -> None:
    with pytest.raises(ConfigError, match=r"'shop.py' is a file.*shop.py:CLASS"):
        make_env("shop.py")


def test_a_world_is_made_from_a_module_with_its_arguments() -> None:
    env = make_env("palestra.envs.builtin.alerts:Alerts", difficulty=3)
    assert env.difficulty == 3  # type: ignore[attr-defined]


def test_an_edited_file_is_loaded_anew(tmp_path: Path) -> None:
    path = write_template("pantry", tmp_path)[0]
    before = make_env(f"{path}:Pantry")
    assert type(make_env(f"{path}:Pantry")) is type(before)
    path.write_text(path.read_text().replace("Check each", "Look at each"))
    assert make_env(f"{path}:Pantry").instructions.startswith("Look")  # type: ignore[attr-defined]


def test_a_file_imports_from_files_beside_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "words_of_the_pantry.py").write_text("ADVICE = 'Mind the step.'\n")
    path = write_template("pantry", tmp_path)[0]
    text = path.read_text().replace("\n\n\n", "\n\nfrom words_of_the_pantry import ADVICE\n\n\n", 1)
    path.write_text(f"{text}\n\nPantry.instructions = ADVICE\n")
    assert make_env(f"{path}:Pantry").instructions == "Mind the step."  # type: ignore[attr-defined]


def test_a_file_that_makes_no_env_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "thing.py"
    path.write_text("class Thing:\n    pass\n")
    with pytest.raises(ConfigError, match="no gymnasium"):
        make_env(f"{path}:Thing")


def test_an_installed_package_adds_worlds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "shop_worlds.py").write_text(
        "from palestra.envs.builtin.orders import Orders\n"
        "def make(level='2', **kwargs):\n    'Orders of a shop.'\n    return Orders(difficulty=int(level))\n"
    )
    info = tmp_path / "shop-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: shop\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[palestra.envs]\nshop = shop_worlds:make\nlost = no_such:make\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert isinstance(make_env("shop"), gymnasium.Env)
    assert make_env("shop:3").difficulty == 3  # type: ignore[attr-defined]
    assert list_envs()["shop"] == "Orders of a shop."
    assert "cannot be loaded" in list_envs()["lost"]
