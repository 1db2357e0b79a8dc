"""What a guard's action does to training."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from palestra.monitor import Change, GuardAction
from palestra.training.checkpoint import best_checkpoint, load_checkpoint
from palestra.training.loop_parts import LoopParts


def act(
    due: Mapping[GuardAction, str], update: int, rate: float, folder: Path, parts: LoopParts
) -> tuple[list[Change], Path | None]:
    """Carry out what is due, ``pause`` aside.

    Rolling back puts back the weights, the optimiser and the critic of the stage's checkpoint that was best
    on validation, and halves the rate, since the same rate may lead to the same point. Curriculum and
    controls stay where they are.

    Args:
        due: actions and their reasons.
        update: that was just made.
        rate: the learning rate now.
        folder: of the stage's checkpoints.
        parts: what is driven.

    Returns:
        The changes, and the checkpoint that was put back, if any.
    """
    changes: list[Change] = []
    restored: Path | None = None
    if "raise_entropy" in due:
        raised = parts.controls.raise_entropy(due["raise_entropy"])
        changes += [raised] if raised is not None else []
    if "roll_back" in due:
        restored = best_checkpoint(folder)
        if restored is not None:
            state = load_checkpoint(restored, parts.learner, parts.critic)
            changes.append(
                Change("weights of update", float(update), float(state["update"]), due["roll_back"])
            )
    slower = due.get("lower_rate") or due.get("roll_back")
    if slower is not None:
        changes.append(parts.controls.lower_rate(rate, slower))
    return changes, restored
