"""The paged cache on tensors: blocks of 16 tokens in one pool of bytes, addressed as the engine addresses them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from pelton.graph.graph import CacheLayer, StateLayer
from pelton.graph.kernel import CacheGroupLayout
from pelton.platforms.platform import BLOCK_TOKENS, LINE

OFFSET_UNIT = LINE  # what block tables count in
DTYPES = {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32, "f64": torch.float64}


class PagedCache:
    """A pool and, per step, the sequences' block tables. In a block each layer has its keys, then its values, as
    [16, kv_heads, head_dim]."""

    def __init__(self, layout: Sequence[CacheGroupLayout], kv_dtype: str, pool_bytes: int) -> None:
        self._layout = layout
        self._dtype = DTYPES[kv_dtype]
        self._pool = torch.zeros(pool_bytes, dtype=torch.uint8)
        self._tables: Sequence[Sequence[Sequence[int]]] = ()

    def set_tables(self, tables: Sequence[Sequence[Sequence[int]]]) -> None:
        """tables: per sequence and group, the blocks' offsets in units of 64 bytes."""
        self._tables = tables

    def write(self, layer: CacheLayer, sequence: int, context: int, keys: Any, values: Any) -> None:
        for row in range(keys.shape[0]):
            block, token = divmod(context + row, BLOCK_TOKENS)
            for view, source in zip(self._views(layer, sequence, block), (keys, values), strict=True):
                view[token] = source[row].to(self._dtype)

    def read(self, layer: CacheLayer, sequence: int, num_tokens: int) -> tuple[Any, Any]:
        blocks = [self._views(layer, sequence, block) for block in range(-(-num_tokens // BLOCK_TOKENS))]
        keys, values = (torch.cat(parts)[:num_tokens] for parts in zip(*blocks, strict=True))
        return keys, values

    def read_state(self, layer: StateLayer, sequence: int) -> Any:
        return self._state(layer, sequence, layer.layer).clone()

    def write_state(self, layer: StateLayer, sequence: int, state: Any) -> None:
        num_layers = self._layout[layer.group].num_states
        self._state(layer, sequence, num_layers + layer.layer).copy_(state)

    def _state(self, layer: StateLayer, sequence: int, entry: int) -> Any:
        """The block of one entry of a state group's table: first what each layer reads, then what it writes."""
        start = self._tables[sequence][layer.group][entry] * OFFSET_UNIT
        return self._pool[start : start + 4 * layer.num_floats].view(torch.float32)

    def _views(self, layer: CacheLayer, sequence: int, block: int) -> tuple[Any, Any]:
        """Keys and values of one layer in one block. A block that a window gave back (`NO_BLOCK`) reads as zeros."""
        shape = (BLOCK_TOKENS, layer.num_kv_heads, layer.head_dim)
        offset = self._tables[sequence][layer.group][block]
        if offset == NO_BLOCK:
            return torch.zeros(shape, dtype=self._dtype), torch.zeros(shape, dtype=self._dtype)
        nbytes = BLOCK_TOKENS * layer.num_kv_heads * layer.head_dim * self._dtype.itemsize
        starts = (offset * OFFSET_UNIT + start for start in self._layout[layer.group].offsets[layer.layer])
        keys, values = (self._pool[start : start + nbytes].view(self._dtype).view(shape) for start in starts)
        return keys, values


NO_BLOCK = 0xFFFFFFFF  # csrc/step.h
