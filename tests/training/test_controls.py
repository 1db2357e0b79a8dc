"""Weights that follow what is measured, and the KL as a cost of turns."""

from dataclasses import replace

import pytest

from palestra.policy.nano import new_nano
from palestra.training import (
    Controls,
    Learner,
    adapted_kl_weight,
    floored_entropy_weight,
    make_segment,
    subtract_kl,
)
from palestra.training.loop import minibatches
from palestra.training.loop_parts import LoopSettings
from palestra.types import Facts, StopReason, Task, Trajectory, TrajectoryGroup, Turn

SETTINGS = LoopSettings(
    stage="rl",
    first_version=0,
    updates=4,
    group_size=2,
    first_rate=0.1,
    last_rate=0.1,
    minibatches=3,
    epochs=2,
    kl_in_reward=False,
    recompute=False,
    checkpoint_every=1,
    seed=0,
)
TASK = Task(id="w/train/1", env="w", split="train", seed=1, prompt="hi")


def test_the_kl_weight_moves_toward_the_target_by_two_percent_at_most():
    assert adapted_kl_weight(0.1, 0.5, 0.5) == pytest.approx(0.1)
    assert adapted_kl_weight(0.1, 0.55, 0.5) == pytest.approx(0.1 * 1.01)
    assert adapted_kl_weight(0.1, 50.0, 0.5) == pytest.approx(0.1 * 1.02)
    assert adapted_kl_weight(0.1, 0.0, 0.5) == pytest.approx(0.1 * 0.98)


def test_the_entropy_bonus_is_zero_in_safety_grows_under_the_floor_and_falls_back():
    weight, seen = 0.0, []
    for entropy in (0.5, 0.31, 0.15, 0.0, 0.15, 0.6, 0.6):
        weight = floored_entropy_weight(weight, entropy, 0.3)
        seen.append(round(weight, 6))
    assert seen == [0.0, 0.0, 0.001, 0.003, 0.004, 0.002, 0.0]
    assert floored_entropy_weight(0.0499, 0.0, 0.3) == 0.05


def test_controls_without_a_target_stay_and_with_one_continue_from_their_state():
    metrics = {"policy/kl_reference": 9.0, "policy/entropy": 0.0}
    fixed, moving = Controls(0.02), Controls(0.02, kl_target=0.1, entropy_floor=0.3)
    fixed.observe(metrics)
    moving.observe(metrics)
    assert fixed.state() == {"kl_weight": 0.02, "entropy_weight": 0.0}
    again = Controls(0.02, kl_target=0.1, entropy_floor=0.3)
    again.load(moving.state())
    again.observe(metrics)
    moving.observe(metrics)
    assert again.state() == moving.state() != fixed.state()


def test_every_pass_goes_over_every_row_once_in_an_order_of_its_own():
    rows = [make_segment(attempt(str(n), (5, 6)), [1.0]) for n in range(8)]
    parts = [[row.trajectory_id for row in part] for part in minibatches(rows, 1, SETTINGS)]
    assert [len(part) for part in parts] == [3, 3, 2, 3, 3, 2]
    first, second = [*parts[0], *parts[1], *parts[2]], [*parts[3], *parts[4], *parts[5]]
    assert sorted(first) == sorted(second) == [str(n) for n in range(8)]
    assert first != second


def attempt(name: str, *actions: tuple[int, ...], reward: float | None = 1.0) -> Trajectory:
    turns = tuple(
        Turn(
            "a",
            "o",
            Facts(),
            reward=0.5,
            action_ids=ids,
            sampled_logprobs=tuple(-0.1 * each for each in ids),
            observation_ids=(9,),
        )
        for ids in actions
    )
    return Trajectory(name, TASK, (), turns, StopReason.terminated, True, prompt_ids=(2, 3, 4), reward=reward)


def test_the_kl_as_a_cost_is_taken_from_the_turn_that_strayed():
    learner = Learner(new_nano(64, hidden=32, feed_forward=48, heads=2, seed=5).double())
    reference = new_nano(64, hidden=32, feed_forward=48, heads=2, seed=6).double()
    played = attempt("t", (10, 11, 1), (12, 1))
    failed = replace(attempt("u", (7,), reward=None), stop_reason=StopReason.env_error)
    group = TrajectoryGroup("g", TASK, (played, failed))
    cheaper, same = subtract_kl([group], learner, reference, 0.5)[0].trajectories
    assert same == failed

    row = make_segment(played, [0.0, 0.0])
    known = learner.logprobs(reference, [row])[0]
    assert row.ids == (2, 3, 4, 10, 11, 1, 9, 12, 1)
    far = [(-1.0 - known[3]) + (-1.1 - known[4]) + (-0.1 - known[5]), (-1.2 - known[7]) + (-0.1 - known[8])]
    assert [turn.reward for turn in cheaper.turns] == pytest.approx([0.5 - 0.5 * each for each in far])
    assert cheaper.reward == pytest.approx(1.0 - 0.5 * sum(far))


def test_a_model_s_own_logprobs_are_those_of_the_plain_forward_pass():
    import torch

    learner = Learner(new_nano(64, hidden=32, feed_forward=48, heads=2, seed=5).double(), temperature=0.7)
    long, short = attempt("t", (10, 11, 1), (12, 1)), attempt("u", (8,))
    rows = [make_segment(each, [0.0] * len(each.turns)) for each in (long, short)]
    for row, found in zip(rows, learner.logprobs(learner.model, rows), strict=True):
        with torch.no_grad():
            logits = learner.model(input_ids=torch.tensor([row.ids])).logits[0] / 0.7
        whole = torch.log_softmax(logits, -1)
        wanted = [
            whole[at - 1, token].item() if acted else 0.0
            for at, (token, acted) in enumerate(zip(row.ids, row.action_mask, strict=True))
        ]
        assert found == pytest.approx(wanted, abs=1e-9)
