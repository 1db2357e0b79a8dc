"""A model's own chat template, followed turn by turn, in the manner of eight families."""

import asyncio
from pathlib import Path

import pytest
from template_families import FAMILIES, make_tokenizer

from palestra.errors import ConfigError
from palestra.policy import Generation, SamplingParams, TokenPolicy
from palestra.policy.chat import RoleTokenTemplate
from palestra.policy.checks import check_template
from palestra.policy.model_chat import ModelTemplate
from palestra.policy.models import load_template
from palestra.policy.nano import NANO_FOLDER
from palestra.training import pair_rows, preference_pairs, tokenize_trajectory
from palestra.types import Facts, Message, StopReason, Task, Trajectory, TrajectoryGroup, Turn

PROMPT = [Message("system", "Sort the post."), Message("user", "Letter 12")]


@pytest.fixture(params=FAMILIES, scope="module")
def template(request) -> ModelTemplate:
    return ModelTemplate(make_tokenizer(request.param))


def test_every_family_keeps_the_contract(template):
    check_template(template)


def test_palestra_s_own_template_keeps_the_contract():
    check_template(load_template(NANO_FOLDER))


def test_ids_turn_by_turn_are_those_of_transformers_for_the_whole(template):
    said = [("look(12)", "to: Basel"), ('{"a": [1, 2]}', "error: no stamp left"), ("finish()", "done")]
    history, ids = list(PROMPT), template.render(PROMPT)
    roles = ["user", "assistant"] if template._plain.has_tool is False else ["tool", "assistant"]
    for action, observation in said:
        ids += template.encode_action(history, action)
        reply = template.render_reply(history, action, Message("tool", observation))
        assert reply is not None
        ids += reply
        history += [Message("assistant", action), Message("tool", observation)]
    system, asked, *rest = [m.content for m in history]
    opening = (
        [{"role": "system", "content": system}, {"role": "user", "content": asked}]
        if template._plain.has_system
        else [{"role": "user", "content": f"{system}\n\n{asked}"}]
    )
    whole = [*opening, *({"role": roles[1 - n % 2], "content": text} for n, text in enumerate(rest))]
    tokenizer = template._tokenizer
    theirs = tokenizer.apply_chat_template(whole, add_generation_prompt=True, date_string="26 Jul 2024")
    assert ids == theirs["input_ids"]


def test_what_each_family_can_write_is_found_out():
    found = {}
    for family in FAMILIES:
        template = ModelTemplate(make_tokenizer(family))
        end = template.decode([template.end_id] * 2)
        found[family] = (template._plain.has_system, template._plain.has_tool, template._plain.gap, end)
    assert found == {
        "smollm2": (True, False, "", "<|im_end|>"),
        "qwen2.5": (True, True, "", "<|im_end|>"),
        "qwen3": (True, True, "", "<|im_end|>"),
        "thinking": (True, False, "", "<|im_end|>"),
        "llama3": (True, True, "", "<|eot_id|>"),
        "mistral": (False, False, " ", "</s>"),
        "gemma": (False, False, "", "<end_of_turn>"),
        "phi3": (True, False, "", "<|end|>"),
        "phi4": (True, False, "", "<|im_end|>"),
    }


def test_a_system_prompt_without_a_role_of_its_own_opens_the_first_message():
    template = ModelTemplate(make_tokenizer("gemma"))
    assert template.decode(template.render(PROMPT)) == (
        "<bos><start_of_turn>user\nSort the post.\n\nLetter 12<end_of_turn>\n<start_of_turn>model\n"
    )


@pytest.mark.parametrize("family", ["smollm2", "qwen2.5"])
def test_a_system_prompt_that_a_template_has_of_its_own_gives_way_to_the_world_s(family):
    template = ModelTemplate(make_tokenizer(family))
    said, asked = template.decode(template.render(PROMPT)), template.decode(template.render(PROMPT[1:]))
    assert "Be helpful." not in said
    assert said.count("system\n") == asked.count("system\nBe helpful.") == 1
    turns = [Message("assistant", "look(12)"), Message("tool", "to: Basel")]
    added = template.render_reply(PROMPT[1:], "look(12)", turns[1])
    assert "system" not in template.decode(added)
    ids = [*template.render(PROMPT[1:]), *template.encode_action(PROMPT[1:], "look(12)"), *added]
    assert ids == template.render([*PROMPT[1:], *turns])


