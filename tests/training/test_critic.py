"""GAE by brute force, the critic's rows, its loss, its lesson and its checkpoint."""

import math
from dataclasses import replace

import pytest
import torch

from palestra.policy.nano import new_nano
from palestra.training import (
    Critic,
    CriticCredit,
    CriticSettings,
    explained_variance,
    gae,
    state_segments,
    value_loss,
)
from palestra.types import Facts, StopReason, Task, Trajectory, TrajectoryGroup, Turn

TASK = Task(id="w/train/1", env="w", split="train", seed=1, prompt="hi")
SETTINGS = CriticSettings(learning_rate=1e-2, epochs=4, minibatches=2, value_clip=10.0, seed=0)


def played(name: str, *turns: tuple[tuple[int, ...], float], stop=StopReason.terminated) -> Trajectory:
    """Turns as (action ids, reward); every reply is the ids 8 and 9."""
    made = tuple(
        Turn(
            "a",
            "o",
            Facts(),
            reward=reward,
            action_ids=ids,
            sampled_logprobs=(-0.5,) * len(ids),
            observation_ids=(8, 9) if stop.is_truncation or index + 1 < len(turns) else (),
        )
        for index, (ids, reward) in enumerate(turns)
    )
    total = sum(reward for _, reward in turns)
    return Trajectory(name, TASK, (), made, stop, True, prompt_ids=(2, 3), reward=total)


def critic(seed: int = 5) -> Critic:
    return Critic(new_nano(64, hidden=32, feed_forward=48, heads=2, seed=seed).double(), SETTINGS)


def credit(made: Critic, unit: str = "turn", **changes) -> CriticCredit:
    given = {"gamma": 0.9, "gae_lambda": 0.8, "warmup": 0, "negative_weight": 1.0} | changes
    gae_lambda = given.pop("gae_lambda")
    return CriticCredit(made, unit, gae_lambda=lambda: gae_lambda, **given)


@pytest.mark.parametrize("gae_lambda", [0.0, 0.6, 1.0])
@pytest.mark.parametrize("after", [0.0, 0.7])
def test_gae_is_the_weighted_sum_of_later_errors(gae_lambda: float, after: float):
    rewards, values, gamma = [0.1, -0.2, 0.5, 1.0], [0.3, 0.2, 0.6, 0.4], 0.9
    following = [*values[1:], after]
    errors = [r + gamma * n - v for r, n, v in zip(rewards, following, values, strict=True)]
    wanted = [
        sum((gamma * gae_lambda) ** ahead * error for ahead, error in enumerate(errors[step:]))
        for step in range(4)
    ]
    assert gae(rewards, values, after, gamma=gamma, gae_lambda=gae_lambda) == pytest.approx(wanted)


def test_with_lambda_one_an_advantage_is_the_discounted_return_minus_the_value():
    found = gae([0.0, 0.0, 1.0], [0.5, 0.5, 0.5], 0.0, gamma=0.9, gae_lambda=1.0)
    assert found == pytest.approx([0.81 - 0.5, 0.9 - 0.5, 0.5])


def test_a_turn_s_state_ends_where_its_action_begins_and_a_token_s_before_the_token():
    episode = played("t", ((10, 11), 0.0), ((12, 1), 1.0))
    turns, tokens = state_segments(episode, "turn")[0], state_segments(episode, "token")[0]
    assert turns.ids == tokens.ids == (2, 3, 10, 11, 8, 9, 12, 1)
    assert [at for at, marked in enumerate(turns.action_mask) if marked] == [2, 6]
    assert [at for at, marked in enumerate(tokens.action_mask) if marked] == [2, 3, 6, 7]


def test_the_state_an_episode_was_cut_in_comes_after_its_last_reply():
    episode = played("t", ((10, 11), 0.0), stop=StopReason.max_turns)
    (row,) = state_segments(episode, "turn", cut=True)
    assert row.ids == (2, 3, 10, 11, 8, 9, 0)
    assert [at for at, marked in enumerate(row.action_mask) if marked] == [2, 6]


def test_states_of_a_context_that_was_written_anew_are_in_a_row_of_their_own():
    episode = played("t", ((10, 11), 0.0), ((12, 1), 1.0), stop=StopReason.max_turns)
    first, second = episode.turns
    episode = replace(
        episode, turns=(replace(first, observation_ids=()), replace(second, prompt_ids=(4, 5, 6)))
    )
    rows = state_segments(episode, "turn", cut=True)
    assert [row.ids for row in rows] == [(2, 3, 10, 11), (4, 5, 6, 12, 1, 8, 9, 0)]
    marked = [[at for at, marked in enumerate(row.action_mask) if marked] for row in rows]
    assert marked == [[2], [3, 7]]


