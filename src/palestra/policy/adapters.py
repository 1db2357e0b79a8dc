"""LoRA: a small adapter is trained beside frozen weights (Hu et al. 2021), by peft's layers.

The model under an adapter is the same model with the adapter switched off, so a reference policy costs no
second copy. The surprising choice: peft is loaded when an adapter is first asked for, because that takes two
seconds.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from palestra.errors import ConfigError

ADAPTER_FOLDER = "adapter"
"""In a checkpoint: the adapter alone, as peft and servers load it."""
_FILE = "adapter_model.safetensors"
_NAME = "default"
_PREFIX = "base_model.model."
"""What peft puts before a weight's name in its files."""


@dataclass(frozen=True)
class LoraSettings:
    """The size and place of an adapter."""

    rank: int
    alpha: float
    """What the adapter adds counts ``alpha / rank`` times."""
    targets: tuple[str, ...] = ()
    """Names of linear layers, such as ``q_proj``; empty for all but the output."""


@dataclass(frozen=True)
class WithoutAdapter:
    """Stands for ``model`` with its adapter switched off, where a frozen model is asked for."""

    model: Any


def add_adapter(model: Any, settings: LoraSettings, seed: int) -> None:
    """Freeze ``model`` and put a fresh adapter into it, in place; what it computes does not change yet.

    Raises:
        ConfigError: no layer is called as a target, or one cannot have an adapter.
    """
    _check_targets(model, settings.targets)
    peft = import_module("peft")
    config = peft.LoraConfig(
        r=settings.rank,
        lora_alpha=settings.alpha,
        target_modules=list(settings.targets) or "all-linear",
    )
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            peft.inject_adapter_in_model(config, model, adapter_name=_NAME)
    except ValueError as error:
        raise ConfigError(f"policy.lora does not fit the model: {error}") from error
    odd = [name for name, layer in _adapted(model) if not hasattr(layer.base_layer, "weight")]
    if odd:
        raise ConfigError(
            f"policy.lora cannot adapt {odd[0]}, which is no linear layer: name others in "
            f"policy.lora.targets, of {', '.join(_linear_layers(model))}."
        )


def _check_targets(model: Any, targets: Sequence[str]) -> None:
    known = _linear_layers(model)
    wrong = [name for name in targets if name not in known]
    if wrong:
        raise ConfigError(
            f"policy.lora.targets names {', '.join(wrong)}, which is no linear layer below the output. There "
            f"are {', '.join(known)}."
        )


def _linear_layers(model: Any) -> list[str]:
    """The names of linear layers, but for the output, whose matrix is often that of the embeddings too."""
    output = model.get_output_embeddings()
    linear = (
        n for n, each in model.named_modules() if isinstance(each, torch.nn.Linear) and each is not output
    )
    return sorted({name.rpartition(".")[2] for name in linear})


def has_adapter(model: Any) -> bool:
    """Whether ``model`` was given an adapter."""
    return any(True for _ in _adapted(model))


@contextmanager
def frozen(model: Any) -> Iterator[Any]:
    """A model, or the model that ``WithoutAdapter`` stands for with its adapter off meanwhile."""
    if not isinstance(model, WithoutAdapter):
        yield model
        return
    layers = [layer for _, layer in _adapted(model.model)]
    for layer in layers:
        layer.enable_adapters(enabled=False)
    try:
        yield model.model
    finally:
        for layer in layers:
            layer.enable_adapters(enabled=True)


def plain_weights(model: Any) -> dict[str, Tensor]:
    """The state of ``model`` with what an adapter adds added to it, as a model without one loads it."""
    weights = {
        name.replace(".base_layer.", "."): value
        for name, value in model.state_dict().items()
        if not _is_adapter(name)
    }
    for name, layer in _adapted(model):
        with torch.no_grad():
            weights[f"{name}.weight"] = layer.base_layer.weight + layer.get_delta_weight(_NAME)
    return weights


def trained_state(model: Any) -> dict[str, Tensor]:
    """What training changes: the tensors of the adapter if there is one, else the whole state."""
    state: dict[str, Tensor] = model.state_dict()
    return {name: value for name, value in state.items() if _is_adapter(name)} or state


def load_trained_state(model: Any, state: Mapping[str, Tensor]) -> None:
    """Put in what ``trained_state`` gave.

    Raises:
        RuntimeError: it is that of another model or adapter.
    """
    missing, unexpected = model.load_state_dict(state, strict=False)
    if unexpected or set(missing) & set(trained_state(model)):
        raise RuntimeError(f"weights do not fit: missing {missing}, unexpected {unexpected}")


def save_adapter(folder: Path, model: Any) -> None:
    """Write the adapter of ``model`` as peft's files into an existing folder."""
    model.peft_config[_NAME].save_pretrained(folder)
    tensors = {
        _PREFIX + name.replace(f".{_NAME}.", "."): value.contiguous()
        for name, value in trained_state(model).items()
    }
    save_file(tensors, folder / _FILE)


def load_adapter(folder: Path, model: Any) -> None:
    """Put the adapter in ``folder`` into ``model``, which has one of the same shape.

    Raises:
        OSError: there is no such file.
        RuntimeError: it is that of another model or adapter.
    """
    found = load_file(folder / _FILE)
    names = {_PREFIX + name.replace(f".{_NAME}.", "."): name for name in trained_state(model)}
    load_trained_state(model, {names.get(name, name): value for name, value in found.items()})


def _is_adapter(name: str) -> bool:
    return ".lora_" in name


def _adapted(model: Any) -> Iterator[tuple[str, Any]]:
    """The layers with an adapter, and their names."""
    return ((name, module) for name, module in model.named_modules() if hasattr(module, "lora_A"))
