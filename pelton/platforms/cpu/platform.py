"""The CPU as a platform: one provider per instruction-set level, and the sizes of what its kernels read and write."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import ClassVar

from pelton import _native
from pelton.errors import UsageError
from pelton.graph.graph import Graph, Value, columns
from pelton.graph.kernel import CacheGroupLayout, Kernel, Provider
from pelton.graph.ops.quantise import BLOCKS, GROUP
from pelton.graph.program import Program
from pelton.platforms.cpu.kernels import KERNELS, CpuKernel
from pelton.platforms.cpu.memory import usable_memory
from pelton.platforms.cpu.program import workspace_bytes
from pelton.platforms.cpu.recurrent import GatedDeltaKernel
from pelton.platforms.cpu.topology import usable_cores
from pelton.platforms.platform import Platform, PlatformFacts, lay_out_cache, whole_lines

BLOCK_BYTES = {BLOCKS["outlier"]: 64, BLOCKS["exact"]: 128}  # csrc/kernels/activation_blocks.h
KV_BYTES = {"bf16": 2, "f16": 2, "f32": 4}
# Multiplications of a prompt's products in the time that reads a byte of weights, and how much longer one takes in
# attention: from decodes of SmolLM2 (Q4_1) on x86 alone and beside prompts of up to 4,000 tokens, a few rows at a time.
# Of aarch64 no more is known than which x86 level does as much per instruction. They decide how far a prefill
# gives way to decodes; no result depends on them.
PRODUCTS_PER_BYTE = {"generic": 1.0, "avx2": 3.0, "avx512": 5.0, "avx512vnni": 8.0, "neon": 2.0, "dotprod": 3.0}
ATTENTION_COST = 2.5
ALL_KERNELS: tuple[type[CpuKernel], ...] = (*KERNELS, GatedDeltaKernel)


class CpuProvider(Provider):
    """All kernels of one level."""

    def __init__(self, level: str, unusable: str | None) -> None:
        self.name = f"cpu/{level}"
        self.unusable = unusable
        native = frozenset(_native.kernels(level))
        self._kernels = {kernel.kind: kernel(level, native) for kernel in ALL_KERNELS}

    def kernel(self, kind: str) -> Kernel | None:
        return self._kernels.get(kind)

    def kinds(self) -> Sequence[str]:
        return tuple(self._kernels)


class CpuPlatform(Platform):
    name: ClassVar[str] = "cpu"

    def __init__(self) -> None:
        levels = reversed(_native.levels())  # best first
        self._providers = [CpuProvider(level, None if is_usable else reason) for level, is_usable, reason in levels]

    def facts(self) -> Mapping[str, str]:
        features = [name for name, is_there in _native.cpu_features().items() if is_there]
        return {"features": ", ".join(features), "levels": ", ".join(level for level, _, _ in _native.levels())}

    def providers(self) -> Sequence[Provider]:
        return self._providers

    def provider_order(self, level: str | None, names: tuple[str, ...] | None) -> tuple[str, ...] | None:
        """The providers to compile with: as asked, or from the level asked for downwards; None for the own order.

        A level that is not there is left for the plan to refuse, which knows what to say.
        """
        own = [provider.name for provider in self._providers]
        if names is not None or level is None or f"cpu/{level}" not in own:
            return names
        return tuple(own[own.index(f"cpu/{level}") :])

    def plan_facts(self) -> PlatformFacts:
        """Asks the machine: memory, cores, levels."""
        memory, cores = usable_memory(), usable_cores()
        return PlatformFacts(
            name=self.name,
            usable_bytes=memory.nbytes,
            usable_reason=memory.reason,
            num_threads=cores.num_threads,
            threads_reason=cores.reason,
            max_threads=cores.logical,
            products_per_byte=PRODUCTS_PER_BYTE,
            attention_cost=ATTENTION_COST,
            levels={provider.name.removeprefix("cpu/"): provider.unusable for provider in self._providers},
        )

    def workspace_bytes(self, program: Program, num_threads: int, max_tokens: int | None = None) -> int:
        """What the program takes beyond its arena and its weights; max_tokens: if it were compiled for so many."""
        return workspace_bytes(program, num_threads, max_tokens)

    def row_bytes(self, value: Value) -> int:
        if value.dtype in BLOCK_BYTES:
            return columns(value) // GROUP * BLOCK_BYTES[value.dtype]
        return whole_lines(4 * columns(value))

    def packed_bytes(self, format: str, layout: str, shape: tuple[int, ...]) -> int:
        if layout == "vector":
            return whole_lines(4 * math.prod(shape))
        n, k = shape
        return whole_lines(_native.packed_bytes(format, n, k))

    def cache_layout(self, graph: Graph, kv_dtype: str) -> list[CacheGroupLayout]:
        if kv_dtype not in KV_BYTES:
            raise UsageError(f"the cache can't hold `{kv_dtype}`", f"it can hold: {', '.join(KV_BYTES)}")
        return lay_out_cache(graph, KV_BYTES[kv_dtype])
