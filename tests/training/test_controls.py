"""Weights that follow what is measured, and the KL as a cost of turns."""

import json
import math
import random
from dataclasses import replace

import pytest

from palestra.policy.nano import new_nano
from palestra.training import (
    Controls,
    Learner,
    adapted_kl_weight,
    floored_entropy_weight,
    make_segments,
    scheduled_lambda,
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
    max_policy_lag=0,
    ahead=0,
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
    assert (fixed.kl_weight, fixed.entropy_weight) == (0.02, 0.0)
    again = Controls(0.02, kl_target=0.1, entropy_floor=0.3)
    again.load(moving.state())
    again.observe(metrics)
    moving.observe(metrics)
    assert again.state() == moving.state() != fixed.state()


def test_lambda_falls_when_the_reward_oscillates_rises_when_it_crawls_and_else_stays():
    rising = [0.1, 0.2, 0.3, 0.4, 0.5, 0.6]
    swinging = [0.5, 0.8, 0.4, 0.8, 0.4, 0.7]
    crawling = [0.50, 0.502, 0.504, 0.506, 0.508, 0.51]
    assert scheduled_lambda(0.95, rising) == (0.95, "")
    assert scheduled_lambda(0.95, swinging)[0] == pytest.approx(0.93)
    assert scheduled_lambda(0.95, swinging)[1].startswith("oscillates: mean reward +0.067 over 6 updates")
    assert scheduled_lambda(0.95, [0.50, 0.53, 0.50, 0.53, 0.50, 0.53]) == (0.95, "")
    assert scheduled_lambda(0.95, crawling[::-1]) == (0.95, "")
    assert scheduled_lambda(0.95, crawling)[0] == pytest.approx(0.96)
    assert scheduled_lambda(0.95, crawling)[1].startswith("crawls")
    assert scheduled_lambda(0.95, swinging[:5]) == (0.95, "")
    assert scheduled_lambda(0.81, swinging)[0] == 0.8
    assert scheduled_lambda(0.5, swinging)[0] == 0.5
    assert scheduled_lambda(0.985, crawling)[0] == 0.99
    assert scheduled_lambda(1.0, crawling)[0] == 1.0


def test_lambda_hardly_moves_on_a_curve_that_only_scatters():
    rng, moved = random.Random(1), 0
    for _ in range(500):
        seen = [rng.gauss(0.9, 0.04) for _ in range(6)]
        moved += scheduled_lambda(0.95, seen)[0] != 0.95
    assert moved < 0.06 * 500


def test_lambda_moves_once_a_window_with_its_reason_and_goes_on_after_a_resume():
    def controls() -> Controls:
        return Controls(0.0, gae_lambda=0.95, schedule_lambda=True)

    swing = [{"reward/mean": 0.5 + 0.3 * (-1) ** n} for n in range(12)]
    whole = controls()
    moved = [change for metrics in swing for change in whole.observe(metrics)]
    assert [(change.setting, round(change.after, 9)) for change in moved] == [
        ("lambda", 0.93),
        ("lambda", 0.91),
    ]
    first, second = controls(), controls()
    for metrics in swing[:9]:
        first.observe(metrics)
    second.load(json.loads(json.dumps(first.state())))
    for metrics in swing[9:]:
        second.observe(metrics)
    assert second.state() == whole.state()
    assert Controls(0.0, gae_lambda=0.95).observe(swing[0]) == []


def test_what_a_guard_changes_holds_and_the_entropy_s_weight_has_a_bound():
    controls = Controls(0.0, entropy_floor=0.3)
    assert controls.raise_entropy("flat").after == 0.01
    controls.observe({"policy/entropy": 0.0})
    assert controls.entropy_weight == pytest.approx(0.012)
    controls.observe({"policy/entropy": 9.0})
    assert controls.entropy_weight == 0.01
    raised = [controls.raise_entropy("flat") for _ in range(9)]
    assert controls.entropy_weight == 0.05
    assert [change is not None for change in raised] == [True] * 4 + [False] * 5
    change = controls.lower_rate(0.004, "fell")
    assert (change.setting, change.before, change.after) == ("learning rate", 0.004, 0.002)
    assert controls.rate_scale == 0.5


def test_every_pass_goes_over_every_row_once_in_an_order_of_its_own():
    rows = [make_segments(attempt(str(n), (5, 6)), [1.0])[0] for n in range(8)]
    parts = [[row.trajectory_id for row in part] for part in minibatches(rows, 1, SETTINGS)]
    assert [len(part) for part in parts] == [3, 3, 2, 3, 3, 2]
    first, second = [*parts[0], *parts[1], *parts[2]], [*parts[3], *parts[4], *parts[5]]
    assert sorted(first) == sorted(second) == [str(n) for n in range(8)]
    assert first != second


def test_the_rows_of_an_episode_stay_in_one_step():
    lengths = {"long": 6, **{str(n): 1 for n in range(7)}}
    rows = [
        replace(make_segments(attempt(name, (5, 6)), [1.0])[0], ids=(n, 5, 6))
        for name, count in lengths.items()
        for n in range(count)
    ]
    parts = list(minibatches(rows, 1, SETTINGS))[:3]
    held = [{row.trajectory_id for row in part} for part in parts]
    assert sorted(len(names) for names in held) == [2, 3, 3]
    assert sum("long" in names for names in held) == 1
    assert sum(map(len, parts)) == 13
    (kept,) = [[row.ids[0] for row in part if row.trajectory_id == "long"] for part in parts if len(part) > 3]
    assert kept == list(range(6))


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

    (row,) = make_segments(played, [0.0, 0.0])
    known = learner.logprobs(reference, [row])[0]
    assert row.ids == (2, 3, 4, 10, 11, 1, 9, 12, 1)
    far = [(-1.0 - known[3]) + (-1.1 - known[4]) + (-0.1 - known[5]), (-1.2 - known[7]) + (-0.1 - known[8])]
    assert [turn.reward for turn in cheaper.turns] == pytest.approx([0.5 - 0.5 * each for each in far])
    assert cheaper.reward == pytest.approx(1.0 - 0.5 * sum(far))


def test_the_kl_as_a_cost_does_not_change_where_the_same_context_is_in_two_rows():
    learner = Learner(new_nano(64, hidden=32, feed_forward=48, heads=2, seed=5).double())
    reference = new_nano(64, hidden=32, feed_forward=48, heads=2, seed=6).double()
    whole = attempt("t", (10, 11, 1), (12, 1))
    first, second = whole.turns
    context = (*whole.prompt_ids, *first.action_ids, *first.observation_ids)
    parted = replace(
        whole, id="p", turns=(replace(first, observation_ids=()), replace(second, prompt_ids=context))
    )
    group = TrajectoryGroup("g", TASK, (whole, attempt("u", (7,)), parted))
    one, _, two = subtract_kl([group], learner, reference, 0.5)[0].trajectories
    assert [turn.reward for turn in two.turns] == pytest.approx([turn.reward for turn in one.turns])


def test_a_model_s_own_logprobs_are_those_of_the_plain_forward_pass():
    import torch

    learner = Learner(new_nano(64, hidden=32, feed_forward=48, heads=2, seed=5).double(), temperature=0.7)
    long, short = attempt("t", (10, 11, 1), (12, 1)), attempt("u", (8,))
    rows = [make_segments(each, [0.0] * len(each.turns))[0] for each in (long, short)]
    for row, found in zip(rows, learner.logprobs(learner.model, rows), strict=True):
        with torch.no_grad():
            logits = learner.model(input_ids=torch.tensor([row.ids])).logits[0] / 0.7
        whole = torch.log_softmax(logits, -1)
        wanted = [
            whole[at - 1, token].item() if acted else 0.0
            for at, (token, acted) in enumerate(zip(row.ids, row.action_mask, strict=True))
        ]
        assert found == pytest.approx(wanted, abs=1e-9)


def test_the_kl_as_a_cost_has_the_gradient_of_the_kl():
    # policy 1/2 1/2, reference .9 .1: the KL's gradient is -.5493 in the first logit
    def fixed(*probabilities: float):
        import torch

        model = new_nano(64, hidden=32, feed_forward=48, heads=2, seed=5).double()
        with torch.no_grad():
            model.lm_head = torch.nn.Linear(32, 64, bias=True).double()
            model.lm_head.weight.zero_()
            model.lm_head.bias.fill_(-1e9)
            model.lm_head.bias[:2] = torch.tensor(probabilities).double().log()
        return model

    reference = fixed(0.9, 0.1)
    gradient = 0.0
    for token, chosen in ((0, 1.0), (1, 0.0)):
        turn = Turn("a", "o", Facts(), reward=0.0, action_ids=(token,), sampled_logprobs=(math.log(0.5),))
        said = replace(attempt(str(token), (token,), reward=0.0), turns=(turn,))
        group = TrajectoryGroup("g", TASK, (said,))
        (cheaper,) = subtract_kl([group], Learner(fixed(0.5, 0.5)), reference, 1.0)[0].trajectories
        gradient += 0.5 * -cheaper.reward * (chosen - 0.5)
    assert gradient == pytest.approx(-0.5493, abs=1e-4)
