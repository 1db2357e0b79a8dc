from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest

from palestra.cli import main


@dataclass(frozen=True)
class Done:
    """What a command left: its exit code and what it printed."""

    code: int
    out: str
    err: str


Palestra = Callable[..., Done]


@pytest.fixture
def palestra(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Palestra:
    """Run the command in this process, with wide lines and no colour."""
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("NO_COLOR", "1")

    def run(*arguments: object) -> Done:
        capsys.readouterr()
        with pytest.raises(SystemExit) as stopped:
            main([str(argument) for argument in arguments])
        printed = capsys.readouterr()
        return Done(int(stopped.value.code or 0), printed.out, printed.err)

    return run
