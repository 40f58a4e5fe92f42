"""What every platform answers: its providers of kernels, and the sizes that compiling a program needs.

It knows no device: each folder beside it is one platform.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import ClassVar

from pelton.graph.graph import Graph, Value
from pelton.graph.kernel import CacheGroupLayout, Provider
from pelton.platforms.discover import find_provider


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
