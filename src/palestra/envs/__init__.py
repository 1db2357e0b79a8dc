"""Worlds: the toolkit to write them, the builtin ones, and the check that they keep their contract.

A world is a true ``gymnasium.Env[str, str]`` that reports facts; rewards are made from those elsewhere.
The one surprising choice: builtin worlds are loaded by name only, so that they are written against this
public page exactly as a user's world is.
"""

from palestra.envs.casework import Case, CaseEnv, Plan, call, key
from palestra.envs.checks import check_env
from palestra.envs.conversation import ScriptedTurn, play, run_oracle
from palestra.envs.faults import FAULT_KINDS, FaultKind, FaultSchedule, possible_faults
from palestra.envs.forking import ProcessCounts
from palestra.envs.hashing import state_hash
from palestra.envs.isolated import IsolatedWorld, IsolatedWorlds
from palestra.envs.registry import list_envs, make_env
from palestra.envs.sandbox import Called, SandboxLimits, call_sandboxed
from palestra.envs.spaces import UnicodeText
from palestra.envs.toolenv import ToolEnv
from palestra.envs.tools import ToolError, tool

__all__ = [
    "FAULT_KINDS",
    "Called",
    "Case",
    "CaseEnv",
    "FaultKind",
    "FaultSchedule",
    "IsolatedWorld",
    "IsolatedWorlds",
    "Plan",
    "ProcessCounts",
    "SandboxLimits",
    "ScriptedTurn",
    "ToolEnv",
    "ToolError",
    "UnicodeText",
    "call",
    "call_sandboxed",
    "check_env",
    "key",
    "list_envs",
    "make_env",
    "play",
    "possible_faults",
    "run_oracle",
    "state_hash",
    "tool",
]
