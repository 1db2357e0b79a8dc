"""One optimiser step over several processes: each takes a share of the micro-batches, all add up gradients.

Without ``torch.distributed`` there is one process and nothing happens here. Every process is given all rows,
so all agree on what each token counts, and all take the same step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

import torch
from torch import distributed, nn

Item = TypeVar("Item")


def own_share(items: Sequence[Item]) -> Sequence[Item]:
    """The items that fall to this process."""
    return items[distributed.get_rank() :: distributed.get_world_size()] if _several() else items


def add_gradients(model: nn.Module) -> None:
    """Replace each gradient by its sum over processes; one that a process lacks counts as zero."""
    if not _several():
        return
    for parameter in model.parameters():
        if parameter.requires_grad:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            distributed.all_reduce(parameter.grad)


def add_numbers(sums: Mapping[str, float]) -> dict[str, float]:
    """Sums by name over processes, of which some may have had nothing to add."""
    if not _several():
        return dict(sums)
    everyone: list[dict[str, float]] = [{} for _ in range(distributed.get_world_size())]
    distributed.all_gather_object(everyone, dict(sums))
    names = sorted({name for each in everyone for name in each})
    return {name: sum(each.get(name, 0.0) for each in everyone) for name in names}


def _several() -> bool:
    return distributed.is_available() and distributed.is_initialized() and distributed.get_world_size() > 1
