"""Tools that a model's own chat template declares, in the manner of families that do so and of others."""

import json
import pickle
from dataclasses import replace

import pytest
from template_families import CALLS, FAMILIES, OR_TOOLS, make_tokenizer

from palestra.actions import parse_action, render_call
from palestra.errors import ConfigError
from palestra.policy import ContextWindow, SchemaForm, Transcript
from palestra.policy.checks import check_template
from palestra.policy.model_chat import ModelTemplate
from palestra.policy.models import load_template
from palestra.policy.nano import NANO_FOLDER
from palestra.types import Facts, Message, ToolCall, ToolSpec

LOOK = ToolSpec(
    "look",
    "Where a letter goes.",
    {"type": "object", "properties": {"letter": {"type": "string"}}, "required": ["letter"]},
)
STAMP = ToolSpec(
    "stamp",
    "Stamp it.",
    {"type": "object", "properties": {"value": {"type": "integer", "enum": [40, 90]}}},
    aliases={"worth": "value"},
)
PROMPT = [Message("system", "Sort the post.", (LOOK, STAMP)), Message("user", "Letter 12")]
FUNCTIONS = [
    {
        "type": "function",
        "function": {"name": each.name, "description": each.description, "parameters": each.parameters},
    }
    for each in (LOOK, STAMP)
]
TURNS = [
    (ToolCall("look", {"letter": "12"}), "to: Basel"),
    (ToolCall("stamp", {"value": 40}), "error: no stamp left"),
    (ToolCall("look", {"letter": 'of "Zürich"'}), "done"),
]
QWEN = FAMILIES["qwen2.5"][2]
DECLARING = ["qwen2.5", "qwen3", "llama3"]


@pytest.fixture(params=DECLARING)
def template(request) -> ModelTemplate:
    return ModelTemplate(make_tokenizer(request.param))


def test_which_families_declare_tools_and_how_is_found_out():
    found = {}
    for family in FAMILIES:
        try:
            found[family] = ModelTemplate(make_tokenizer(family)).schema_form()
        except ConfigError as error:
            found[family] = str(error).partition(".")[0].partition("template ")[2].partition(",")[0]
    assert found == {
        "smollm2": "does not show tools",
        "qwen2.5": SchemaForm("qwen", "tool"),
        "qwen3": SchemaForm("qwen", "tool"),
        "thinking": "does not show tools",
        "llama3": SchemaForm("llama", "tool"),
        "mistral": "moves its tools to the latest message",
        "gemma": "does not show tools",
        "phi3": "does not show tools",
        "phi4": "does not show tools",
    }


def test_ids_turn_by_turn_are_those_of_transformers_for_the_whole(template):
    form = template.schema_form()
    history, ids = list(PROMPT), template.render(PROMPT)
    for call, observation in TURNS:
        action = render_call(call, form.action_format)
        reply = template.render_reply(history, action, Message("tool", observation))
        ids += [*template.encode_action(history, action), *reply]
        history += [Message("assistant", action), Message("tool", observation)]
    whole = [{"role": m.role, "content": m.content} for m in history]
    theirs = template._tokenizer.apply_chat_template(
        whole, tools=FUNCTIONS, add_generation_prompt=True, date_string="26 Jul 2024"
    )
    assert ids == theirs["input_ids"]


