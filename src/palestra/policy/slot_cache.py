"""A key-value cache with one slot per episode, so that turns of different lengths decode together.

It speaks the cache interface that transformers' attention and short-convolution layers call (``update``
for keys and values, ``extend_conv`` for the convolution inputs). Before each forward, ``focus`` says
which slots the batch's rows are and how many tokens each row really has; rows are right-padded and the
padding never reaches a slot's state: keys written past a row's end are overwritten by its next tokens.
"""

from __future__ import annotations

import torch
from torch import Tensor
from transformers import PreTrainedConfig

from palestra.policy.forward import ModelCache


class SlotCache(ModelCache):
    """Keys, values and convolution inputs of ``slots`` episodes of up to ``tokens`` tokens."""

    def __init__(
        self,
        config: PreTrainedConfig,
        slots: int,
        tokens: int,
        device: torch.device,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        """Allocate; memory is slots x tokens x layers x 2 x hidden numbers, touched only as it fills."""
        kinds = getattr(config, "layer_types", None) or ["full_attention"] * config.num_hidden_layers
        heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
        width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        reach = getattr(config, "conv_L_cache", 3) - 1
        self._keys: dict[int, Tensor] = {}
        self._values: dict[int, Tensor] = {}
        self._convs: dict[int, Tensor] = {}
        for layer, kind in enumerate(kinds):
            if kind == "conv":
                self._convs[layer] = torch.zeros(slots, reach, config.hidden_size, device=device, dtype=dtype)
            else:
                self._keys[layer] = torch.zeros(slots, heads, tokens, width, device=device, dtype=dtype)
                self._values[layer] = torch.zeros(slots, heads, tokens, width, device=device, dtype=dtype)
        self.lengths = torch.zeros(slots, dtype=torch.long, device=device)
        """Tokens each slot holds."""
        self._rows: Tensor | slice = slice(0, 0)
        self._starts = self._counts = self.lengths
        self._span = 0

    @property
    def size_bytes(self) -> int:
        """Bytes of all slots."""
        stores = (*self._keys.values(), *self._values.values(), *self._convs.values())
        return sum(store.numel() * store.element_size() for store in stores)

    def focus(self, rows: Tensor | slice, counts: Tensor, span: int) -> None:
        """Say what the next forward is about.

        Args:
            rows: slot of each batch row; a slice avoids copying.
            counts: (rows,) real new tokens of each row; 0 leaves the slot as it was.
            span: keys to look at: the longest slot after this forward, or more.
        """
        self._rows, self._counts, self._span = rows, counts, span
        self._starts = self.lengths[rows].clone()

    def advance(self) -> None:
        """Count the forward's tokens as read; call once after it."""
        self.lengths[self._rows] = self._starts + self._counts

    def attention_mask(self, width: int) -> Tensor:
        """(rows, 1, width, span) booleans: which keys each of ``width`` new tokens may see."""
        positions = self.positions(width)
        keys = torch.arange(self._span, device=positions.device)
        return (keys[None, None] <= positions[:, :, None])[:, None]

    def positions(self, width: int) -> Tensor:
        """(rows, width) positions of the new tokens."""
        return self._starts[:, None] + torch.arange(width, device=self._starts.device)[None]

    def update(self, keys: Tensor, values: Tensor, layer_idx: int, **_: object) -> tuple[Tensor, Tensor]:
        """Store (rows, heads, width, head size) keys and values; return all up to the span."""
        rows = self._row_indices()[:, None]
        positions = self.positions(keys.shape[2]).clamp_max(self._keys[layer_idx].shape[2] - 1)
        self._keys[layer_idx][rows, :, positions] = keys.transpose(1, 2)
        self._values[layer_idx][rows, :, positions] = values.transpose(1, 2)
        return (
            self._keys[layer_idx][self._rows, :, : self._span],
            self._values[layer_idx][self._rows, :, : self._span],
        )

    def extend_conv(self, inputs: Tensor, layer_idx: int, reach: int) -> Tensor:
        """(rows, width, hidden) inputs with the ``reach`` ones before them, keeping each row's last."""
        padded = torch.cat([self._convs[layer_idx][self._rows], inputs], dim=1)
        last = self._counts[:, None] + torch.arange(reach, device=inputs.device)[None]
        self._convs[layer_idx][self._rows] = padded.gather(
            1, last[:, :, None].expand(-1, -1, inputs.shape[2])
        )
        return padded

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Longest slot in focus; transformers asks, we pass positions ourselves."""
        return self._span

    def copy_slot(self, source: int, targets: list[int]) -> None:
        """Make ``targets`` hold what ``source`` holds."""
        length = int(self.lengths[source])
        for store in (*self._keys.values(), *self._values.values()):
            store[targets, :, :length] = store[source, :, :length].clone()
        for conv in self._convs.values():
            conv[targets] = conv[source].clone()
        self.lengths[targets] = length

    def clear_slot(self, slot: int) -> None:
        """Empty a slot."""
        self.lengths[slot] = 0
        for conv in self._convs.values():
            conv[slot] = 0.0

    def _row_indices(self) -> Tensor:
        if isinstance(self._rows, slice):
            return torch.arange(self._rows.start, self._rows.stop, device=self.lengths.device)
        return self._rows
