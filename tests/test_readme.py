"""The README keeps its word: its tree is the tree, its examples run."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[1]
ROOT = REPOSITORY / "src" / "palestra"
README = (REPOSITORY / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w*)[^\n]*\n(.*?)^```", README, flags=re.MULTILINE | re.DOTALL)
EXAMPLES = [text for language, text in BLOCKS if language == "python"]
TREE_LINE = re.compile(r"^[\s│├└─|`+-]*(?P<name>\w+)(?:/|\.py)\s+\S", flags=re.MULTILINE)


def file_tree() -> set[str]:
    """The names in the block that describes the parts: folders and files, one a line, each with a text."""
    trees = [set(TREE_LINE.findall(text)) for language, text in BLOCKS if language in ("", "text")]
    return max(trees, key=len, default=set())


def parts() -> set[str]:
    folders = {path.parent.name for path in ROOT.glob("*/__init__.py")}
    return folders | {path.stem for path in ROOT.glob("*.py") if path.stem != "__init__"}


def test_the_file_tree_lists_every_part() -> None:
    assert sorted(parts() - file_tree()) == []


def test_the_file_tree_lists_nothing_that_is_not_there() -> None:
    there = {path.stem for base in (ROOT, REPOSITORY, REPOSITORY / "src") for path in base.iterdir()}
    there |= {path.stem for path in ROOT.glob("*/*")}
    assert sorted(file_tree() - there) == []


def test_there_are_examples() -> None:
    assert EXAMPLES


@pytest.mark.parametrize("number", range(len(EXAMPLES)))
def test_an_example_runs(number: int, tmp_path: Path) -> None:
    script = tmp_path / "example.py"
    script.write_text(EXAMPLES[number], encoding="utf-8")
    done = subprocess.run(
        [sys.executable, script.name], cwd=tmp_path, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, f"{EXAMPLES[number]}\n{done.stderr}"
