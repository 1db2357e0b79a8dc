"""The world of the horizon benchmark: sound, as deep as it says, and wrong ways that never end."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from random import Random

import pytest

from palestra.actions import render_call
from palestra.envs import ToolEnv, call, check_env, make_env, play, run_oracle, state_hash

FILE = Path(__file__).parents[2] / "bench" / "deep_world.py"


@pytest.fixture
def world() -> ToolEnv:
    made = make_env(f"{FILE}:Trails")
    assert isinstance(made, ToolEnv)
    return made


def test_it_keeps_the_contract(world: ToolEnv) -> None:
    check_env(world, seeds=range(30))
    assert len(FILE.read_text().splitlines()) < 100


def test_every_length_from_two_to_twelve_turns_is_about_equally_likely(world: ToolEnv) -> None:
    lengths = Counter(world.make_task(seed).optimal_turns for seed in range(1_100))
    assert sorted(lengths) == list(range(2, 13))
    assert all(60 <= count <= 140 for count in lengths.values())


def test_the_prompt_does_not_tell_how_deep_a_trail_is(world: ToolEnv) -> None:
    prompts = {len(world.make_task(seed).prompt) for seed in range(50)}
    assert len(prompts) == 1


def test_a_wrong_way_looks_like_a_right_one_and_never_ends(world: ToolEnv) -> None:
    rng = Random(0)
    for seed in range(60):
        world.reset(options={"task": world.make_task(seed)})
        state = world.state
        if len(state.trail) == 1:
            continue
        first, second = state.trail[:2]
        right = play(world, world.make_task(seed), [render_call(call("open", record=first))])[0].observation
        here, length = next(way for way in world.state.ways[first] if way != second), len(right)
        for _ in range(40):
            observation, _, terminated, _, info = world.step(render_call(call("open", record=here)))
            assert abs(len(observation) - length) <= 2 * len("ahead" + "sign")
            assert info["valid"]
            assert not terminated
            assert not info["new_milestones"]
            here = rng.choice(world.state.ways[here])


def test_only_what_was_read_of_can_be_opened(world: ToolEnv) -> None:
    for seed in range(40):
        calls = run_oracle(world, world.make_task(seed))
        if len(calls) > 3:
            turns = play(world, world.make_task(seed), [render_call(calls[0]), render_call(calls[2])])
            assert [turn.info["valid"] for turn in turns] == [True, False]


def test_the_right_value_counts_only_after_the_end_was_seen(world: ToolEnv) -> None:
    for seed in range(40):
        task = world.make_task(seed)
        calls = run_oracle(world, task)
        assert play(world, task, [render_call(made) for made in calls])[-1].info["success"]
        guess = play(world, task, [render_call(calls[0])] * (len(calls) > 2) + [render_call(calls[-1])])[-1]
        assert guess.terminated
        assert not guess.info["success"]


def test_six_thousand_seeds_make_as_many_problems(world: ToolEnv) -> None:
    assert len({state_hash(world.generate(Random(seed), 1)) for seed in range(6_000)}) == 6_000
