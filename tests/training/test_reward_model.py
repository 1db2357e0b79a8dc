"""The reward model: where it reads, its loss against the one written out, its folder."""

import math
import pickle

import pytest
import torch
from preference_cases import attempt, group
from tokenizers import Tokenizer

from palestra.errors import StoreError
from palestra.policy.chat import RoleTokenTemplate
from palestra.policy.nano import new_nano, train_tokenizer
from palestra.rewards import DEFAULT_WEIGHTS, Rubric, preference
from palestra.training import (
    RewardModel,
    RewardModelSettings,
    StoredReward,
    accumulate_preferences,
    fit_reward_model,
    judged_segment,
    load_reward_model,
    preference_pairs,
    save_reward_model,
)

LOOK, ASK, STOP, WAIT = ((10, 11, 1), (8, 9)), ((10, 12, 1), (8, 7)), ((13, 1), (5,)), ((14, 15, 16, 1), (6,))


def reward(seed: int = 5, micro_batch_tokens: int = 10_000) -> RewardModel:
    model = new_nano(64, hidden=32, feed_forward=48, heads=2, seed=seed).double()
    made = RewardModel(model, micro_batch_tokens=micro_batch_tokens)
    torch.nn.init.normal_(made.head.weight, generator=torch.Generator().manual_seed(1))
    return made


def pairs():
    groups = [
        group(attempt("a", LOOK, ASK, STOP, success=True, reward=1.0), attempt("b", LOOK, STOP), name="g1"),
        group(
            attempt("c", ASK, success=True, reward=1.0),
            attempt("d", WAIT, LOOK),
            attempt("e", STOP),
            name="g2",
        ),
    ]
    return [(judged_segment(p.chosen), judged_segment(p.rejected)) for p in preference_pairs(groups, 0.1)]


def by_hand(made: RewardModel, row) -> torch.Tensor:
    states = made.model.base_model(input_ids=torch.tensor([row.ids[:-1]]))[0][0]
    return made.head(states[-1])[0]


def test_a_score_is_the_head_s_at_the_last_action_token():
    made, rows = reward(), [row for pair in pairs() for row in pair]
    with torch.no_grad():
        wanted = [by_hand(made, row).item() for row in rows]
    assert made.scores(rows) == pytest.approx(wanted)


@pytest.mark.parametrize("micro_batch_tokens", [1, 40, 10_000])
def test_the_gradient_is_that_of_bradley_and_terry_however_pairs_fall_into_batches(micro_batch_tokens):
    made, plain, rows = reward(micro_batch_tokens=micro_batch_tokens), reward(), pairs()
    metrics = accumulate_preferences(made, rows)
    margins = torch.stack([by_hand(plain, chosen) - by_hand(plain, rejected) for chosen, rejected in rows])
    loss = -torch.nn.functional.logsigmoid(margins).mean()
    loss.backward()
    assert metrics["reward_model/loss"] == pytest.approx(loss.item(), rel=1e-6)
    assert metrics["reward_model/margin"] == pytest.approx(margins.mean().item(), rel=1e-6)
    assert metrics["reward_model/accuracy"] == (margins > 0).double().mean().item()
    for one, other in zip(gradients(made), gradients(plain), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-8)


def gradients(made: RewardModel) -> list[torch.Tensor]:
    return [
        p.grad for p in [*made.model.base_model.parameters(), *made.head.parameters()] if p.grad is not None
    ]


def test_the_gradient_agrees_with_finite_differences():
    made, rows = reward(), pairs()
    accumulate_preferences(made, rows)
    weight = made.model.get_parameter("model.layers.0.feed_forward.w1.weight")
    analytic, values = weight.grad[3, 4].item(), []
    for shift in (1e-5, -1e-5):
        with torch.no_grad():
            weight[3, 4] += shift
            margins = [by_hand(made, chosen) - by_hand(made, rejected) for chosen, rejected in rows]
            values.append(sum(math.log1p(math.exp(-margin.item())) for margin in margins) / len(margins))
            weight[3, 4] -= shift
    assert (values[0] - values[1]) / 2e-5 == pytest.approx(analytic, rel=1e-4, abs=1e-9)


def test_it_comes_to_prefer_what_was_preferred_and_values_lie_around_a_half():
    made, seen, rows = reward(), [], pairs()
    fit_reward_model(made, rows, RewardModelSettings(20, 2, 3e-3, 0), lambda *row: seen.append(row))
    assert len(seen) == seen[0][1] == 40
    assert seen[-1][2]["reward_model/accuracy"] == 1.0
    good, bad = made.value(attempt("a", LOOK, ASK, STOP)), made.value(attempt("b", LOOK, STOP))
    assert 0.0 < bad < 0.5 < good < 1.0
    scores = made.scores([row for pair in rows for row in pair])
    standard = [(score - made.mean) / made.deviation for score in scores]
    assert sum(standard) == pytest.approx(0.0, abs=1e-6)
    assert sum(each**2 for each in standard) / len(standard) == pytest.approx(1.0)
    assert good == pytest.approx(1 / (1 + math.exp(-standard[0])))


def test_an_attempt_without_ids_has_no_value():
    made = reward()
    assert made.value(attempt("none", ((), ()))) is None
    assert made.value(attempt("empty")) is None


def test_a_far_off_score_is_squashed_without_overflow():
    made = reward()
    made.mean, made.deviation = 1e9, 1e-6
    assert made.value(attempt("a", LOOK)) == pytest.approx(0.0)


@pytest.fixture(scope="module")
def template() -> RoleTokenTemplate:
    tokenizer: Tokenizer = train_tokenizer(["hello world, one two three <|end|>"] * 3, 300)
    return RoleTokenTemplate(tokenizer)


def test_a_folder_holds_all_of_it_and_nothing_pickled(tmp_path, template):
    made = RewardModel(new_nano(300, hidden=32, feed_forward=48, heads=2, seed=5).eval())
    torch.nn.init.normal_(made.head.weight, generator=torch.Generator().manual_seed(1))
    made.mean, made.deviation = 0.25, 2.0
    save_reward_model(tmp_path, made, template, {"held_out_accuracy": 0.75})
    assert {path.suffix for path in tmp_path.iterdir()} == {".safetensors", ".json"}
    loaded, loaded_template = load_reward_model(tmp_path)
    episode = attempt("a", LOOK, STOP)
    assert loaded.value(episode) == made.value(episode) is not None
    assert loaded_template.same_ids(template)
    other: Tokenizer = train_tokenizer(["other words entirely"] * 3, 300)
    assert not loaded_template.same_ids(RoleTokenTemplate(other))

    stored = pickle.loads(pickle.dumps(StoredReward(tmp_path)))
    rubric = pickle.loads(
        pickle.dumps(Rubric(DEFAULT_WEIGHTS | {"preference": 0.1}, extra_parts=[preference(stored)]))
    )
    scored = rubric.score(episode)
    assert scored.reward_parts["preference"] == made.value(episode)
    assert scored.turns[0].reward == pytest.approx(0.1 * 1.0 / 2)

    (tmp_path / "head.safetensors").write_bytes(b"torn")
    with pytest.raises(StoreError, match="cannot be loaded"):
        load_reward_model(tmp_path)
