"""Checkpoints: everything from which training goes on as if it had never stopped.

A folder holds the weights, the adapter if one is trained, the optimiser's state and the critic, if any, as
safetensors and the rest (update count, curriculum, policy version) as JSON; nothing is pickled. It is filled
aside and renamed, so a folder that exists was written whole; ``hashes.json`` tells whether it still is. No
generator state is needed: every random choice is a function of the run's seed and the update's number.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from palestra.errors import StoreError
from palestra.policy.adapters import ADAPTER_FOLDER, has_adapter, load_adapter, save_adapter
from palestra.policy.models import save_policy
from palestra.store import write_folder
from palestra.training.critic import Critic
from palestra.training.learner import Learner

_UNREADABLE = (OSError, ValueError, KeyError, IndexError, SafetensorError, RuntimeError)
CRITIC_FILE = "critic.safetensors"
"""Beside the policy's weights, of algorithms that have a critic."""
HASHES_FILE = "hashes.json"
"""The SHA-256 of every other file."""


def save_checkpoint(
    folder: Path, learner: Learner, template: Any, state: Mapping[str, Any], critic: Critic | None = None
) -> None:
    """Write weights, optimiser, critic and ``state`` (plain JSON values) as ``folder``, whole or not at all.

    Raises:
        StoreError: the folder could not be written; an earlier one is intact.
    """

    def fill(target: Path) -> None:
        save_policy(target, learner.model, template)
        if has_adapter(learner.model):
            (target / ADAPTER_FOLDER).mkdir()
            save_adapter(target / ADAPTER_FOLDER, learner.model)
        save_file(_optimizer_tensors(learner), target / "optimizer.safetensors")
        if critic is not None:
            save_file(critic.tensors(), target / CRITIC_FILE)
        (target / "state.json").write_text(json.dumps(state), encoding="utf-8")
        files = sorted(path for path in target.rglob("*") if path.is_file())
        hashes = {path.relative_to(target).as_posix(): _sha256(path) for path in files}
        (target / HASHES_FILE).write_text(json.dumps(hashes, indent=1), encoding="utf-8")

    try:
        write_folder(folder, fill)
    except SafetensorError as error:
        raise StoreError(f"checkpoint {folder} cannot be written: {error}") from error


def load_checkpoint(folder: Path, learner: Learner, critic: Critic | None = None) -> dict[str, Any]:
    """Put a checkpoint's weights and optimiser into ``learner``, and its critic into ``critic``; its state.

    Raises:
        StoreError: the folder is missing, torn, changed since it was written, or of another model.
    """
    verify_checkpoint(folder)
    state = checkpoint_state(folder)
    try:
        tensors = load_file(folder / "optimizer.safetensors")
        kept = None if critic is None else load_file(folder / CRITIC_FILE)
        _load_weights(learner.model, folder)
        _restore_optimizer(learner, tensors)
        if critic is not None and kept is not None:
            critic.load(kept)
    except _UNREADABLE as error:
        raise StoreError(f"checkpoint {folder} cannot be loaded: {error}") from error
    return state


def load_critic(folder: Path, critic: Critic) -> None:
    """Put a checkpoint's critic into ``critic``.

    Raises:
        StoreError: it is missing, torn, changed since it was written, or of another model.
    """
    verify_checkpoint(folder, CRITIC_FILE)
    try:
        critic.load(load_file(folder / CRITIC_FILE))
    except _UNREADABLE as error:
        raise StoreError(f"the critic in {folder} cannot be loaded: {error}") from error


def verify_checkpoint(folder: Path, *names: str) -> None:
    """Compare the files of a checkpoint, or those called ``names``, with the hashes they were written with.

    Raises:
        StoreError: one is missing or has changed; it is named.
    """
    try:
        hashes = json.loads((folder / HASHES_FILE).read_text(encoding="utf-8"))
        found = {name: (_sha256(folder / name), hashes.get(name)) for name in names or hashes}
    except FileNotFoundError as error:
        raise StoreError(
            f"checkpoint {folder} cannot be loaded: no {Path(error.filename).name}. It is damaged, or "
            "of an earlier palestra, whose runs can be looked at and not gone on with"
        ) from error
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise StoreError(f"checkpoint {folder} cannot be loaded: {error}") from error
    changed = [name for name, (now, then) in found.items() if now != then]
    if changed:
        raise StoreError(
            f"checkpoint {folder} cannot be loaded: {', '.join(changed)} changed since it was written"
        )