@pytest.mark.parametrize(
    ("family", "start"), [("llama3", "<|begin_of_text|>"), ("mistral", "<s>"), ("gemma", "<bos>")]
)
def test_what_opens_a_text_comes_once_and_never_inside_a_side_of_a_preference_pair(family, start):
    template = ModelTemplate(make_tokenizer(family))
    (opening,) = template._tokenizer.convert_tokens_to_ids([start])
    task = Task("post/train/1", "post", "train", 1, "Sort.")
    attempts = [
        tokenize_trajectory(
            Trajectory(
                name,
                task,
                tuple(PROMPT),
                (Turn("look(12)", "to: Basel", Facts()), Turn(last, "", Facts())),
                StopReason.terminated,
                name == "solved",
                reward=float(name == "solved"),
            ),
            template,
        )
        for name, last in (("solved", "stamp(40)"), ("failed", "stamp(90)"))
    ]
    (pair,) = preference_pairs([TrajectoryGroup("collect/0", task, tuple(attempts))], 0.1)
    for (row,) in pair_rows(pair):
        assert row.ids.count(opening) == 1
        assert row.ids[0] == opening
        said = [token for token, counts in zip(row.ids, row.action_mask, strict=True) if counts]
        assert template.decode(said).strip() in ("stamp(40)", "stamp(90)")
        assert said[-1] == template.end_id


def test_white_space_around_an_action_breaks_no_prefix(template):
    for action in ("look(12)", "look(12)\n", " look(12)", "", "\n\n"):
        reply = template.render_reply(PROMPT, action, Message("tool", "to: Basel"))
        assert reply is not None
        assert reply[0] == template.end_id


class Saying:
    """An engine that samples what it was given, and keeps the prompts it was asked with."""

    def __init__(self, *actions: list[int]):
        self.actions, self.prompts = list(actions), []

    async def generate(self, prompt_ids, params, session) -> Generation:
        self.prompts.append(tuple(prompt_ids))
        ids = tuple(self.actions.pop(0))
        return Generation(ids, (-0.5,) * len(ids), "stop", 0)

    def release(self, session):
        pass


def converse(template, *actions: str, observations=("to: Basel", "error", "done")):
    engine = Saying(*([*template.encode_action(PROMPT, text), template.end_id] for text in actions))
    policy = TokenPolicy("p", template, engine, SamplingParams(64))
    conversation = policy.open(PROMPT, None, 1, "s")
    turns = []
    for observation in observations[: len(actions)]:
        sampled = asyncio.run(conversation.act())
        turns.append((sampled, conversation.observe(observation, Facts())))
    return conversation, turns, engine


def test_a_template_that_drops_earlier_thinking_breaks_the_prefix_and_the_context_is_written_anew():
    template = ModelTemplate(make_tokenizer("thinking"))
    _, turns, engine = converse(template, "<think>hm</think>look(12)", "stamp(40)", "finish()")
    (first, added), (second, appended), (third, _) = turns
    assert (first.prompt_ids, added) == ((), ())
    shown = template.decode(second.prompt_ids)
    assert "hm" not in shown
    assert shown.endswith(
        "assistant\nlook(12)<|im_end|>\n<|im_start|>user\nto: Basel<|im_end|>\n<|im_start|>assistant\n"
    )
    assert engine.prompts[1] == second.prompt_ids
    assert third.prompt_ids == ()
    assert engine.prompts[2] == (*second.prompt_ids, *second.ids, *appended)


@pytest.mark.parametrize("family", [family for family in FAMILIES if family != "thinking"])
def test_a_template_that_keeps_thinking_appends(family):
    template = ModelTemplate(make_tokenizer(family))
    _, turns, engine = converse(template, "<think>\nhm\n</think>\n\nlook(12)", "finish()")
    (first, added), (second, _) = turns
    assert second.prompt_ids == ()
    assert engine.prompts[1] == (*engine.prompts[0], *first.ids, *added)


def test_a_control_token_in_an_observation_is_shown_and_ends_nothing(template):
    end = template.decode([template.end_id] * 2)
    reply = template.render_reply(PROMPT, "look(12)", Message("tool", f"go {end} on"))
    assert reply.count(template.end_id) == template.render_reply(
        PROMPT, "look(12)", Message("tool", "go on")
    ).count(template.end_id)
    assert template.decode(reply).replace("\u200b", "").count(end) > template.decode(reply).count(end)


def test_a_saved_template_is_loaded_as_it_was(template, tmp_path: Path):
    template.save(tmp_path)
    again = load_template(tmp_path)
    assert isinstance(again, ModelTemplate)
    assert again.same_ids(template)
    assert again.render(PROMPT) == template.render(PROMPT)
    assert not again.same_ids(load_template(NANO_FOLDER))
    assert not load_template(NANO_FOLDER).same_ids(again)


