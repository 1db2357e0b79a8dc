"""Text to action: what a model wrote becomes a validated ``ToolCall``, or an error the model can answer.

Three levels, in this order: strict JSON against the tool's schema; repair and extraction where only one
reading is possible; an ``ActionError`` that says what is wrong and how to write it right. Worlds call
``parse_action`` on every turn and show ``error_observation`` when it raises.

The surprising choice runs through all files: a call that had to be guessed is worse than an error, because
the episode goes on after an error and learns from it.
"""

from palestra.actions.cases import CaseFailure, CaseReport, check_cases
from palestra.actions.formats import ActionFormat
from palestra.actions.parse import ParsedAction, parse_action, parse_all
from palestra.actions.render import error_observation, render_call

__all__ = [
    "ActionFormat",
    "CaseFailure",
    "CaseReport",
    "ParsedAction",
    "check_cases",
    "error_observation",
    "parse_action",
    "parse_all",
    "render_call",
]
