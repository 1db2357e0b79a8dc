"""Models whose folder lists several ids that end what they generate."""

import asyncio
import json
from pathlib import Path

import pytest
from transformers import GenerationConfig

from model_servers import completion, scripted
from palestra.cli.masking import _drifted
from palestra.errors import StoreError
from palestra.pipeline import parse_config
from palestra.pipeline.model_parts import load_start
from palestra.policy import Generation, SamplingParams, TokenPolicy
from palestra.policy.checks import check_template
from palestra.policy.engine_checks import check_engine
from palestra.policy.local import LocalEngine
from palestra.policy.model_server import ModelServer, ServerSettings
from palestra.policy.models import load_policy, load_template, save_policy
from palestra.policy.nano import NANO_FOLDER
from palestra.policy.weight_sync import SyncedEngine
from palestra.serving.captured import CapturedEpisode
from palestra.types import Facts, Message, StopReason, Task, Trajectory, Turn
from small_models import write_llama

PROMPT = [Message("system", "Sort."), Message("user", "Letter 12")]
LISTED = ("<|im_end|>", "<|of_message|>", "<|im_start|>", "r", "nowhere")


def list_ends(folder: Path, ids: object) -> None:
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": ids}))


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """It lists its template's end, another, what opens a message, a letter, and an id that there is not."""
    folder = write_llama(tmp_path_factory.mktemp("llama"), more_special=("<|of_message|>",))
    known = json.loads((folder / "tokenizer.json").read_text())
    ids = known["model"]["vocab"] | {token["content"]: token["id"] for token in known["added_tokens"]}
    list_ends(folder, [ids.get(token, 999_999) for token in LISTED])
    return folder


@pytest.fixture(scope="module")
def loaded(folder):
    return load_policy(folder)


def spelled(template, ids) -> list[str]:
    return template._tokenizer.convert_ids_to_tokens(list(ids))


def test_those_count_that_are_control_tokens_and_open_no_message(loaded):
    _, template = loaded
    assert spelled(template, template.end_ids) == ["<|im_end|>", "<|of_message|>"]
    assert template.end_id == template.end_ids[0]
    check_template(template)


def test_the_engine_stops_at_each_and_keeps_the_one_that_was_sampled(loaded):
    model, template = loaded
    engine = LocalEngine(model, template.end_ids, slots=64, context_tokens=256)
    check_engine(engine, template.render(PROMPT), template.end_ids)

    async def many():
        params = [SamplingParams(64, 1.0, seed) for seed in range(64)]
        prompt = template.render(PROMPT)
        return await asyncio.gather(*(engine.generate(prompt, each, str(n)) for n, each in enumerate(params)))

    made = asyncio.run(many())
    ended = [each for each in made if each.finish_reason == "stop"]
    assert {each.ids[-1] for each in ended} == set(template.end_ids)
    assert all(not set(template.end_ids) & set(each.ids[:-1]) for each in made)


class Saying:
    """An engine that samples what it was given."""

    def __init__(self, *actions: tuple[int, ...]):
        self.actions, self.prompts = list(actions), []

    async def generate(self, prompt_ids, params, session) -> Generation:
        self.prompts.append(tuple(prompt_ids))
        ids = self.actions.pop(0)
        return Generation(ids, (-0.5,) * len(ids), "stop", 0)

    def release(self, session):
        pass


def test_an_action_that_another_token_ended_is_not_ended_twice(loaded):
    _, template = loaded
    said = tuple(template.encode_action(PROMPT, "look(12)"))
    rows = []
    for end in template.end_ids:
        engine = Saying((*said, end), (*said, end))
        conversation = TokenPolicy("p", template, engine, SamplingParams(64)).open(PROMPT, None, 1, "s")
        sampled = asyncio.run(conversation.act())
        assert (sampled.text, sampled.ids[-1]) == ("look(12)", end)
        added = conversation.observe("to: Basel", Facts())
        assert added[0] not in template.end_ids
        asyncio.run(conversation.act())
        rows.append((added, engine.prompts[1]))
    (one, prompt), (other, other_prompt) = rows
    assert one == other
    assert prompt != other_prompt
    assert len(prompt) == len(other_prompt)


def test_what_was_cut_short_gets_the_template_s_end(loaded):
    _, template = loaded
    said = tuple(template.encode_action(PROMPT, "look(12)"))
    conversation = TokenPolicy("p", template, Saying(said), SamplingParams(64)).open(PROMPT, None, 1, "s")
    asyncio.run(conversation.act())
    assert conversation.observe("to: Basel", Facts())[0] == template.end_id


