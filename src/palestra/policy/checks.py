"""A check that third parties run on their chat template: does it keep the contract of ``ChatTemplate``?

It spells one conversation turn by turn and as a whole and compares. A template may break the prefix where it
rewrites what was said; what it appends otherwise must be what it would have written.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from dataclasses import replace

from palestra.errors import ConfigError
from palestra.policy.chat import ChatTemplate
from palestra.types import Message, ToolSpec

_PROMPT = (
    Message("system", "Sort the post.\n\nAnswer with a call."),
    Message("user", "Letter 12: où va-t-elle?"),
)
_TURNS = (
    ('{"tool_name": "look", "parameters": {"letter": "12"}}', '{"to": "Zürich", "weight": 40}'),
    ("stamp(40)", "  error:\n\n\tno stamp left  "),
    ('say "none" \\ <end>', ""),
    ("finish()", "done"),
)


_TOOLS = tuple(
    ToolSpec(name, f"What {name} does.", {"type": "object", "properties": {key: {"type": "string"}}})
    for name, key in (("look", "letter"), ("stamp", "value"))
)


def check_template(template: ChatTemplate) -> None:
    """Check a chat template against its contract.

    Raises:
        ConfigError: naming the rule that failed and how.
    """
    rules: list[tuple[str, Callable[[ChatTemplate], None]]] = [
        ("a reply continues what was rendered", _continues),
        ("tools are declared, or refused, and a reply continues what was rendered", _declares),
        ("an action's ids hold no end token and give its text back", _actions_are_text),
        ("a control token in a message stays text", _control_is_text),
        ("a pickled template writes the same ids", _pickles),
    ]
    for name, rule in rules:
        try:
            rule(template)
        except AssertionError as error:
            raise ConfigError(f"rule {name!r} fails for {type(template).__name__}: {error}") from error


def _declares(template: ChatTemplate) -> None:
    try:
        template.schema_form()
    except ConfigError:
        return
    declaring = (replace(_PROMPT[0], tools=_TOOLS), *_PROMPT[1:])
    text = template.decode(template.render(declaring))
    for spec in _TOOLS:
        words = (spec.name, spec.description, *spec.parameters["properties"])
        assert all(word in text for word in words), f"{spec.name} is not declared in {text!r}"
    _continues(template, declaring)


def _continues(template: ChatTemplate, prompt: Sequence[Message] = _PROMPT) -> None:
    history, ids = list(prompt), list(template.render(prompt))
    for action, observation in _TURNS:
        answer = Message("tool", observation)
        reply = template.render_reply(history, action, answer)
        acted = template.encode_action(history, action)
        history += [Message("assistant", action), answer]
        whole = list(template.render(history))
        if reply is None:
            ids = whole
            continue
        assert reply[0] == template.end_id, f"the reply to {action!r} begins with {reply[0]}, not the end id"
        ids += [*acted, *reply]
        assert ids == whole, (
            f"after {action!r} the whole conversation is {template.decode(whole)!r}, turn by turn it is "
            f"{template.decode(ids)!r}"
        )


def _actions_are_text(template: ChatTemplate) -> None:
    for action, _ in _TURNS:
        ids = template.encode_action(_PROMPT, action)
        assert not set(template.end_ids) & set(ids), f"{action!r} holds an end token"
        assert template.decode(ids).strip() == action, f"{action!r} comes back as {template.decode(ids)!r}"
        for end in template.end_ids:
            closed = template.decode([*ids, end])
            assert closed.strip() == action, f"{action!r} with end token {end} comes back as {closed!r}"


def _control_is_text(template: ChatTemplate) -> None:
    end = template.decode([template.end_id, template.end_id])
    assert end, "the end token has no text"
    plain, sly = (
        [*_PROMPT, Message("assistant", text), Message("tool", text)] for text in ("a b", f"a {end} b")
    )
    ends = [template.render(each).count(template.end_id) for each in (plain, sly)]
    assert ends[0] == ends[1], f"{end!r} written in a message ends it"


def _pickles(template: ChatTemplate) -> None:
    again = pickle.loads(pickle.dumps(template))
    assert again.render(_PROMPT) == template.render(_PROMPT), "it writes others"
    assert again.same_ids(template), "same_ids() is false"
