"""What every platform answers: its providers of kernels, the sizes that compiling needs, and facts for the plan.

It knows no device: each folder beside it is one platform.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import ClassVar

import msgspec

from pelton.graph.graph import Graph, Value
from pelton.graph.kernel import CacheGroupLayout, Provider
from pelton.platforms.discover import find_provider

LINE = 64  # bytes: rows, weights and the parts of cache blocks start on cache lines
BLOCK_TOKENS = 16  # of a cache block; csrc/step.h


class PlatformFacts(msgspec.Struct, frozen=True):
    """What the plan must know of the machine.

    usable_bytes:  memory that may still be taken; usable_reason says who limits it.
    num_threads:   threads that compute best; max_threads: those that can run at once.
    levels:        instruction levels of the kernels, best first: name -> why it can't be used, None if it can.
    products_per_byte:  level -> multiplications with weights that take as long as reading a byte of them.
    attention_cost:  how much longer a multiplication takes in attention.
    """

    name: str
    usable_bytes: int
    usable_reason: str
    num_threads: int
    threads_reason: str
    max_threads: int
    levels: Mapping[str, str | None]
    products_per_byte: Mapping[str, float]
    attention_cost: float


class Platform(ABC):
    """A device, or a family of them, that programs run on. Compiles against it as a graph.kernel.Target."""

    name: ClassVar[str]

    @abstractmethod
    def facts(self) -> Mapping[str, str]:
        """What was found on this machine, for `doctor` and `explain`: words, not decisions."""

    @abstractmethod
    def providers(self) -> Sequence[Provider]:
        """The platform's own, in order of preference, unusable ones included (for their reasons)."""

    def provider(self, name: str) -> Provider:
        """One of them, or of another package. Raises UsageError if there is none of that name."""
        own = {provider.name: provider for provider in self.providers()}
        return own[name] if name in own else find_provider(name)

    @abstractmethod
    def row_bytes(self, value: Value) -> int:
        """Bytes from one row of this intermediate to the next."""

    @abstractmethod
    def packed_bytes(self, format: str, layout: str, shape: tuple[int, ...]) -> int:
        """Bytes of a weight of this stored format in one of the layouts that the platform's kernels ask for."""

    @abstractmethod
    def cache_layout(self, graph: Graph, kv_dtype: str) -> list[CacheGroupLayout]:
        """One per group of the graph's cache layers. Raises UsageError on a dtype that the cache can't hold."""


def lay_out_cache(graph: Graph, value_bytes: int) -> list[CacheGroupLayout]:
    """Blocks in which each layer of a group has its keys, then its values, each from a cache line on."""
    layouts = []
    for group in graph.cache_groups:
        offsets, end = [], 0
        for layer in group.layers:
            nbytes = whole_lines(BLOCK_TOKENS * layer.num_kv_heads * layer.head_dim * value_bytes)
            offsets.append((end, end + nbytes))
            end += 2 * nbytes
        layouts.append(CacheGroupLayout(end, tuple(offsets)))
    return layouts


def whole_lines(nbytes: int) -> int:
    return -(-nbytes // LINE) * LINE
