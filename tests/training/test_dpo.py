"""DPO through the learner's policy gradient is DPO: values and gradients against the loss written out."""

import math

import pytest
import torch
from preference_cases import attempt, group

from palestra.policy.nano import new_nano
from palestra.training import (
    DpoSettings,
    dpo_learner,
    dpo_update,
    log_likelihoods,
    pair_rows,
    prefer,
    preference_pairs,
)

BETA = 0.3
LOOK, ASK, STOP, WAIT = ((10, 11, 1), (8, 9)), ((10, 12, 1), (8, 7)), ((13, 1), (5,)), ((14, 15, 16, 1), (6,))
ANEW = (2, 7, 7, 4)
"""A context that was written anew."""


def model(seed: int = 5):
    return new_nano(64, hidden=32, feed_forward=48, heads=2, seed=seed).double()


def learner(seed: int = 5, temperature: float = 1.0):
    made = dpo_learner(model(seed), optimizer="adamw", temperature=temperature)
    made._max_norm = math.inf  # the gradient as it is
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
        group(
            attempt("f", LOOK, (*ASK, ANEW), (*STOP, (2, 9, 4)), success=True, reward=1.0),
            attempt("g", LOOK, (*WAIT, ANEW), STOP),
            name="g3",
        ),
    ]
    return [pair_rows(pair) for pair in preference_pairs(groups, 0.1)]


def direct_loss(policy, reference, rows, temperature: float = 1.0) -> torch.Tensor:
    """Rafailov et al. 2023, equation 7, row by row with the plain forward pass."""

    def total(scored, side) -> torch.Tensor:
        return sum(of_row(scored, row) for row in side)

    def of_row(scored, row) -> torch.Tensor:
        logits = scored(input_ids=torch.tensor([row.ids])).logits[0] / temperature
        logprobs = torch.log_softmax(logits, -1)
        marked = [at for at, acted in enumerate(row.action_mask) if acted]
        return sum(logprobs[at - 1, row.ids[at]] for at in marked)

    losses = []
    for chosen, rejected in rows:
        with torch.no_grad():
            before = total(reference, chosen) - total(reference, rejected)
        margin = BETA * (total(policy, chosen) - total(policy, rejected) - before)
        losses.append(-torch.nn.functional.logsigmoid(margin))
    return torch.stack(losses).mean()


def gradient(of) -> torch.Tensor:
    return torch.cat([p.grad.flatten() for p in of.parameters()])


@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("micro_batch_tokens", [1, 40, 10_000])
def test_the_gradient_is_that_of_the_direct_loss_however_pairs_fall_into_batches(
    temperature, micro_batch_tokens
):
    rows, made = pairs(), learner(temperature=temperature)
    made._micro_batch_tokens = micro_batch_tokens
    reference = learner(seed=6, temperature=temperature)
    metrics = dpo_update(made, rows, log_likelihoods(reference, rows), BETA, 0.0)

    direct = model()
    loss = direct_loss(direct, reference.model, rows, temperature)
    loss.backward()
    assert metrics["dpo/loss"] == pytest.approx(loss.item(), rel=1e-6)
    difference = (gradient(made.model) - gradient(direct)).norm() / gradient(direct).norm()
    assert difference < 1e-6


def test_the_gradient_agrees_with_finite_differences():
    rows, made, reference = pairs(), learner(), model(6)
    dpo_update(made, rows, log_likelihoods(learner(6), rows), BETA, 0.0)
    for name, at in (
        ("model.layers.0.feed_forward.w1.weight", (3, 4)),
        ("model.embed_tokens.weight", (10, 2)),
    ):
        weight = made.model.get_parameter(name)
        analytic, values = weight.grad[at].item(), []
        for shift in (1e-5, -1e-5):
            with torch.no_grad():
                weight[at] += shift
                values.append(direct_loss(made.model, reference, rows).item())
                weight[at] -= shift
        assert (values[0] - values[1]) / 2e-5 == pytest.approx(analytic, rel=1e-4, abs=1e-9)


def test_metrics_are_those_of_the_pairs():
    rows, made, reference = pairs(), learner(), learner(6)
    before, now = log_likelihoods(reference, rows), log_likelihoods(made, rows)
    metrics = dpo_update(made, rows, before, BETA, 0.0)
    ratios = [(n[0] - b[0], n[1] - b[1]) for n, b in zip(now, before, strict=True)]
    margins = [BETA * (chosen - rejected) for chosen, rejected in ratios]
    assert metrics["dpo/margin"] == pytest.approx(sum(margins) / len(margins))
    assert metrics["dpo/accuracy"] == sum(margin > 0 for margin in margins) / len(margins)
    assert metrics["dpo/chosen_log_ratio"] == pytest.approx(sum(c for c, _ in ratios) / len(ratios))
    assert metrics["dpo/rejected_log_ratio"] == pytest.approx(sum(r for _, r in ratios) / len(ratios))
    assert metrics["tokens/trained"] == sum(
        sum(row.action_mask) for pair in rows for side in pair for row in side
    )
    assert "loss/total" not in metrics


def test_the_policy_before_its_first_step_is_the_reference():
    seen = []
    prefer(learner(), pairs(), DpoSettings(BETA, 1, 2, 1e-9, 0), lambda *row: seen.append(row))
    assert seen[0][2]["dpo/loss"] == pytest.approx(math.log(2))
    assert seen[0][2]["dpo/margin"] == pytest.approx(0.0)


def test_pairs_are_learned_and_the_reference_stays_what_it_was():
    made, seen, epochs = learner(), [], []
    settings = DpoSettings(BETA, 15, 2, 3e-3, 0)
    rows = pairs()
    before = log_likelihoods(made, rows)
    prefer(made, rows, settings, lambda *row: seen.append(row), epochs.append)
    assert epochs == list(range(1, 16))
    assert [row[:2] for row in seen] == [(n, 30) for n in range(1, 31)]
    after = dpo_update(made, rows, before, BETA, 0.0)
    assert after["dpo/accuracy"] == 1.0
    assert after["dpo/loss"] < 0.2
    assert seen[-1][2]["dpo/margin"] > 1.0
