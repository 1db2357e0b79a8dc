"""A vLLM worker that takes new weights from a folder: ``--worker-extension-cls palestra_vllm.Extension``.

vLLM loads it by its own name, with this file's folder on ``PYTHONPATH``, in an environment without palestra.
The surprising part: on a CPU vLLM packs a tied output matrix once and does not pack it again when it reloads
weights, so tokens would be scored with the old one; it is packed again here.
"""

from __future__ import annotations

from typing import Any


class Extension:
    """Mixed into vLLM's worker."""

    model_runner: Any

    def update_weights_from(self, path: str) -> None:
        """Load the Hugging Face model in the folder ``path``, of the architecture that is being served."""
        self.model_runner.reload_weights(weights_path=path)
        model = self.model_runner.model
        if next(model.parameters()).device.type == "cpu":
            _pack_again(model)


def _pack_again(model: Any) -> None:
    from vllm.model_executor.layers.utils import dispatch_cpu_unquantized_gemm  # type: ignore[import-not-found]

    for layer in {id(each): each for each in (model.lm_head, model.model.embed_tokens)}.values():
        dispatch_cpu_unquantized_gemm(layer, remove_weight=False)
