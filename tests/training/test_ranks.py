"""Two processes take the step that one would."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import distributed, multiprocessing

from palestra.policy.nano import new_nano
from palestra.training import Learner, clipped, policy_loss
from palestra.types import Segment


def rows() -> list[Segment]:
    made = []
    for seed, length in enumerate((9, 14, 5, 30, 11)):
        generator = torch.Generator().manual_seed(seed)
        ids = torch.randint(6, 60, (length,), generator=generator).tolist()
        mask = (False, False, *[(seed + i) % 3 != 0 for i in range(length - 2)])
        logprobs = tuple(-2.0 if acted else 0.0 for acted in mask)
        advantages = tuple((1.0 if seed % 2 else -0.7) if acted else 0.0 for acted in mask)
        made.append(Segment(str(seed), tuple(ids), mask, logprobs, advantages))
    return made


def stepped(segments: list[Segment], aggregation: str) -> tuple[dict[str, float], torch.Tensor]:
    model = new_nano(64, hidden=32, feed_forward=48, heads=2, seed=5).double()
    reference = new_nano(64, hidden=32, feed_forward=48, heads=2, seed=6).double()
    learner = Learner(model, micro_batch_tokens=31, aggregation=aggregation, token_budget=40)
    metrics = learner.update(segments, policy_loss(clipped(), kl_weight=0.05), 1e-3, reference)
    return metrics, torch.cat([p.detach().flatten() for p in model.parameters()])


def work(rank: int, folder: str, aggregation: str, count: int) -> None:
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    metrics, weights = stepped(rows()[:count], aggregation)
    torch.save({"metrics": metrics, "weights": weights}, f"{folder}/{rank}.pt")
    distributed.destroy_process_group()


@pytest.mark.parametrize(("aggregation", "count"), [("token_mean", 5), ("sequence_mean", 5), ("constant", 1)])
def test_two_processes_take_the_step_that_one_takes(tmp_path: Path, aggregation: str, count: int):
    multiprocessing.spawn(work, (str(tmp_path), aggregation, count), nprocs=2)
    metrics, weights = stepped(rows()[:count], aggregation)
    for rank in range(2):
        found = torch.load(tmp_path / f"{rank}.pt")
        torch.testing.assert_close(found["weights"], weights, rtol=0, atol=1e-9)
        assert found["metrics"] == pytest.approx(metrics, rel=1e-9)


def test_a_row_without_actions_changes_nothing():
    silent = replace(rows()[0], action_mask=(False,) * 9)
    assert stepped([silent, *rows()[1:]], "sequence_mean")[0] == stepped(rows()[1:], "sequence_mean")[0]
