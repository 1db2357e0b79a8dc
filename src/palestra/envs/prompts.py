"""The system prompt of a tool world, and its seeded variations.

The prompt is read in every episode and a tiny model has little context, so it is one line a tool and one line
for the action format. For data diversity a prompt seed shuffles the tools, picks another wording and adds
distractors. Where the model's own chat template declares the tools, the prompt leaves them to it. The one
surprising choice: distractors are declared to the model but no episode allows them; a call to one is refused
like any unknown tool, which is what teaches a policy to keep to what helps.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

from palestra.actions import ActionFormat
from palestra.envs.tools import tool_line
from palestra.types import ToolSpec

_OPENINGS = ("Tools:", "You can call:", "Your tools are:", "Use these tools:")
_CLOSINGS = ("Reply with one call:", "Answer with exactly one call:", "Each turn, write one call:")
_MOST_DISTRACTORS = 2
_WHY_KEY = 'in its first key, "reasoning"'
_WHY_ELSEWHERE: Mapping[ActionFormat, str] = {
    "xml": "in a <think> block before it",
    "pythonic": "in a <think> block before it",
    "react": 'in a line "Thought:" before it',
}
"""Where an action says why, in formats without such a key."""


def _distractor(name: str, parameter: str, description: str) -> ToolSpec:
    properties = {parameter: {"type": "string"}}
    schema = {
        "type": "object",
        "properties": properties,
        "required": [parameter],
        "additionalProperties": False,
    }
    return ToolSpec(name, description, schema)


_DISTRACTORS = (
    _distractor("get_weather", "city", "Weather in a city."),
    _distractor("translate", "text", "Text in English."),
    _distractor("web_search", "query", "Search the web."),
    _distractor("send_mail", "text", "Mail the staff."),
    _distractor("get_news", "topic", "News on a topic."),
    _distractor("add_note", "text", "Keep a note."),
    _distractor("play_music", "title", "Play a song."),
    _distractor("set_alarm", "hour", "Ring at an hour."),
)


def offered_tools(tools: Sequence[ToolSpec], prompt_seed: str | None) -> tuple[ToolSpec, ...]:
    """The tools as declared to the model: as they are, or shuffled with up to two distractors."""
    if prompt_seed is None:
        return tuple(tools)
    rng = random.Random(f"tools:{prompt_seed}")
    taken = {spec.name for spec in tools}
    free = [spec for spec in _DISTRACTORS if spec.name not in taken]
    offered = [*tools, *rng.sample(free, rng.randint(0, _MOST_DISTRACTORS))]
    rng.shuffle(offered)
    return tuple(offered)


def system_prompt(instructions: str, tools: Sequence[ToolSpec], example: str, prompt_seed: str | None) -> str:
    """Instructions, one line a tool, and an example action; ``prompt_seed`` picks the wording."""
    opening, closing = _OPENINGS[0], _CLOSINGS[0]
    if prompt_seed is not None:
        rng = random.Random(f"words:{prompt_seed}")
        opening, closing = rng.choice(_OPENINGS), rng.choice(_CLOSINGS)
    parts = [instructions, opening, *(tool_line(spec) for spec in tools), f"{closing} {example}"]
    return "\n".join(part for part in parts if part)


def policy_prompt(instructions: str, action_format: ActionFormat, require_reasoning: bool) -> str:
    """What is left to say where the model's chat template declares the tools and how they are called."""
    where = _WHY_ELSEWHERE.get(action_format, _WHY_KEY)
    why = f"With each call say why, {where}." if require_reasoning else ""
    return "\n".join(part for part in (instructions, why) if part)