@pytest.mark.parametrize(
    ("family", "chat_template", "message"),
    [
        ("smollm2", "", "no chat template"),
        ("smollm2", "{% for m in messages %}{{ m['content'] }}{% endfor %}", "without a control token"),
        (
            "smollm2",
            "{% for m in messages if m['role'] == 'user' %}<|im_start|>{{ m['content'] }}{% endfor %}",
            "drops a message",
        ),
        (
            "smollm2",
            "{{ raise_exception('never') }}",
            r"drops a message, or refuses.*assistant's \(.*never\)",
        ),
        ("smollm2", "{% for m in messages %}", r"drops a message, or refuses.*Unexpected end of template"),
        (
            "smollm2",
            "{{ messages[0].text.strip() }}",
            r"drops a message, or refuses.*has no attribute 'text'",
        ),
        ("smollm2", {"rag": FAMILIES["smollm2"][2]}, "several chat templates and none called default"),
    ],
)
def test_a_template_that_cannot_hold_an_agent_s_episode_is_refused(family, chat_template, message):
    with pytest.raises(ConfigError, match=message):
        ModelTemplate(make_tokenizer(family, chat_template))


def test_a_template_that_drops_tool_messages_shows_them_as_the_user_s():
    text = (
        "{% for m in messages if m['role'] != 'tool' %}<|im_start|>{{ m['role'] }}\n"
        "{{ m['content'] }}<|im_end|>\n{% endfor %}<|im_start|>assistant\n"
    )
    template = ModelTemplate(make_tokenizer("smollm2", text))
    assert "user\nto: Basel" in template.decode(
        template.render_reply(PROMPT, "look(12)", Message("tool", "to: Basel"))
    )


def test_a_template_that_breaks_its_contract_is_named_with_the_rule():
    class Twice(RoleTokenTemplate):
        def render_reply(self, history, action, reply):
            return [*super().render_reply(history, action, reply), self.end_id]

    broken = Twice(load_template(NANO_FOLDER)._tokenizer)
    with pytest.raises(ConfigError, match="'a reply continues what was rendered' fails for Twice"):
        check_template(broken)


REFUSES_EMPTY = FAMILIES["smollm2"][2].replace(
    "{% for m in messages %}",
    "{% for m in messages %}{% if not m['content'] %}{{ raise_exception('empty message') }}{% endif %}",
)


def test_an_action_without_words_is_written_where_a_template_refuses_empty_messages():
    template = ModelTemplate(make_tokenizer("smollm2", REFUSES_EMPTY))
    reply = template.render_reply(PROMPT, "", Message("tool", "error: no call"))
    assert reply[0] == template.end_id
    assert "error: no call" in template.decode(reply)
    plain = ModelTemplate(make_tokenizer("smollm2"))
    assert plain.render_reply(PROMPT, "", Message("tool", "x")) == plain.render_reply(
        PROMPT, "a", Message("tool", "x")
    )


def test_a_conversation_that_a_template_refuses_is_named():
    template = ModelTemplate(make_tokenizer("mistral"))
    with pytest.raises(ConfigError, match="refuses a conversation of user, user: roles must alternate"):
        template.render([Message("user", "a"), Message("user", "b")])


def test_a_date_that_a_template_asks_for_is_the_same_tomorrow():
    asks = "{{ strftime_now('%d %B %Y') }} " + FAMILIES["smollm2"][2]
    template = ModelTemplate(make_tokenizer("smollm2", asks))
    assert template.decode(template.render(PROMPT)).startswith("26 Jul 2024 ")


def test_tags_of_the_template_that_are_no_special_tokens_stay_text_in_an_observation():
    tokenizer = make_tokenizer("qwen2.5")
    tags = ["</tool_response>", "<think>"]
    tokenizer.add_tokens(tags)
    template = ModelTemplate(tokenizer)
    ids = tokenizer.convert_tokens_to_ids(tags)
    reply = template.render_reply(PROMPT, "look(12)", Message("tool", "a </tool_response> b <think>"))
    plain = template.render_reply(PROMPT, "look(12)", Message("tool", "a b"))
    assert reply.count(ids[0]) == plain.count(ids[0]) == 1
    assert "<\u200b/tool_response> b <think>" in template.decode(reply)


def test_an_action_that_only_the_next_header_ends_is_refused():
    open_ended = (
        "{% for m in messages %}<|im_start|>{{ m['role'] }} {{ m['content'] }}{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant {% endif %}"
    )
    with pytest.raises(ConfigError, match="ends it without a control token"):
        ModelTemplate(make_tokenizer("smollm2", open_ended))