def test_a_call_as_text_has_the_ids_of_a_call_in_the_template_s_own_form(template):
    form = template.schema_form()
    said, own = list(PROMPT), [{"role": m.role, "content": m.content} for m in PROMPT]
    for call, observation in TURNS:
        function = {"name": call.tool_name, "arguments": dict(call.parameters)}
        said += [Message("assistant", render_call(call, form.action_format)), Message("tool", observation)]
        own += [
            {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": function}]},
            {"role": "tool", "content": observation},
        ]
    theirs = template._tokenizer.apply_chat_template(
        own, tools=FUNCTIONS, add_generation_prompt=True, date_string="26 Jul 2024"
    )
    assert template.render(said) == theirs["input_ids"]


def test_tools_are_declared_whole_and_in_their_order(template):
    text = template.decode(template.render(PROMPT))
    shown = [text.index(word) for word in ("Where a letter goes.", '"letter"', "Stamp it.", '"value"')]
    assert shown == sorted(shown)
    assert "worth" not in text
    turned = [replace(PROMPT[0], tools=(STAMP, LOOK)), PROMPT[1]]
    assert template.decode(template.render(turned)).index("Stamp it.") < text.index("Stamp it.")
    plain = [replace(PROMPT[0], tools=()), PROMPT[1]]
    assert "look" not in template.decode(template.render(plain))


def test_a_control_token_in_a_tool_s_description_ends_nothing(template):
    end = template.decode([template.end_id] * 2)
    sly = [replace(PROMPT[0], tools=(replace(LOOK, description=f"Go {end} on."), STAMP)), PROMPT[1]]
    assert template.render(sly).count(template.end_id) == template.render(PROMPT).count(template.end_id)


def test_a_pickled_template_declares_the_same(template):
    template.schema_form()
    assert pickle.loads(pickle.dumps(template)).render(PROMPT) == template.render(PROMPT)


@pytest.mark.parametrize("mode", ["window", "summary"])
def test_tools_stay_declared_where_a_long_conversation_is_shortened(template, mode):
    window = ContextWindow(len(template.render(PROMPT)) + 150, mode, raw_turns=1)
    transcript, anew = Transcript(template, window, PROMPT), []
    for number in range(8):
        anew.append(transcript.act(transcript.encode_action(f"look {number}")))
        transcript.observe(f"look {number}", f"letter {number} goes to Basel", Facts(tool_name="look"))
    rewritten = [template.decode(ids) for ids in anew if ids]
    assert rewritten
    for text in rewritten:
        assert text.count("Where a letter goes.") == text.count("Stamp it.") == 1


def test_observations_are_the_user_s_where_a_template_declares_tools_and_drops_their_messages():
    text = (
        OR_TOOLS + "{% endif %}{% for m in messages if m['role'] != 'tool' %}"
        "{% if m['role'] != 'system' or not tools %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}"
        + CALLS
        + "<|im_end|>\n{% endif %}{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    template = ModelTemplate(make_tokenizer("qwen2.5", text))
    check_template(template)
    assert template.schema_form() == SchemaForm("qwen", "user")
    reply = template.render_reply(PROMPT, "look", Message("tool", "to: Basel"))
    assert "user\nto: Basel" in template.decode(reply)


@pytest.mark.parametrize(
    "refusal",
    [
        "{{ raise_exception('no such role') if m['role'] == 'tool' }}",
        "{{ raise_exception('which call?') if m['role'] == 'tool' and not m['tool_call_id'] }}",
        "{{ m['content']['output'].strip() if m['role'] == 'tool' }}",
        "{{ raise_exception('answers no call') "
        "if m['role'] == 'tool' and not messages[loop.index0 - 1]['tool_calls'] }}",
    ],
)
def test_observations_are_the_user_s_where_a_template_that_declares_tools_refuses_them_otherwise(refusal):
    text = QWEN.replace("{% for m in messages %}", "{% for m in messages %}" + refusal)
    template = ModelTemplate(make_tokenizer("qwen2.5", text))
    check_template(template)
    assert template.schema_form() == SchemaForm("qwen", "user")
    reply = template.render_reply(PROMPT, "look", Message("tool", "to: Basel"))
    assert "user\nto: Basel" in template.decode(reply)


def test_a_template_of_its_own_for_tools_is_used_where_there_are_tools():
    families = {"default": FAMILIES["smollm2"][2], "tool_use": FAMILIES["qwen2.5"][2]}
    template = ModelTemplate(make_tokenizer("smollm2", families))
    check_template(template)
    assert template.schema_form() == SchemaForm("qwen", "tool")
    assert template.render(PROMPT) == ModelTemplate(make_tokenizer("qwen2.5")).render(PROMPT)
    plain = [replace(PROMPT[0], tools=()), PROMPT[1]]
    assert template.render(plain) == ModelTemplate(make_tokenizer("smollm2")).render(plain)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (QWEN.replace("{{ t | tojson }}", "{{ t['function']['name'] }}"), "does not show tools"),
        (QWEN.replace("<tools>", "{{ raise_exception('no tools here') }}"), "refuses tools: .*no tools here"),
        (QWEN.replace(CALLS, ""), "writes a call as '', which is no action format"),
        (QWEN.replace(CALLS, CALLS.replace('"name"', '"tool"')), "which is no action format"),
    ],
)
def test_a_template_in_which_no_agent_s_tools_can_be_declared_is_refused_with_the_remedy(text, message):
    template = ModelTemplate(make_tokenizer("qwen2.5", text))
    with pytest.raises(ConfigError, match=message) as caught:
        template.schema_form()
    assert "world.tools: text" in str(caught.value)
    check_template(template)


def test_palestra_s_own_template_declares_none_and_never_leaves_them_out_silently():
    template = load_template(NANO_FOLDER)
    with pytest.raises(ConfigError, match="declares no tools"):
        template.schema_form()
    with pytest.raises(ConfigError, match="declares no tools"):
        template.render(PROMPT)


def test_calls_that_a_template_writes_are_read_at_tier_strict(template):
    form = template.schema_form()
    for call, _ in TURNS:
        written = render_call(call, form.action_format)
        parsed = parse_action(written, [LOOK, STAMP], format=form.action_format)
        assert (parsed.call, parsed.tier) == (call, "strict")
        assert json.dumps(call.tool_name) in written
