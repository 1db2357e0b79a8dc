"""From a YAML file and dotted overrides to a checked ``RunConfig``, or one clear error."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError

from palestra.errors import ConfigError
from palestra.pipeline.config import RunConfig
from palestra.policy import BUILTIN_MODELS, is_hub_id

BUILTIN_CONFIGS = ("quickstart",)
"""Configurations shipped with the package, by name."""


def read_config_text(config: str) -> tuple[str, Path]:
    """The text of a configuration file or builtin name, and the folder that relative paths start from.

    Raises:
        ConfigError: there is no such file.
    """
    if config in BUILTIN_CONFIGS:
        return files("palestra.recipes").joinpath(f"{config}.yaml").read_text("utf-8"), Path.cwd()
    path = Path(config)
    if not path.is_file():
        builtin = ", ".join(BUILTIN_CONFIGS)
        raise ConfigError(f"There is no configuration file {config}. Builtin configurations: {builtin}.")
    return path.read_text(encoding="utf-8"), path.parent


def parse_config(text: str, overrides: Sequence[str] = (), *, folder: Path | None = None) -> RunConfig:
    """Check ``text`` with ``overrides`` such as ``rl.updates=10`` applied.

    A relative path of a world, a policy or a reward model starts from ``folder`` if it stands in ``text``,
    and from the working folder if an override gave it; without ``folder`` paths stay as they are.

    Raises:
        ConfigError: no valid YAML, an unknown key (the nearest known one is named), or a wrong value.
    """
    try:
        values = yaml.safe_load(text) or {}
    except yaml.YAMLError as error:
        raise ConfigError(f"The configuration is not valid YAML: {error}") from error
    if not isinstance(values, dict):
        raise ConfigError("The configuration must be a mapping of sections, such as `world:` and `rl:`.")
    values = {key: section for key, section in values.items() if section is not None}
    if folder is not None:
        _anchor_paths(values, folder)
    for override in overrides:
        _apply(values, override)
    if folder is not None:
        _anchor_paths(values, Path.cwd())
    return check_config(values)


def check_config(values: Mapping[str, Any]) -> RunConfig:
    """A configuration from plain values.

    Raises:
        ConfigError: an unknown key (the nearest known one is named), or a wrong value.
    """
    _refuse_unknown(values, RunConfig, "")
    try:
        return RunConfig.model_validate(values)
    except ValidationError as error:
        lines = [f"{'.'.join(map(str, item['loc']))}: {item['msg']}" for item in error.errors()]
        raise ConfigError("The configuration has wrong values:\n  " + "\n  ".join(lines)) from error


def _apply(values: dict[str, Any], override: str) -> None:
    key, separator, text = override.partition("=")
    if not separator:
        raise ConfigError(f"An override is written section.key=value, not {override!r}.")
    *sections, last = key.split(".")
    here = values
    for section in sections:
        here = here.setdefault(section, {})
        if not isinstance(here, dict):
            raise ConfigError(f"{override!r}: {section!r} is a value and has no keys.")
    try:
        here[last] = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ConfigError(f"The value of {override!r} is not valid YAML: {error}") from error


def _refuse_unknown(values: Mapping[str, Any], model: type[BaseModel], prefix: str) -> None:
    for key, value in values.items():
        field = model.model_fields.get(str(key))
        if field is None:
            raise ConfigError(
                f"There is no configuration key {prefix}{key}. {_hint(str(key), model, prefix)}"
            )
        inner = field.annotation
        if isinstance(inner, type) and issubclass(inner, BaseModel) and isinstance(value, dict):
            _refuse_unknown(value, inner, f"{prefix}{key}.")


def _hint(key: str, model: type[BaseModel], prefix: str) -> str:
    """The nearest key of the section, or the same key in another one."""
    near = difflib.get_close_matches(key, model.model_fields, n=1)
    if near:
        return f"Did you mean {prefix}{near[0]}?"
    for name, field in RunConfig.model_fields.items():
        section = field.annotation
        if isinstance(section, type) and issubclass(section, BaseModel) and key in section.model_fields:
            return f"Did you mean {name}.{key}?"
    return f"Known: {', '.join(model.model_fields)}."


def _anchor_paths(values: dict[str, Any], folder: Path) -> None:
    world = values.get("world", {})
    name = world.get("name") if isinstance(world, dict) else None
    if isinstance(name, str) and ".py:" in name:
        file, _, cls = name.partition(":")
        world["name"] = f"{(folder / file).resolve()}:{cls}"
    policy = values.get("policy", {})
    model = policy.get("model", "nano") if isinstance(policy, dict) else "nano"
    if isinstance(model, str) and model not in BUILTIN_MODELS:
        anchored = (folder / Path(model).expanduser()).resolve()
        if anchored.exists() or not is_hub_id(model):
            policy["model"] = str(anchored)
    rubric = values.get("rubric", {})
    judge = rubric.get("reward_model") if isinstance(rubric, dict) else None
    if isinstance(judge, str):
        rubric["reward_model"] = str((folder / judge).resolve())