def test_the_state_an_episode_was_cut_in_has_a_row_of_its_own_where_the_last_reply_broke_the_prefix():
    episode = played("t", ((10, 11), 0.0), stop=StopReason.max_turns)
    (turn,) = episode.turns
    episode = replace(episode, turns=(replace(turn, observation_ids=()),), next_prompt_ids=(4, 5, 6))
    rows = state_segments(episode, "turn", cut=True)
    assert [row.ids for row in rows] == [(2, 3, 10, 11), (4, 5, 6, 0)]
    marked = [[at for at, marked in enumerate(row.action_mask) if marked] for row in rows]
    assert marked == [[2], [3]]
    assert len(state_segments(episode, "turn")) == 1


def test_a_critic_s_credit_is_the_same_in_one_row_as_in_two_of_the_same_context():
    whole = played("t", ((10, 11), 0.5), ((12, 1), 1.0))
    first, second = whole.turns
    context = (*whole.prompt_ids, *first.action_ids, *first.observation_ids)
    parted = replace(whole, turns=(replace(first, observation_ids=()), replace(second, prompt_ids=context)))
    other = played("u", ((7,), 0.25))
    found = []
    for episode in (whole, parted):
        made = critic()
        torch.nn.init.normal_(made.head.weight, generator=torch.Generator().manual_seed(1))
        rows, metrics = credit(made)([TrajectoryGroup("g", TASK, (episode, other))])
        given = [a for row in rows for a, acted in zip(row.advantages, row.action_mask, strict=True) if acted]
        found.append((given, metrics["critic/explained_variance"]))
    assert len(found[0][0]) == 5
    assert found[1][0] == pytest.approx(found[0][0], abs=1e-5)
    assert found[1][1] == pytest.approx(found[0][1], abs=1e-5)


def test_values_are_the_head_s_at_the_last_token_of_each_state():
    made = critic()
    torch.nn.init.normal_(made.head.weight, generator=torch.Generator().manual_seed(1))
    rows = [
        state_segments(played("t", ((10, 11), 0.0), ((12, 1), 1.0)), "turn")[0],
        state_segments(played("u", ((7,), 0.0)), "turn")[0],
    ]
    for row, values in zip(rows, made.values(rows), strict=True):
        with torch.no_grad():
            states = made.model.base_model(input_ids=torch.tensor([row.ids]))[0][0]
            wanted = made.head(states)[:, 0].tolist()
        assert values == pytest.approx(
            [wanted[at - 1] for at, marked in enumerate(row.action_mask) if marked]
        )


def test_a_new_critic_expects_nothing_so_advantages_are_returns():
    two = [TrajectoryGroup("g", TASK, (played("t", ((10,), 0.0), ((11,), 1.0)), played("u", ((12,), 0.0))))]
    rows, metrics = credit(critic(), gae_lambda=1.0)(two)
    returns = [0.9, 1.0, 0.0]
    mean = sum(returns) / 3
    deviation = math.sqrt(sum((value - mean) ** 2 for value in returns) / 3)
    found = [
        each for row in rows for each, acted in zip(row.advantages, row.action_mask, strict=True) if acted
    ]
    assert found == pytest.approx([(value - mean) / deviation for value in returns])
    assert metrics["critic/explained_variance"] == pytest.approx(0.0)


def test_only_an_episode_that_was_cut_bootstraps():
    made = critic()
    torch.nn.init.constant_(made.head.bias, 0.5)  # every state is worth 0.5
    ended, cut = played("t", ((10,), 0.0)), played("u", ((10,), 0.0), stop=StopReason.max_turns)
    seen = {}
    made.fit = lambda rows, returns, values: seen.update(returns=returns) or {}
    credit(made, gamma=0.9, gae_lambda=1.0)([TrajectoryGroup("g", TASK, (ended, cut))])
    assert [value for (value,) in seen["returns"]] == pytest.approx([0.0, 0.45])


def test_tokens_earn_their_turn_s_reward_at_its_last_token():
    two = [
        TrajectoryGroup("g", TASK, (played("t", ((10, 11), 0.0), ((12, 1), 1.0)), played("u", ((7,), -1.0))))
    ]
    rows, _ = credit(critic(), "token", gamma=0.5, gae_lambda=1.0)(two)
    returns = [0.125, 0.25, 0.5, 1.0, -1.0]
    mean = sum(returns) / 5
    deviation = math.sqrt(sum((value - mean) ** 2 for value in returns) / 5)
    found = [
        each for row in rows for each, acted in zip(row.advantages, row.action_mask, strict=True) if acted
    ]
    assert found == pytest.approx([(value - mean) / deviation for value in returns])