def test_the_engines_of_a_run_stop_at_each(folder, loaded):
    _, template = loaded
    start = load_start(parse_config("{}", [f"policy.model={folder}"]))
    check_engine(start.engine, template.render(PROMPT), template.end_ids)

    async def many():
        params = [SamplingParams(64, 1.0, seed) for seed in range(32)]
        prompt = template.render(PROMPT)
        return await asyncio.gather(
            *(start.engine.generate(prompt, each, str(n)) for n, each in enumerate(params))
        )

    ended = {made.ids[-1] for made in asyncio.run(many()) if made.finish_reason == "stop"}
    assert ended == set(template.end_ids)


def test_a_server_that_follows_the_weights_is_told_each(loaded):
    model, template = loaded
    local, asked = LocalEngine(model, template.end_ids), []

    def reply(number, body):
        if "prompt" not in body:
            return 200, {}
        asked.append(body["stop_token_ids"])
        params = SamplingParams(body["max_tokens"], body["temperature"], number)
        made = asyncio.run(local.generate(body["prompt"], params, str(number)))
        return 200, completion(list(made.ids), list(made.logprobs))

    with scripted(reply) as url:
        server = ModelServer(ServerSettings(url, requests_at_once=1))
        SyncedEngine(server, model, template, temperature=1.0, version=0)
    assert asked
    assert all(stops == list(template.end_ids) for stops in asked)


def test_an_episode_of_a_program_goes_on_behind_either(loaded):
    _, template = loaded
    said, seen = Message("assistant", "look(12)"), Message("user", "to: Basel")
    rows = []
    for end in template.end_ids:
        ids = (*template.encode_action(PROMPT, "look(12)"), end)
        episode = CapturedEpisode("e", "g", 0)
        episode.context(PROMPT, template)
        episode.act(Generation(ids, (-0.5,) * len(ids), "stop", 0), "look(12)")
        rows.append(episode.context([*PROMPT, said, seen], template))
        assert rows[-1][: len(template.render(PROMPT)) + len(ids)] == [*template.render(PROMPT), *ids]
    plain, other = rows
    assert plain == template.render([*PROMPT, said, seen])
    assert len(other) == len(plain)
    assert [pair for pair in zip(plain, other, strict=True) if pair[0] != pair[1]] == [template.end_ids]


def test_an_end_of_either_kind_is_no_drift_of_an_action_s_ids(loaded):
    _, template = loaded
    said = tuple(template.encode_action(PROMPT, "look(12)"))
    task = Task("post/train/1", "post", "train", 1, "Sort.")
    odd = tuple(template.encode_action(PROMPT, letter)[0] for letter in "look(12)")
    drifts = []
    for ids in (*((*said, end) for end in template.end_ids), said, (*odd, template.end_ids[1])):
        turn = Turn("look(12)", "", Facts(), action_ids=ids, sampled_logprobs=(-0.5,) * len(ids))
        played = Trajectory("e", task, tuple(PROMPT), (turn,), StopReason.terminated, True)
        drifts.append(_drifted(played, template))
    assert drifts == [0, 0, 0, int(odd != said)]
    assert odd != said


def test_a_checkpoint_lists_them_for_palestra_and_for_other_tools(loaded, tmp_path: Path):
    model, template = loaded
    save_policy(tmp_path, model, template)
    assert load_template(tmp_path).end_ids == template.end_ids
    assert GenerationConfig.from_pretrained(tmp_path).eos_token_id == list(template.end_ids)


def test_the_template_s_own_end_counts_where_the_folder_lists_only_others(loaded, tmp_path: Path):
    _, template = loaded
    write_llama(tmp_path, more_special=("<|of_message|>",))
    list_ends(tmp_path, template.end_ids[1])
    assert load_template(tmp_path).end_ids == template.end_ids


def test_ids_that_only_the_model_s_configuration_lists_count_too(loaded, tmp_path: Path):
    _, template = loaded
    write_llama(tmp_path, more_special=("<|of_message|>",))
    (tmp_path / "generation_config.json").unlink()
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "eos_token_id": list(template.end_ids)}))
    assert load_template(tmp_path).end_ids == template.end_ids


@pytest.mark.parametrize("ids", [None, "2", 2.5, {"a": 1}, [], [2.5, None, "x"]])
def test_what_is_no_id_ends_nothing(tmp_path: Path, ids: object):
    write_llama(tmp_path)
    list_ends(tmp_path, ids)
    template = load_template(tmp_path)
    assert template.end_ids == (template.end_id,)


def test_a_list_that_cannot_be_read_is_named(tmp_path: Path):
    write_llama(tmp_path)
    (tmp_path / "generation_config.json").write_text("[")
    with pytest.raises(StoreError, match=r"generation_config.json cannot be read"):
        load_template(tmp_path)


def test_palestra_s_own_template_has_one():
    template = load_template(NANO_FOLDER)
    assert template.end_ids == (template.end_id,)
