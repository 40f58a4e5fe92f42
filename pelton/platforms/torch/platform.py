"""The torch platform's sizes and providers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import ClassVar

import torch

from pelton.errors import UsageError
from pelton.graph.graph import Graph, Value, columns
from pelton.graph.kernel import CacheGroupLayout, Provider
from pelton.platforms.platform import Platform
from pelton.platforms.torch.cache import BLOCK_TOKENS, DTYPES
from pelton.platforms.torch.kernels import ReferenceProvider

LINE = 64  # bytes: block offsets are counted in them


class TorchPlatform(Platform):
    """dtype: of parameters and intermediates, float32 or float64."""

    name: ClassVar[str] = "torch"

    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        self.dtype = dtype
        self._providers = (ReferenceProvider(),)

    def facts(self) -> Mapping[str, str]:
        return {"torch": torch.__version__, "dtype": str(self.dtype)}

    def providers(self) -> Sequence[Provider]:
        return self._providers

    def row_bytes(self, value: Value) -> int:
        return _whole_lines(columns(value) * self.dtype.itemsize)

    def packed_bytes(self, format: str, layout: str, shape: tuple[int, ...]) -> int:
        return math.prod(shape) * self.dtype.itemsize

    def cache_layout(self, graph: Graph, kv_dtype: str) -> list[CacheGroupLayout]:
        if kv_dtype not in DTYPES:
            raise UsageError(f"the cache can't hold `{kv_dtype}`", f"it can hold: {', '.join(DTYPES)}")
        layouts = []
        for group in graph.cache_groups:
            offsets, end = [], 0
            for layer in group.layers:
                size = BLOCK_TOKENS * layer.num_kv_heads * layer.head_dim * DTYPES[kv_dtype].itemsize
                offsets.append((end, end + _whole_lines(size)))
                end += 2 * _whole_lines(size)
            layouts.append(CacheGroupLayout(end, tuple(offsets)))
        return layouts


def _whole_lines(nbytes: int) -> int:
    return -(-nbytes // LINE) * LINE