def test_while_the_critic_warms_up_the_policy_gets_no_rows():
    made = critic()
    two = [TrajectoryGroup("g", TASK, (played("t", ((10,), 1.0)), played("u", ((12,), 0.0))))]
    rule = credit(made, warmup=1)
    assert rule(two)[0] == []
    assert len(rule(two)[0]) == 2


def test_returns_that_are_all_alike_make_no_rows():
    alike = TrajectoryGroup("g", TASK, (played("t", ((10,), 1.0)), played("u", ((12,), 1.0))))
    assert credit(critic())([alike])[0] == []


def test_an_unscored_attempt_teaches_neither():
    failed = replace(played("f", ((10,), 0.0)), reward=None, stop_reason=StopReason.env_error)
    assert credit(critic())([TrajectoryGroup("g", TASK, (failed, failed))]) == ([], {})


def test_the_value_loss_is_half_the_larger_square_and_silent_beyond_the_clip():
    values = torch.tensor([0.1, 0.9], dtype=torch.float64, requires_grad=True)
    loss = value_loss(values, torch.tensor([1.0, 1.0]).double(), torch.tensor([0.0, 0.0]).double(), 0.2)
    assert loss.item() == pytest.approx(0.5 * 0.9**2 + 0.5 * 0.8**2)
    loss.backward()
    assert values.grad.tolist() == pytest.approx([-0.9, 0.0])


def test_a_critic_comes_to_foresee_what_episodes_return():
    good, bad = played("t", ((10,), 1.0)), played("u", ((12,), -1.0), ((13,), 0.0))
    rule = credit(critic(), gamma=1.0)
    group = TrajectoryGroup("g", TASK, (good, replace(bad, prompt_ids=(2, 4))))
    explained = [rule([group])[1]["critic/explained_variance"] for _ in range(12)]
    assert explained[0] < 0.5 < 0.9 < explained[-1]


def test_a_critic_continues_from_its_tensors_as_if_it_had_never_stopped():
    group = TrajectoryGroup("g", TASK, (played("t", ((10,), 1.0)), played("u", ((12,), 0.0))))
    whole, first, resumed = critic(), critic(), critic(seed=9)
    credit(first)([group])
    resumed.load(first.tensors())
    for made in (whole, whole, resumed):
        credit(made)([group])
    assert resumed.updates == whole.updates == 2
    for name, value in whole.tensors().items():
        assert torch.equal(value, resumed.tensors()[name]), name


def test_explained_variance_is_one_for_foresight_and_none_without_spread():
    assert explained_variance([1.0, 2.0, 4.0], [1.0, 2.0, 4.0]) == 1.0
    assert explained_variance([0.0, 0.0], [1.0, 2.0]) == 0.0
    assert explained_variance([1.0, 2.0], [3.0, 3.0]) is None


def test_a_value_of_observed_tokens_is_never_bootstrapped_from():
    # one token earns 0, two tokens are observed, the next token earns 2; states are worth 0, observed ones 50
    made, seen = critic(), {}
    made.values = lambda rows: [
        [0.0 if row.ids[at] in (10, 11) else 50.0 for at, marked in enumerate(row.action_mask) if marked]
        for row in rows
    ]
    made.fit = lambda rows, returns, values: seen.update(returns=returns) or {}
    episode = played("t", ((10,), 0.0), ((11,), 2.0))
    credit(made, "token", gamma=1.0, gae_lambda=0.9)([TrajectoryGroup("g", TASK, (episode,))])
    assert seen["returns"][0] == pytest.approx([1.8, 2.0])


def test_tokens_are_discounted_and_observed_ones_are_not():
    made, seen = critic(), {}
    made.fit = lambda rows, returns, values: seen.update(returns=returns) or {}
    episode = played("t", ((10,), 0.0), ((11,), 4.0))
    credit(made, "token", gamma=0.5, gae_lambda=1.0)([TrajectoryGroup("g", TASK, (episode,))])
    assert seen["returns"][0] == pytest.approx([2.0, 4.0])


def test_an_episode_that_was_cut_counts_on_and_one_that_ended_does_not():
    assert gae([0.0, 0.0], [0.5, 0.5], 0.0, gamma=0.9, gae_lambda=1.0) == pytest.approx([-0.5, -0.5])
    assert gae([0.0, 0.0], [0.5, 0.5], 0.8, gamma=0.9, gae_lambda=1.0) == pytest.approx([0.148, 0.22])
