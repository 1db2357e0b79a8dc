"""The base's dialogues can be answered from their own text, and know no world."""

import json
import random

import pytest

from palestra.envs import list_envs, make_env
from palestra.recipes.base_dialogues import dialogue

SAMPLE = [dialogue(random.Random(seed)) for seed in range(200)]


def test_one_seed_gives_one_dialogue():
    assert [dialogue(random.Random(seed)) for seed in range(20)] == SAMPLE[:20]


def test_every_value_of_every_action_was_said_before_it():
    for messages in SAMPLE:
        said = ""
        for message in messages:
            if message.role == "assistant":
                for value in json.loads(message.content)["parameters"].values():
                    assert str(value) in said, (value, said)
            said += message.content


def test_every_action_calls_a_declared_tool_with_its_declared_parameters():
    for messages in SAMPLE:
        lines = [line for line in messages[0].content.splitlines() if line.startswith("- ")]
        declared = {}
        for line in lines:
            name, rest = line.removeprefix("- ").split("(", 1)
            parameters = [one for one in rest.split(")")[0].split(", ") if one]
            declared[name] = {one.split(":")[0].split("=")[0]: one for one in parameters}
        for message in messages:
            if message.role == "assistant":
                action = json.loads(message.content)
                parameters = declared[action["tool_name"]]
                assert action["parameters"].keys() == parameters.keys()
                for key, value in action["parameters"].items():
                    assert isinstance(value, int) == parameters[key].endswith(":int")
                    if "=" in parameters[key]:
                        assert value in parameters[key].split("=")[1].split("|")


@pytest.mark.parametrize("name", list_envs())
def test_no_tool_of_a_world_is_in_the_base(name):
    names = {tool for tool in make_env(name).tools if "_" in tool}
    text = "\n".join(message.content for messages in SAMPLE for message in messages)
    assert not [tool for tool in names if f'"{tool}"' in text]
