"""Surrogates, KL, entropy, mismatch and aggregation against brute force in float64, gradients included."""

import math
from dataclasses import replace

import pytest
import torch

from palestra.errors import ConfigError
from palestra.training import (
    TokenTerms,
    clipped,
    entropy,
    k3,
    make_micro_batches,
    policy_loss,
    ratio_clipped,
    row_weights,
)
from palestra.training.algorithms import SURROGATES, make_surrogate
from palestra.types import Segment


def vector(values) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def terms(policy, old, advantages, *, sampled=None, reference=None, rows=None) -> TokenTerms:
    return TokenTerms(
        policy_logprobs=vector(policy).requires_grad_(),
        old_logprobs=vector(old),
        sampled_logprobs=vector(old if sampled is None else sampled),
        reference_logprobs=None if reference is None else vector(reference),
        advantages=vector(advantages),
        distribution=torch.zeros(len(policy), 2, dtype=torch.float64),
        rows=torch.tensor(rows if rows is not None else [0] * len(policy)),
    )


def slopes(loss, given: TokenTerms, weights=None) -> list[float]:
    values, _ = loss(given)
    (values * vector(weights or [1.0] * len(values))).sum().backward()
    return given.policy_logprobs.grad.tolist()


@pytest.mark.parametrize("name", SURROGATES)
def test_at_ratio_one_every_surrogate_has_the_policy_gradient(name):
    given = terms([-1.0, -2.0, -0.5], [-1.0, -2.0, -0.5], [0.5, -2.0, 1.0], rows=[0, 0, 1])
    assert slopes(SURROGATES[name](), given) == pytest.approx([-0.5, 2.0, -1.0])


def test_clipping_silences_a_positive_token_above_and_a_negative_below():
    given = terms([math.log(1.5), math.log(0.5)], [0.0, 0.0], [1.0, -1.0])
    values, metrics = clipped(clip_low=0.2, clip_high=0.28)(given)
    assert values.tolist() == pytest.approx([-1.28, 0.8])
    assert metrics["policy/clip_fraction"].tolist() == [1.0, 1.0]
    assert slopes(clipped(clip_low=0.2, clip_high=0.28), given) == [0.0, 0.0]


def test_clipping_leaves_a_token_that_moved_against_its_advantage():
    given = terms([math.log(0.5), math.log(1.5)], [0.0, 0.0], [1.0, -1.0])
    assert slopes(clipped(), given) == pytest.approx([-0.5, 1.5])


def test_the_dual_clip_bounds_what_a_bad_token_that_became_likely_can_do():
    given = terms([math.log(5.0), math.log(2.0), math.log(5.0)], [0.0] * 3, [-1.0, -1.0, 1.0])
    values, metrics = clipped(dual_clip=3.0)(given)
    assert values.tolist() == pytest.approx([3.0, 2.0, -1.28])
    assert metrics["policy/clip_fraction"].tolist() == [1.0, 0.0, 1.0]
    assert slopes(clipped(dual_clip=3.0), given) == pytest.approx([0.0, 2.0, 0.0])


@pytest.mark.parametrize("shift", [0.0, 2e-4, 3e-2, -3e-2])
@pytest.mark.parametrize("advantage", [0.7, -0.7])
def test_gspo_is_its_paper_s_objective_over_episodes(shift, advantage):
    old, rows = [-1.0, -0.3, -2.0, -0.7, -0.2], [0, 0, 0, 1, 1]
    moved = [shift + 0.01, shift - 0.01, shift, -shift, -shift]
    policy = [value + by for value, by in zip(old, moved, strict=True)]
    advantages = [advantage] * 3 + [1.3] * 2
    loss = SURROGATES["gspo"](clip_low=3e-4, clip_high=4e-4)
    found = slopes(loss, terms(policy, old, advantages, rows=rows), [1 / 6] * 3 + [1 / 4] * 2)

    logprobs = vector(policy).requires_grad_()
    ratios = [(logprobs[:3] - vector(old[:3])).mean().exp(), (logprobs[3:] - vector(old[3:])).mean().exp()]
    objective = sum(
        torch.minimum(ratio * a, ratio.clamp(1 - 3e-4, 1 + 4e-4) * a)
        for ratio, a in zip(ratios, (advantage, 1.3), strict=True)
    )
    (-objective / 2).backward()
    assert found == pytest.approx(logprobs.grad.tolist(), abs=1e-12)


def test_cispo_keeps_a_gradient_for_tokens_beyond_the_clip():
    given = terms([math.log(2.0), math.log(0.1)], [0.0, 0.0], [1.0, 1.0])
    assert slopes(ratio_clipped(clip_high=0.28), given) == pytest.approx([-1.28, -0.1])


