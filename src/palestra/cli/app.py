"""The list of verbs, and what all of them share: help, errors and exit codes.

Exit codes: 0 done, 1 it failed, 2 it was asked wrongly (usage or configuration), 130 interrupted.
The one surprising choice: the ``Examples`` section of a verb's docstring is what its ``--help`` shows, so
there is one text to keep true.
"""

from __future__ import annotations

import inspect
import io
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import typer

from palestra.cli.auditing import audit
from palestra.cli.chatting import chat
from palestra.cli.comparing import compare
from palestra.cli.estimate import plan
from palestra.cli.evaluating import evaluate
from palestra.cli.interrupts import end_at_once
from palestra.cli.masking import masks
from palestra.cli.preferring import dpo, reward_model
from palestra.cli.rescoring import rescore
from palestra.cli.results import doctor, parse, replay, report
from palestra.cli.serving import serve_model
from palestra.cli.training import collect, sft, train
from palestra.cli.worlds import envs, init, play
from palestra.errors import ConfigError, PalestraError

ENVIRONMENT = {
    "GOMP_SPINCOUNT": "10000",  # spin briefly: the default takes the cores from others, none is slow
    "TOKENIZERS_PARALLELISM": "false",
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_VERBOSITY": "error",
    "HF_HUB_DISABLE_PROGRESS_BARS": "1",  # of transformers too: loading takes no time worth a bar
}
"""Read by libraries when they load; a value that the user has set stays."""
EXTRAS = {
    "train": {"torch", "transformers", "tokenizers", "safetensors", "matplotlib", "peft", "httpx2"},
    "serve": {"starlette", "uvicorn"},
}
"""What a library that is missing comes with."""

VERBS: Mapping[str, Mapping[str, Callable[..., None]]] = {
    "Train": {
        "plan": plan,
        "train": train,
        "collect": collect,
        "sft": sft,
        "dpo": dpo,
        "reward-model": reward_model,
    },
    "Look at results": {
        "eval": evaluate,
        "compare": compare,
        "report": report,
        "doctor": doctor,
        "replay": replay,
        "masks": masks,
        "rescore": rescore,
    },
    "Use": {"chat": chat, "serve-model": serve_model},
    "Worlds": {"envs": envs, "play": play, "audit": audit, "init": init, "parse": parse},
}
"""Every verb by the heading it has in ``palestra --help``."""

app = typer.Typer(
    help="Train LLM agents to act over many turns with reinforcement learning.",
    epilog="Start here:\n\npalestra train quickstart",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _add(name: str, verb: Callable[..., Any], heading: str) -> None:
    about, _, examples = (inspect.getdoc(verb) or "").partition("\n\nExamples:\n")
    lines = [line.strip() for line in examples.strip().splitlines()]
    app.command(name, help=about, epilog="\n\n".join(["Examples:", *lines]), rich_help_panel=heading)(verb)


for _heading, _verbs in VERBS.items():
    for _name, _verb in _verbs.items():
        _add(_name, _verb, _heading)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command and exit the process.

    Args:
        arguments: without the program's name; those of the process if None.
    """
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a terminal may lack a letter, and no run is to end for it
            stream.reconfigure(errors="backslashreplace")
    try:
        with end_at_once():
            app(args=None if arguments is None else list(arguments), prog_name="palestra")
    except PalestraError as error:
        _say_error(str(error))
        sys.exit(2 if isinstance(error, ConfigError) else 1)
    except ModuleNotFoundError as error:
        library = (error.name or "").partition(".")[0]
        extra = next((name for name, libraries in EXTRAS.items() if library in libraries), None)
        if extra is None:
            raise
        _say_error(f"This needs {library}, which an extra brings: pip install 'palestra[{extra}]'")
        sys.exit(1)


def _say_error(message: str) -> None:
    from rich.console import Console
    from rich.text import Text

    Console(stderr=True).print(Text(f"Error: {message}", style="red"), soft_wrap=True)
