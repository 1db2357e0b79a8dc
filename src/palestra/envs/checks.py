"""A check that third parties run on their world: does it keep the contract of palestra?

It plays gymnasium's own checker first, then ours, rule by rule, and stops at the first that fails. The one
surprising choice: it compares the world with a deep copy of itself rather than asking for a factory, so that
a test needs one line, ``check_env(MyWorld())``.
"""

from __future__ import annotations

import copy
import random
import warnings
from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import Any

import gymnasium
from gymnasium.utils.env_checker import check_env as check_gymnasium_env

from palestra.envs.conversation import ScriptedTurn, play, run_oracle
from palestra.envs.toolenv import ToolEnv
from palestra.errors import WorldError
from palestra.types import Facts, Task

_RANDOM_ACTIONS = 5


def check_env(env: gymnasium.Env[str, str], seeds: Sequence[int] = range(8)) -> None:
    """Check a world against gymnasium's contract and ours; leaves ``env`` reset to some task.

    A world that is no ``ToolEnv`` is checked by random actions, without the rules on oracle and milestones.

    Args:
        env: the world; a ``ToolEnv`` is checked at each of its difficulties.
        seeds: at least two seeds to check with.

    Raises:
        WorldError: naming the rule that failed and how.
    """
    rules: list[tuple[str, Callable[[Any, Sequence[int]], None]]] = [("gymnasium", _gymnasium)]
    if isinstance(env, ToolEnv):
        rules += [
            ("tasks are pure functions of their seed", _tasks_are_pure),
            ("the oracle solves its tasks", _oracle_solves),
            ("milestones start unreached and score once", _milestones_once),
            ("an invalid action changes nothing", _invalid_changes_nothing),
        ]
    rules += [
        ("facts are complete", _facts_complete),
        ("a seed fixes the episode", _seed_fixes_episode),
        ("seeds differ", _seeds_differ),
        ("no step after the end", _no_step_after_end),
    ]
    for name, rule in rules:
        try:
            rule(env, seeds)
        except (AssertionError, UserWarning, WorldError) as error:
            raise WorldError(f"rule {name!r} fails for {type(env).__name__}: {error}") from error


def _gymnasium(env: gymnasium.Env[str, str], seeds: Sequence[int]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)  # gymnasium only warns of much that breaks a run
        check_gymnasium_env(env, skip_render_check=True, skip_close_check=True)


def _facts_complete(env: gymnasium.Env[str, str], seeds: Sequence[int]) -> None:
    wanted = {f.name for f in fields(Facts)}
    for turn in _episode(env, seeds[0]):
        _require(wanted <= turn.info.keys(), f"info lacks {sorted(wanted - turn.info.keys())}")
        _require(turn.info["success"] or turn.reward <= 0, "a reward was paid without success")


def _seed_fixes_episode(env: gymnasium.Env[str, str], seeds: Sequence[int]) -> None:
    twin = copy.deepcopy(env)
    for seed in seeds:
        first, second = _episode(env, seed), _episode(twin, seed)
        for number, (one, other) in enumerate(zip(first, second, strict=True)):
            _require(one == other, f"seed {seed}, turn {number}: {one!r} and {other!r}")


def _seeds_differ(env: gymnasium.Env[str, str], seeds: Sequence[int]) -> None:
    prompts = {env.reset(seed=seed)[0] for seed in seeds}
    _require(len(prompts) > 1, f"{len(seeds)} seeds gave one and the same first observation")


def _no_step_after_end(env: gymnasium.Env[str, str], seeds: Sequence[int]) -> None:
    turns = _episode(env, seeds[0])
    if not turns or not turns[-1].terminated:
        return
    try:
        env.step(turns[-1].action)
    except WorldError:
        return
    raise WorldError("a step after the end of the episode was accepted")


def _invalid_changes_nothing(env: ToolEnv[Any], seeds: Sequence[int]) -> None:
    turn = play(env, env.make_task(seeds[0]), ["this is no call"])[0]
    _require(
        not turn.info["valid"] and turn.info["error"] is not None, "text that is no call counted as valid"
    )
    _require(not turn.info["state_changed"] and not turn.terminated, "text that is no call changed the world")
    _require(bool(turn.observation), "the model is not told what was wrong")


def _tasks_are_pure(env: ToolEnv[Any], seeds: Sequence[int]) -> None:
    twin = copy.deepcopy(env)
    for level in env.difficulties:
        for seed in seeds:
            one, other = env.make_task(seed, difficulty=level), twin.make_task(seed, difficulty=level)
            _require(one == other, f"seed {seed} made two different tasks: {one!r} and {other!r}")


def _milestones_once(env: ToolEnv[Any], seeds: Sequence[int]) -> None:
    for seed in seeds:
        scored: list[str] = []
        task = env.make_task(seed)
        env.reset(seed=seed, options={"task": task})
        held = [name for name, holds in env.milestones.items() if holds(env.state)]
        _require(not held, f"{task.id}: milestone {', '.join(held)} holds before the first action")
        for turn in _episode(env, seed):
            scored += turn.info["new_milestones"]
        _require(len(scored) == len(set(scored)), f"{task.id}: a milestone scored twice: {scored}")
        missed = sorted(set(env.milestones) - set(scored))
        _require(not env.has_oracle or not missed, f"{task.id}: solved without milestone {', '.join(missed)}")


def _oracle_solves(env: ToolEnv[Any], seeds: Sequence[int]) -> None:
    for level in env.difficulties if env.has_oracle else ():
        for seed in seeds:
            task = env.make_task(seed, difficulty=level)
            turns = len(run_oracle(env, task))
            _require(turns == task.optimal_turns, f"{task.id}: {turns} turns, not {task.optimal_turns}")


def _episode(env: gymnasium.Env[str, str], seed: int) -> list[ScriptedTurn]:
    """One episode: the oracle's with noise, else random actions."""
    if isinstance(env, ToolEnv) and env.has_oracle:
        task = env.make_task(seed)
        return play(env, task, _script(env, task))
    env.reset(seed=seed)
    env.action_space.seed(seed)
    turns: list[ScriptedTurn] = []
    for _ in range(_RANDOM_ACTIONS):
        action = env.action_space.sample()
        observation, reward, terminated, truncated, info = env.step(action)
        turns.append(ScriptedTurn(action, observation, float(reward), terminated, info))
        if terminated or truncated:
            break
    return turns


def _script(env: ToolEnv[Any], task: Task) -> list[str]:
    """The oracle's actions with noise between them that no world may take for an action."""
    rng = random.Random(task.seed)
    script: list[str] = []
    for call in run_oracle(env, task):
        if rng.random() < 0.3:
            script.append("hm")
        script.append(env.action_text(call))
    return script


def _require(holds: bool, message: str) -> None:
    if not holds:
        raise WorldError(message)
