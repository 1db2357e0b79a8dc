"""Losses and the learner against brute force, to the digit."""

import math
from dataclasses import replace

import pytest
import torch

from palestra.errors import ConfigError
from palestra.policy.nano import new_nano
from palestra.training import Learner, clipped, entropy, imitation_loss, k3, policy_loss
from palestra.types import Segment


def segment(length: int, seed: int, advantage: float) -> Segment:
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(6, 60, (length,), generator=generator).tolist()
    mask = [False, False] + [(seed + i) % 3 != 0 for i in range(length - 2)]
    logprobs = [-2.0 - 0.1 * (i % 5) if m else 0.0 for i, m in enumerate(mask)]
    return Segment(
        str(seed), tuple(ids), tuple(mask), tuple(logprobs), tuple(advantage if m else 0.0 for m in mask)
    )


def learner(micro_batch_tokens: int = 10_000, temperature: float = 1.0) -> Learner:
    model = new_nano(64, hidden=32, feed_forward=48, heads=2, seed=5).double()
    return Learner(model, micro_batch_tokens=micro_batch_tokens, temperature=temperature)


def gradient(made: Learner) -> torch.Tensor:
    return torch.cat([p.grad.flatten() for p in made.model.parameters()])


def test_k3_value_and_gradient_by_hand_and_bounded():
    policy = torch.tensor([math.log(0.5)], dtype=torch.float64, requires_grad=True)
    distance = k3(policy, torch.tensor([math.log(0.9)], dtype=torch.float64))
    assert distance.item() == pytest.approx(1.8 - 1 - math.log(1.8))
    distance.sum().backward()
    assert policy.grad.item() == pytest.approx(1 - 1.8)
    assert k3(torch.tensor([-100.0]), torch.tensor([0.0])).item() == pytest.approx(math.exp(5) - 6, rel=1e-5)


def test_entropy_of_a_uniform_distribution_is_the_log_of_its_size():
    assert entropy(torch.log_softmax(torch.zeros(2, 8), -1)).tolist() == pytest.approx([math.log(8)] * 2)


def test_temperature_belongs_in_the_trainers_logprobs():
    row = Segment("t", (7, 0), (False, True), (0.0, 0.0), (0.0, 1.0))
    made = learner(temperature=0.5)
    with torch.no_grad():  # logits 2, 1, 0 for the first three ids whatever the input, the rest impossible
        made.model.lm_head = torch.nn.Linear(32, 64, bias=True).double()
        made.model.lm_head.weight.zero_()
        made.model.lm_head.bias.fill_(-1e9)
        made.model.lm_head.bias[:3] = torch.tensor([2.0, 1.0, 0.0])
    assert made.update([row], imitation_loss, 0.0)["loss/total"] == pytest.approx(0.14293, abs=1e-5)


def test_the_gradient_does_not_depend_on_micro_batches():
    rows = [
        segment(length, seed, 1.0 if seed % 2 else -0.7) for seed, length in enumerate((9, 14, 5, 30, 11))
    ]
    loss = policy_loss(clipped(), kl_weight=0.05)
    gradients, totals = [], []
    for budget in (10_000, 31, 1):
        made = learner(budget)
        reference = new_nano(64, hidden=32, feed_forward=48, heads=2, seed=6).double()
        totals.append(made.update(rows, loss, 0.0, reference)["loss/total"])
        gradients.append(gradient(made))
    for other in gradients[1:]:
        torch.testing.assert_close(other, gradients[0], rtol=1e-9, atol=1e-12)
    assert totals == pytest.approx([totals[0]] * 3, rel=1e-9)


def test_the_loss_is_the_sum_over_action_tokens_divided_by_their_count():
    rows = [segment(12, 1, 1.0), segment(7, 2, 1.0)]
    made = learner()
    reported = made.update(rows, imitation_loss, 0.0)["loss/total"]
    total, count = 0.0, 0
    for row in rows:
        with torch.no_grad():
            logits = made.model(input_ids=torch.tensor([row.ids])).logits[0]
        logprobs = torch.log_softmax(logits.float(), -1)
        for position, trained in enumerate(row.action_mask):
            if trained:
                total -= logprobs[position - 1, row.ids[position]].item()
                count += 1
    assert reported == pytest.approx(total / count, rel=1e-5)


def test_nothing_about_observed_tokens_moves_the_loss():
    row = segment(16, 1, 1.0)
    changed = replace(
        row,
        sampled_logprobs=tuple(
            v if m else 7.0 for v, m in zip(row.sampled_logprobs, row.action_mask, strict=True)
        ),
        advantages=tuple(v if m else -9.0 for v, m in zip(row.advantages, row.action_mask, strict=True)),
    )
    first, second = learner(), learner()
    loss = policy_loss(clipped(), kl_weight=0.0)
    assert first.update([row], loss, 0.0) == second.update([changed], loss, 0.0)
    assert torch.equal(gradient(first), gradient(second))