def test_the_gradient_through_ratio_clip_kl_and_entropy_is_that_of_finite_differences():
    generator = torch.Generator().manual_seed(3)
    logits = torch.randn(6, 5, generator=generator, dtype=torch.float64, requires_grad=True)
    old, reference = (torch.randn(6, generator=generator).double() * 0.3 - 1.5 for _ in range(2))
    targets = torch.tensor([0, 1, 2, 3, 4, 0])
    loss = policy_loss(clipped(dual_clip=3.0), kl_weight=0.3, entropy_weight=0.2, mismatch_cap=1.1)

    def total(scores: torch.Tensor) -> torch.Tensor:
        distribution = torch.log_softmax(scores, -1)
        picked = distribution.gather(1, targets[:, None])[:, 0]
        advantages = vector([1.0, -1.0, 0.5, -2.0, 0.1, 1.5])
        sampled = old + vector([0.3, -0.3, 0.0, 0.1, -0.1, 0.0])
        values, _ = loss(
            TokenTerms(
                picked, old, sampled, reference, advantages, distribution, torch.zeros(6, dtype=torch.long)
            )
        )
        return values.sum()

    assert torch.autograd.gradcheck(total, logits)


def test_the_mismatch_weight_is_the_learner_over_the_sampler_and_truncated():
    given = terms([-1.0, -1.0], [-1.0, -1.0], [1.0, 1.0], sampled=[-1.0 + math.log(2), -1.0 - math.log(4)])
    loss = policy_loss(clipped(), kl_weight=0.0, mismatch_cap=2.0)
    values, metrics = loss(given)
    assert metrics["policy/mismatch_weight"].tolist() == pytest.approx([0.5, 2.0])
    assert values.tolist() == pytest.approx([-0.5, -2.0])
    assert slopes(loss, given) == pytest.approx([-0.5, -2.0])


def test_the_terms_of_a_policy_loss_add_up():
    given = terms([-1.0], [-1.0], [2.0], reference=[-1.5])
    values, metrics = policy_loss(clipped(), kl_weight=0.1, entropy_weight=0.01)(given)
    distance, spread = k3(vector([-1.0]), vector([-1.5])).item(), entropy(given.distribution).item()
    assert values.item() == pytest.approx(-2.0 + 0.1 * distance - 0.01 * spread)
    assert metrics["loss/policy"].item() == pytest.approx(-2.0)
    assert metrics["policy/kl_reference"].item() == pytest.approx(distance)


def row(length: int, name: str = "t") -> Segment:
    zeros = (0.0,) * (length + 1)
    return Segment(name, (5,) * (length + 1), (False, *[True] * length), zeros, zeros)


def test_tokens_are_averaged_over_the_batch_within_rows_or_by_a_constant():
    rows = [row(1), row(3), replace(row(4), action_mask=(False, False, True, False, True))]
    rows = [replace(each, trajectory_id=str(n)) for n, each in enumerate(rows)]
    assert row_weights(rows, "token_mean", 9) == pytest.approx([1 / 6] * 3)
    assert row_weights(rows, "sequence_mean", 9) == pytest.approx([1 / 3, 1 / 9, 1 / 6])
    assert row_weights(rows, "constant", 10) == pytest.approx([1 / 30] * 3)


def test_an_episode_in_two_rows_counts_as_one_sequence():
    rows = [replace(row(1), trajectory_id="a"), replace(row(3), trajectory_id="a"), row(2)]
    assert row_weights(rows, "token_mean", 9) == pytest.approx([1 / 6] * 3)
    assert row_weights(rows, "sequence_mean", 9) == pytest.approx([1 / 8, 1 / 8, 1 / 4])
    assert row_weights(rows, "constant", 10) == pytest.approx([1 / 20] * 3)


def test_an_option_that_a_surrogate_does_not_have_is_refused():
    with pytest.raises(ConfigError, match=r"loss\.dual_clip has no effect with the surrogate 'gspo'"):
        make_surrogate("gspo", {"clip_low": None, "dual_clip": 3.0})
    assert make_surrogate("policy_gradient", {"clip_low": None})


def test_a_ratio_of_a_sequence_leaves_out_tokens_that_were_not_sampled():
    row = Segment("t", (5,) * 4, (False, True, True, False), (0.0, -0.2, 0.1, -0.5), (0.0, -1.0, -1.0, 0.0))
    (batch,) = make_micro_batches([row], 100)
    given = terms([0.0, 0.0], batch.old_logprobs.tolist(), batch.advantages.tolist())
    values, _ = SURROGATES["gspo"](clip_low=0.5, clip_high=0.5)(given)
    assert values.tolist() == pytest.approx([1.05127] * 2, abs=1e-5)


def test_the_gradient_of_k3_as_a_loss_is_not_that_of_the_kl():
    # at 1/2 1/2 with a reference of .9 .1 the KL has -.5493 and .5493
    logits = torch.zeros(2, dtype=torch.float64, requires_grad=True)
    logprobs = torch.log_softmax(logits, -1)
    (logprobs.exp().detach() * k3(logprobs, vector([0.9, 0.1]).log())).sum().backward()
    assert logits.grad.tolist() == pytest.approx([-0.4, 0.4])


def test_tokens_whose_mismatch_weight_was_capped_are_counted():
    given = terms([-1.0, -1.0], [-1.0, -1.0], [1.0, 1.0], sampled=[-6.0, -1.0])
    _, metrics = policy_loss(clipped(), kl_weight=0.0, mismatch_cap=2.0)(given)
    assert metrics["policy/mismatch_weight"].tolist() == [2.0, 1.0]
    assert metrics["policy/mismatch_capped"].tolist() == [1.0, 0.0]
