"""The torch platform's sizes and providers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import ClassVar

import torch

from pelton.errors import UsageError
from pelton.graph.graph import Graph, Value, columns
from pelton.graph.kernel import CacheGroupLayout, Provider
from pelton.platforms.platform import Platform, lay_out_cache, whole_lines
from pelton.platforms.torch.cache import DTYPES
from pelton.platforms.torch.kernels import ReferenceProvider


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
        return whole_lines(columns(value) * self.dtype.itemsize)

    def packed_bytes(self, format: str, layout: str, shape: tuple[int, ...]) -> int:
        return math.prod(shape) * self.dtype.itemsize

    def cache_layout(self, graph: Graph, kv_dtype: str) -> list[CacheGroupLayout]:
        if kv_dtype not in DTYPES:
            raise UsageError(f"the cache can't hold `{kv_dtype}`", f"it can hold: {', '.join(DTYPES)}")
        return lay_out_cache(graph, DTYPES[kv_dtype].itemsize)