def test_the_gradient_of_a_loss_agrees_with_finite_differences():
    made, row = learner(), segment(10, 1, 1.0)
    loss = policy_loss(clipped(clip_low=0.9, clip_high=50.0), kl_weight=0.0, entropy_weight=0.01)
    made.update([row], loss, 0.0)
    weight = made.model.get_parameter("model.layers.0.feed_forward.w1.weight")
    analytic = weight.grad[3, 4].item()
    values = []
    for shift in (1e-4, -1e-4):
        with torch.no_grad():
            weight[3, 4] += shift
        values.append(made.update([row], loss, 0.0)["loss/total"])
        with torch.no_grad():
            weight[3, 4] -= shift
    assert (values[0] - values[1]) / 2e-4 == pytest.approx(analytic, rel=2e-2, abs=1e-5)


def test_a_batch_without_action_tokens_is_refused():
    row = segment(8, 1, 1.0)
    with pytest.raises(ConfigError, match="no action token"):
        learner().update([replace(row, action_mask=(False,) * 8)], imitation_loss, 1e-3)


def test_a_gradient_that_is_not_finite_leaves_the_weights_alone():
    made, row = learner(), segment(8, 1, 1.0)
    before = [p.detach().clone() for p in made.model.parameters()]
    with pytest.raises(FloatingPointError):
        made.update([replace(row, advantages=(math.nan,) * 8)], imitation_loss, 1e-3)
    assert all(torch.equal(a, b) for a, b in zip(before, made.model.parameters(), strict=True))


@pytest.mark.parametrize("shared", [1, 63, 64, 90])
def test_reading_a_shared_prefix_once_gives_the_plain_gradient(shared):
    from palestra.training import prefix

    head = tuple(torch.randint(6, 60, (shared,), generator=torch.Generator().manual_seed(9)).tolist())
    rows = []
    for seed, length in enumerate((9, 14, 30)):
        tail = segment(length, seed, 1.0)
        pad = len(head)
        rows.append(
            replace(
                tail,
                ids=head + tail.ids,
                action_mask=(False,) * pad + tail.action_mask,
                sampled_logprobs=(0.0,) * pad + tail.sampled_logprobs,
                advantages=(0.0,) * pad + tail.advantages,
            )
        )
    once, plain = learner(), learner(1)  # a budget of 1 puts every row alone, where nothing is shared
    assert once.update(rows, imitation_loss, 0.0) == pytest.approx(plain.update(rows, imitation_loss, 0.0))
    torch.testing.assert_close(gradient(once), gradient(plain), rtol=1e-6, atol=1e-9)
    assert (shared >= prefix.MIN_SHARED_TOKENS) == (
        prefix.hidden_states(once.model, torch.tensor([(*head, 7, 8), (*head, 8, 9)]), shared)[1] > 0
    )


def test_a_batch_one_version_old_is_clipped_against_what_the_sampler_recorded():
    made, row = learner(), segment(16, 1, 1.0)
    stale = replace(row, sampled_logprobs=made.logprobs(made.model, [row])[0])
    made.update([stale], imitation_loss, 3e-2)
    assert made.update([stale], policy_loss(clipped(), kl_weight=0.0), 0.0)["policy/clip_fraction"] > 0


def test_micro_batches_of_two_and_six_tokens_are_one_mean():
    rows = [
        Segment("two", (7, *[8] * 2), (False, *[True] * 2), (0.0,) * 3, (0.0, *[1.0] * 2)),
        Segment("six", (7, *[8] * 6), (False, *[True] * 6), (0.0,) * 7, (0.0, *[3.0] * 6)),
    ]

    def told(terms):
        return terms.advantages + 0 * terms.policy_logprobs, {}

    assert learner(1).update(rows, told, 0.0)["loss/total"] == pytest.approx(2.5)


def test_an_entropy_bonus_raises_the_entropy():
    made, row = learner(), segment(16, 1, 0.0)
    with torch.no_grad():
        for parameter in made.model.parameters():
            parameter.mul_(4.0)  # far from uniform, so that there is room
    loss = policy_loss(clipped(), kl_weight=0.0, entropy_weight=0.1)
    reported = [made.update([row], loss, 3e-3) for _ in range(20)]
    entropies = [metrics["policy/entropy"] for metrics in reported]
    assert reported[0]["gradient/norm"] > 0
    assert entropies[-1] > 1.1 * entropies[0]


def test_three_sampled_four_observed_and_two_sampled_tokens_are_five_everywhere():
    mask = (False, *[True] * 3, *[False] * 4, *[True] * 2)
    row = Segment("t", tuple(range(6, 16)), mask, (0.0,) * 10, tuple(float(m) for m in mask))
    made, seen = learner(), []
    made.model.get_output_embeddings().register_forward_hook(lambda *call: seen.append(len(call[2])))
    reference = new_nano(64, hidden=32, feed_forward=48, heads=2, seed=6).double()
    assert made.update([row], policy_loss(clipped()), 0.0, reference)["tokens/trained"] == 5.0
    assert seen == [5]
