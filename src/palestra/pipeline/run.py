"""The pipeline: collect, sft, gate, rl, mine, evaluate, report; resumable between and inside stages.

A finished stage leaves a marker with its result and is not repeated. An interrupted one starts again from
what it left on disk and comes to the same end, because nothing random depends on when it ran.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from palestra.errors import ConfigError
from palestra.pipeline.collecting import collect
from palestra.pipeline.config import RunConfig
from palestra.pipeline.examination import evaluate
from palestra.pipeline.imitating import cold_start
from palestra.pipeline.learning import gate, mine, reinforce
from palestra.pipeline.learning_parts import check_curriculum, check_learning
from palestra.pipeline.load import check_config
from palestra.pipeline.model_parts import check_tools, load_judge
from palestra.pipeline.players import Players, peak_memory_mb
from palestra.pipeline.preferring import optimize_preferences
from palestra.pipeline.progress import Reporter
from palestra.pipeline.workshop import Stage, Workshop
from palestra.store import RunFolder

STAGES: Mapping[str, Stage] = {
    "collect": collect,
    "sft": cold_start,
    "gate": gate,
    "rl": reinforce,
    "mine": mine,
    "evaluate": evaluate,
}
"""In the order in which they run."""
BY_THEMSELVES: Mapping[str, Stage] = {"dpo": optimize_preferences}
"""Stages that a verb of their own runs, in a run folder that the verb made."""


def check_settings(config: RunConfig) -> None:
    """Refuse settings of learner, curriculum, tools or reward model that do not fit together.

    Raises:
        ConfigError: names the key and what to do.
        StoreError: the reward model or the policy's tokenizer cannot be loaded.
    """
    check_learning(config)
    check_curriculum(config)
    check_tools(config)
    load_judge(config.rubric.reward_model, config.policy.model)


def create_run(path: Path, config_text: str, config: RunConfig, command: str) -> RunFolder:
    """A new run folder for ``config``.

    Raises:
        ConfigError: settings of the learner or the curriculum do not fit together; no folder is made.
    """
    check_settings(config)
    return RunFolder.create(path, config_text=config_text, resolved=config.model_dump(), command=command)


def open_run(path: Path) -> tuple[RunFolder, RunConfig]:
    """An existing run with the configuration it was started with."""
    run = RunFolder.open(path)
    return run, check_config(run.resolved())


def run_pipeline(
    run: RunFolder, config: RunConfig, reporter: Reporter, stages: Sequence[str] = tuple(STAGES)
) -> None:
    """Execute ``stages`` that have not finished, in order.

    Raises:
        ConfigError: there is no such stage.
        GateFailed: a stage refuses to go on; what to do is in the message.
        UnsolvableTask: the world's oracle does not satisfy its verifier.
    """
    unknown = [name for name in stages if name not in {**STAGES, **BY_THEMSELVES}]
    if unknown:
        raise ConfigError(f"There is no stage {unknown[0]!r}. Stages: {', '.join(STAGES)}.")
    players = Players(config.policy.threads)
    judge = load_judge(config.rubric.reward_model, config.policy.model)
    workshop = Workshop(run, config, reporter, players, judge)
    if any(run.stage_result(name) is None for name in stages):
        workshop.preflight()
    try:
        _execute(workshop, players, stages)
    finally:
        players.close()


def _execute(workshop: Workshop, players: Players, stages: Sequence[str]) -> None:
    run, reporter = workshop.run, workshop.reporter
    for number, name in enumerate(stages, start=1):
        if run.stage_result(name) is not None:
            reporter.line(f"[bold]{name}[/] ({number}/{len(stages)}) is finished already")
            continue
        reporter.line(f"[bold]{name}[/] ({number}/{len(stages)})")
        started = time.perf_counter()
        result: dict[str, Any] = {**STAGES, **BY_THEMSELVES}[name](workshop)
        seconds = time.perf_counter() - started
        memory = peak_memory_mb() + players.peak_memory_mb
        run.finish_stage(name, {**result, "seconds": seconds, "peak_memory_mb": memory})
        reporter.line(f"  {name} took {seconds:.0f} s")
