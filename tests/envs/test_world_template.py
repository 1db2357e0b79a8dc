"""What ``palestra init`` writes works as it stands."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from palestra.envs.template import write_template
from palestra.errors import ConfigError


def test_the_template_passes_its_own_test(tmp_path: Path) -> None:
    paths = write_template("my_pantry", tmp_path / "new")
    assert [path.name for path in paths] == ["my_pantry.py", "my_pantry.yaml", "test_my_pantry.py"]
    assert len(paths[0].read_text().splitlines()) < 100
    assert 'name: "my_pantry.py:MyPantry"' in paths[1].read_text()
    assert not any("$" in path.read_text() for path in paths)
    result = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", str(paths[2])],
        cwd=paths[2].parent,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stdout
    assert "2 passed" in result.stdout


def test_existing_files_are_never_overwritten(tmp_path: Path) -> None:
    (tmp_path / "pantry.yaml").write_text("mine")
    with pytest.raises(ConfigError, match=r"pantry\.yaml"):
        write_template("pantry", tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["pantry.yaml"]


@pytest.mark.parametrize("name", ["", "9lives", "class", "two words", "Fridge", "../up", "_x"])
def test_a_bad_name_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be called"):
        write_template(name, tmp_path)
    assert not list(tmp_path.iterdir())