def load_newest(folder: Path, learner: Learner, critic: Critic | None = None) -> dict[str, Any] | None:
    """Load the newest checkpoint that is whole, warning of any that is not; None if there is none."""
    for path in checkpoints(folder):
        try:
            return load_checkpoint(path, learner, critic)
        except StoreError as error:
            warnings.warn(f"skipped: {error}", stacklevel=2)
    return None


def checkpoints(folder: Path) -> list[Path]:
    """The checkpoints ``step-N`` of a stage, newest first."""
    found = [path for path in folder.glob("step-*") if path.name.removeprefix("step-").isdigit()]
    return sorted(found, key=lambda path: int(path.name.removeprefix("step-")), reverse=True)


def checkpoint_state(path: Path) -> dict[str, Any]:
    """What a checkpoint says of itself: ``update``, ``version``, ``validation`` ...

    Raises:
        StoreError: it cannot be read.
    """
    try:
        state: dict[str, Any] = json.loads((path / "state.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise StoreError(f"checkpoint {path} cannot be loaded: {error}") from error
    return state


def newest_state(folder: Path) -> dict[str, Any] | None:
    """What the newest whole checkpoint of a stage says of itself; None if there is none."""
    for path in checkpoints(folder):
        try:
            verify_checkpoint(path, "state.json")
            return checkpoint_state(path)
        except StoreError as error:
            warnings.warn(f"skipped: {error}", stacklevel=2)
    return None


def best_checkpoint(folder: Path) -> Path | None:
    """The checkpoint of a stage that was best on validation, the later of equals; None if there is none.

    One that is not whole is named in a warning and skipped.
    """
    readable = [path for path in checkpoints(folder) if _is_whole(path, "state.json")]
    ranked = sorted(readable, key=validation_scores, reverse=True)
    return next((path for path in ranked if _is_whole(path)), None)


def scores_in(metrics: Mapping[str, float]) -> list[float]:
    """Success, then reward, of a validation: what a checkpoint is ranked by. Empty if there was none."""
    return [metrics[name] for name in ("validation/success", "validation/reward") if name in metrics]


def validation_scores(path: Path) -> tuple[float, ...]:
    """Success, then reward, on validation tasks as recorded; empty if the checkpoint is torn or was not.

    Success on a few dozen tasks often ties; the reward then tells who was tidier.
    """
    try:
        return tuple(checkpoint_state(path).get("validation") or ())
    except StoreError:
        return ()


def keep_checkpoints(folder: Path, newest: int) -> None:
    """Delete all checkpoints of a stage but its best and its ``newest`` ones."""
    best = max(checkpoints(folder), key=validation_scores, default=None)
    for path in checkpoints(folder)[newest:]:
        if path != best:
            shutil.rmtree(path)


def _is_whole(path: Path, *names: str) -> bool:
    """Whether a checkpoint, or those files of it, are as they were written; if not, it says so."""
    try:
        verify_checkpoint(path, *names)
    except StoreError as error:
        warnings.warn(f"skipped: {error}", stacklevel=3)
        return False
    return True


def _sha256(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _load_weights(model: Any, folder: Path) -> None:
    """All weights, or of a model with an adapter the adapter: what is under it is the stage's start."""
    if has_adapter(model):
        load_adapter(folder / ADAPTER_FOLDER, model)
        return
    weights = load_file(folder / "model.safetensors")
    missing, unexpected = model.load_state_dict(weights, strict=False)
    tied = {name for name in missing if name.startswith("lm_head") and model.config.tie_word_embeddings}
    if set(missing) - tied or unexpected:
        raise RuntimeError(
            f"weights do not fit: missing {sorted(set(missing) - tied)}, unexpected {unexpected}"
        )
    model.tie_weights()


def _optimizer_tensors(learner: Learner) -> dict[str, Tensor]:
    """Optimiser state by optimiser and parameter index: ``0.3.exp_avg``."""
    return {
        f"{number}.{index}.{name}": value.detach().clone().contiguous()
        for number, optimizer in enumerate(learner.optimizers)
        for index, values in optimizer.state_dict()["state"].items()
        for name, value in values.items()
    }


def _restore_optimizer(learner: Learner, tensors: Mapping[str, Tensor]) -> None:
    states: list[dict[int, dict[str, Tensor]]] = [{} for _ in learner.optimizers]
    for key, value in tensors.items():
        number, index, name = key.split(".", 2)
        states[int(number)].setdefault(int(index), {})[name] = value
    for optimizer, state in zip(learner.optimizers, states, strict=True):
        groups = optimizer.state_dict()["param_groups"]
        optimizer.load_state_dict({"state": state, "param_groups": groups})
