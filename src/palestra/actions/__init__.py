"""Text to action: what a model wrote becomes a validated ``ToolCall``, or an error the model can answer.

Three levels, in this order: strict JSON against the tool's schema; repair and extraction where only one
reading is possible; an ``ActionError`` that says what is wrong and how to write it right. Worlds call
``parse_action`` on every turn and show ``error_observation`` when it raises.

The surprising choice runs through all files: a call that had to be guessed is worse than an error, because
the episode goes on after an error and learns from it. Where practice differs, this package decides so:

- undeclared parameters are refused, never dropped; spellings that are common get a declared alias;
- reasoning that never closes holds no call; nothing inside reasoning is run;
- a parameter without its closing tag voids the call; only final brackets and tags may be missing;
- bare or fenced JSON is a call only if it names a declared tool; a wrapper always means a call;
- text cut at the length limit is never run; ReAct reads one action and stops at the next label.
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
