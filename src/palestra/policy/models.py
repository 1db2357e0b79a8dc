"""Weights on disk and their chat template: the shipped nano policy, SmolLM2, or any Hugging Face model.

What a name in the configuration stands for is settled here; everything else gets a folder. A folder that
training wrote and one from the hub load by the same code: the tokenizer's own chat template is used where it
has one, palestra's role tokens where it has none.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import snapshot_download
from safetensors.torch import load, save
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedConfig, PreTrainedModel

from palestra.errors import ConfigError, StoreError
from palestra.policy.adapters import plain_weights
from palestra.policy.chat import ChatTemplate, RoleTokenTemplate
from palestra.policy.cpu_kernels import use_cpu_kernels
from palestra.policy.forward_check import check_forward
from palestra.policy.model_chat import GENERATION_FILE, ModelTemplate
from palestra.policy.model_names import BUILTIN_MODELS, check_model_name, is_hub_id
from palestra.policy.nano import NANO_FOLDER
from palestra.policy.smollm2 import smollm2_folder

_FILES = ["*.json", "*.safetensors", "*.jinja", "*.txt", "*.model"]
"""What is fetched of a hub model: weights in one format, configuration and tokenizer."""
_TOKENIZER_FILES = "A Hugging Face model needs its tokenizer.json and its tokenizer_config.json."

_NAME_A_FOLDER = "Name a checkpoint of a run, or a folder of a Hugging Face causal language model."


def find_model(name: str) -> Path:
    """The folder of a model: ``nano``, ``smollm2``, a folder, or a hub id such as ``org/model``.

    Only a hub id is looked for on the network, and by the command only with ``HF_HUB_OFFLINE=0``.

    Raises:
        ConfigError: there is no such model, or it cannot be fetched.
    """
    check_model_name(name)
    if name in BUILTIN_MODELS:
        return NANO_FOLDER if name == "nano" else smollm2_folder()
    if not is_hub_id(name):
        return Path(name).expanduser()
    try:
        return Path(snapshot_download(name, allow_patterns=_FILES))
    except Exception as error:  # a dozen kinds: no such model, no network, no permission, no space
        raise ConfigError(
            f"policy.model {name!r} is no folder, and cannot be fetched from the Hugging Face hub: {error}\n"
            "The command fetches nothing unless it is told to: set HF_HUB_OFFLINE=0 for the first start."
        ) from error


def load_policy(folder: Path) -> tuple[PreTrainedModel, ChatTemplate]:
    """Model (float32, eval mode) and template from a folder of weights, config and tokenizer.

    Raises:
        StoreError: a file is missing or unreadable, or weights are.
        ConfigError: its architecture, tokenizer or chat template cannot be used.
    """
    if not (folder / "config.json").is_file() or not any(folder.glob("*.safetensors")):
        saved = sorted(folder.glob("checkpoints/*/step-*"), key=lambda path: path.stat().st_mtime)
        advice = f"Name one of this run's checkpoints, such as {saved[-1]}." if saved else _NAME_A_FOLDER
        raise StoreError(f"No model.safetensors and config.json in {folder}. {advice}")
    try:
        model, found = AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float32, output_loading_info=True
        )
    except Exception as error:  # each of the libraries raises its own kind
        raise StoreError(f"The policy in {folder} cannot be loaded: {error}") from error
    if missing := sorted(found["missing_keys"]):
        raise StoreError(
            f"The weights in {folder} lack {len(missing)} tensors that its config.json asks for, such as "
            f"{missing[0]}: they would be random. Fetch the files again."
        )
    use_cpu_kernels(model)
    model.eval()
    check_forward(model)
    template = load_template(folder)
    if template.highest_id >= model.config.vocab_size:
        raise ConfigError(
            f"The tokenizer in {folder} has ids up to {template.highest_id}, and the model only "
            f"{model.config.vocab_size} of them: they do not belong together."
        )
    return model, template


def load_template(folder: Path) -> ChatTemplate:
    """The chat template that belongs to the weights in ``folder``.

    Raises:
        StoreError: there is no tokenizer, or it cannot be read.
        ConfigError: its chat template cannot be used.
    """
    try:
        if not (folder / "tokenizer_config.json").exists():
            return RoleTokenTemplate(Tokenizer.from_file(str(folder / "tokenizer.json")))
        return ModelTemplate(AutoTokenizer.from_pretrained(folder), _listed_ends(folder))
    except ConfigError as error:
        missing = "" if (folder / "tokenizer_config.json").exists() else f" {_TOKENIZER_FILES}"
        raise ConfigError(f"The tokenizer in {folder} cannot be used. {error}{missing}") from error
    except StoreError:
        raise
    except Exception as error:  # as above
        raise StoreError(
            f"The tokenizer in {folder} cannot be loaded: {error}. {_TOKENIZER_FILES}"
        ) from error


def _listed_ends(folder: Path) -> list[int]:
    """The ids that end what the model generates, as its folder lists them: Llama 3 has three.

    Raises:
        StoreError: the file that lists them is no JSON object.
    """
    for path in (folder / GENERATION_FILE, folder / "config.json"):
        try:
            listed = (
                json.loads(path.read_text(encoding="utf-8")).get("eos_token_id") if path.exists() else None
            )
        except (OSError, ValueError, AttributeError) as error:
            raise StoreError(f"{path} cannot be read: {error}") from error
        if listed is not None:
            several = listed if isinstance(listed, list) else [listed]
            return [each for each in several if isinstance(each, int)]
    return []


def save_policy(folder: Path, model: PreTrainedModel, template: ChatTemplate) -> None:
    """Write weights, config and tokenizer into an existing folder, as ``load_policy`` reads them."""
    (folder / "model.safetensors").write_bytes(weights_to_bytes(model))
    model.config.save_pretrained(folder)
    template.save(folder)


def weights_to_bytes(model: PreTrainedModel) -> bytes:
    """The weights as safetensors, an adapter merged into them and a tied output matrix left out."""
    tied = model.config.tie_word_embeddings
    weights = {
        name: value.contiguous()
        for name, value in plain_weights(model).items()
        if not (tied and name.startswith("lm_head"))
    }
    data: bytes = save(weights, metadata={"format": "pt"})
    return data


def model_from_bytes(config: PreTrainedConfig, weights: bytes) -> PreTrainedModel:
    """The model (float32, eval mode) that ``weights_to_bytes`` was given."""
    model: PreTrainedModel = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    model.load_state_dict(load(weights), strict=not config.tie_word_embeddings)
    use_cpu_kernels(model)
    model.eval()
    return model


def weight_count(model: Any) -> int:
    """Parameters of a model."""
    return sum(parameter.numel() for parameter in model.parameters())
