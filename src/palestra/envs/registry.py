"""Find a world by name: builtin, from a user's file or module, or from an installed package.

Configurations name worlds as text, so every part gets its worlds here. The one surprising choice: a user's
file is loaded under a module name that holds its time of change, so an edited world is never served stale.
"""

from __future__ import annotations

import difflib
import functools
import hashlib
import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import ModuleType
from typing import Any

import gymnasium

from palestra.errors import ConfigError

ENTRY_POINT_GROUP = "palestra.envs"
"""Packages that ship worlds declare them in this group."""
_BUILTIN = {
    "alerts": "palestra.envs.builtin.alerts:Alerts",
    "code_repair": "palestra.envs.builtin.code_repair:CodeRepair",
    "meeting_room": "palestra.envs.builtin.meeting_room:MeetingRoom",
    "orders": "palestra.envs.builtin.orders:Orders",
    "research_report": "palestra.envs.builtin.research_report:ResearchReport",
    "research_report_leaky": "palestra.envs.builtin.research_report_leaky:LeakyResearchReport",
}


def make_env(name: str, **kwargs: Any) -> gymnasium.Env[str, str]:
    """Make the world called ``name``.

    Args:
        name: a builtin (``orders``), a file (``fridge.py:Fridge``), a module (``shop.worlds:Returns``), or an
            installed world (``name`` or ``name:argument``) of the entry-point group ``palestra.envs``.
        kwargs: passed to the world, such as ``difficulty``.

    Raises:
        ConfigError: if there is no such world; the message names the nearest one.
    """
    factory, arguments = load_env(name)
    return _checked(factory(*arguments, **kwargs), name)


def load_env(name: str) -> tuple[Callable[..., Any], tuple[str, ...]]:
    """Load the code of the world called ``name``, without making one.

    Returns:
        What makes it, and what it is called with beside the options.

    Raises:
        ConfigError: if there is no such world; the message names the nearest one.
    """
    installed = _installed()
    prefix, colon, rest = name.partition(":")
    if name in _BUILTIN:
        module = importlib.import_module(_BUILTIN[name].split(":")[0])
        return _attribute(module, _BUILTIN[name]), ()
    if prefix in installed:
        return installed[prefix].load(), (rest,) if colon else ()
    if name.rpartition(":")[0].endswith(".py"):
        return _attribute(_load_file(Path(name.rpartition(":")[0]), name), name), ()
    if colon:
        return _attribute(_load_module(prefix, name), name), ()
    if name.endswith(".py"):
        raise ConfigError(f"{name!r} is a file: say which class in it is the world, as {name}:CLASS")
    raise ConfigError(f"no world is called {name!r}{_nearest(name, [*_BUILTIN, *installed])}")


def list_envs() -> dict[str, str]:
    """Every world known by name, with a summary of one line."""
    found = {
        name: _summary(_attribute(importlib.import_module(at.split(":")[0]), at))
        for name, at in _BUILTIN.items()
    }
    for name, point in _installed().items():
        try:
            found[name] = _summary(point.load())
        except Exception as error:  # a broken third-party package must not hide the others
            found[name] = f"cannot be loaded: {error}"
    return dict(sorted(found.items()))


def _installed() -> dict[str, EntryPoint]:
    return _scan(tuple(sys.path))


@functools.cache
def _scan(paths: tuple[str, ...]) -> dict[str, EntryPoint]:
    """Entry points of what is installed on ``paths``; reading them takes longer than an episode."""
    return {point.name: point for point in entry_points(group=ENTRY_POINT_GROUP)}


def _summary(factory: Any) -> str:
    return (inspect.getdoc(factory) or "").partition("\n")[0]


def _nearest(name: str, known: list[str]) -> str:
    close = difflib.get_close_matches(name, known, n=1)
    return f"; did you mean {close[0]!r}?" if close else f"; there are {', '.join(sorted(known))}"


def _checked(env: Any, name: str) -> gymnasium.Env[str, str]:
    if not isinstance(env, gymnasium.Env):
        raise ConfigError(f"{name!r} makes a {type(env).__name__}, which is no gymnasium.Env")
    return env


def _attribute(module: ModuleType, name: str) -> Any:
    wanted = name.rpartition(":")[2]
    if wanted not in vars(module):
        classes = [each for each, value in vars(module).items() if inspect.isclass(value)]
        raise ConfigError(f"{name!r}: no class {wanted!r} there{_nearest(wanted, classes)}")
    return vars(module)[wanted]


def _load_module(module: str, name: str) -> ModuleType:
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name and module.startswith(error.name):
            raise ConfigError(f"{name!r}: no module {module!r}{_nearest(module, list(_BUILTIN))}") from error
        raise


def _load_file(path: Path, name: str) -> ModuleType:
    if not path.is_file():
        raise ConfigError(f"{name!r}: no file {path} (looked from {Path.cwd()})")
    stamp = f"{path.resolve()}:{path.stat().st_mtime_ns}"
    module_name = f"palestra_world_{path.stem}_{hashlib.sha256(stamp.encode()).hexdigest()[:12]}"
    if module_name in sys.modules:
        return sys.modules[module_name]
    spec = importlib.util.spec_from_file_location(module_name, path)
    if spec is None or spec.loader is None:
        raise ConfigError(f"{name!r}: {path} is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[module_name] = module  # dataclasses look their module up while it is being executed
    if str(path.resolve().parent) not in sys.path:
        sys.path.append(str(path.resolve().parent))  # for what it imports from files beside it; hides nothing
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[module_name]
        raise
    return module
