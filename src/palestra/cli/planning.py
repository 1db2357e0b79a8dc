"""What ``--dry-run`` prints: the whole configuration with its descriptions, and how much would be played.

The one surprising choice: the output is a valid configuration file, the plan included as comments, so it
can be saved, changed and trained.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import yaml
from pydantic import BaseModel

from palestra.pipeline import RunConfig


def config_text(config: RunConfig) -> str:
    """Every key with its value and what it means, as YAML."""
    lines = []
    for name, field in RunConfig.model_fields.items():
        value = getattr(config, name)
        if isinstance(value, BaseModel):
            lines.append(f"{name}:  # {field.description}")
            lines += [_line(value, key, "  ") for key in type(value).model_fields]
        else:
            lines.append(_line(config, name, ""))
    return "\n".join(lines)


def plan_text(config: RunConfig, stages: Sequence[str] | None = None) -> str:
    """One comment line a stage: what it plays or learns. All stages if None."""
    planned = {name: text for name, text in _plan(config).items() if stages is None or name in stages}
    return "\n".join(["# Plan", *(f"#   {name:<9} {text}" for name, text in planned.items())])


def _line(section: BaseModel, key: str, indent: str) -> str:
    listed = yaml.safe_dump([getattr(section, key)], default_flow_style=True, width=math.inf, sort_keys=False)
    text = f"{indent}{key}: {listed.strip()[1:-1]}"  # a list of one in flow style keeps any value on one line
    return f"{text:<30}  # {type(section).model_fields[key].description}"


def _plan(config: RunConfig) -> dict[str, str]:
    rl, mine, collect = config.rl, config.mine, config.collect
    learned = 1 + (rl.updates > 0 or mine.rounds > 0)
    policies = 2 + learned * (1 + config.evaluation.sampled)
    round_episodes = mine.tasks * mine.attempts + _online(config, mine.updates)
    return {
        "collect": f"{_episodes(collect.tasks * collect.attempts)} by the teacher",
        "sft": f"{config.sft.epochs} passes over at most {collect.demonstrations} demonstrations",
        "gate": f"{_episodes(config.gate.tasks * rl.group_size)}",
        "rl": f"{rl.updates} updates, {_episodes(_online(config, rl.updates))} with validation",
        "mine": f"{mine.rounds} x {mine.updates} updates, {_episodes(mine.rounds * round_episodes)}",
        "evaluate": f"{_episodes(policies * config.evaluation.tasks)}: {policies} policies on the same tasks",
    }


def _online(config: RunConfig, updates: int) -> int:
    """Episodes of so many updates, validations included."""
    rl = config.rl
    validations = math.ceil(updates / rl.validate_every)
    return updates * rl.tasks_per_update * rl.group_size + validations * rl.validation_tasks


def _episodes(count: int) -> str:
    return f"{count:,} episodes"
