"""What a model may be called in a configuration; nothing is loaded here."""

from __future__ import annotations

from pathlib import Path

from palestra.errors import ConfigError

BUILTIN_MODELS = ("nano", "smollm2")
"""The shipped policy of a million parameters, and SmolLM2-135M-Instruct from a package."""


def is_hub_id(name: str) -> bool:
    """Whether the name can only be that of a model on the Hugging Face hub, ``owner/model``."""
    return (
        name.count("/") == 1 and name[0] not in "./~" and not name.endswith("/") and not Path(name).exists()
    )


def check_model_name(name: str) -> None:
    """Refuse a name behind which no model can be.

    Raises:
        ConfigError: it is no builtin model, no folder with weights, and no hub id.
    """
    if name in BUILTIN_MODELS or is_hub_id(name):
        return
    folder = Path(name).expanduser()
    if not (folder / "config.json").is_file() or not any(folder.glob("*.safetensors")):
        raise ConfigError(
            f"policy.model is {name!r}, where there is no config.json with a model.safetensors. Name "
            f"{', '.join(BUILTIN_MODELS)}, a folder that training wrote or that holds a Hugging Face causal "
            "language model, or a model of its hub as owner/model."
        )
