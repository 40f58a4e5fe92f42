"""Runs a compiled program on tensors, one group after the other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from pelton.graph.graph import Value
from pelton.graph.program import Program
from pelton.graph.step import SequenceRows, StepContext
from pelton.platforms.torch.cache import PagedCache
from pelton.platforms.torch.kernels import TorchKernel


class TorchProgram:
    """parameters: by name, in the platform's dtype; logical shapes."""

    def __init__(self, program: Program, parameters: Mapping[str, Any], pool_bytes: int) -> None:
        self.program = program
        self._parameters: dict[Value, Any] = {
            program.graph.parameters[name]: tensor for name, tensor in parameters.items()
        }
        self._cache = PagedCache(program.cache_layout, program.settings.kv_dtype, pool_bytes)

    def run(
        self,
        token_ids: Sequence[int],
        positions: Sequence[int],
        sequences: Sequence[tuple[int, int, int, Sequence[Sequence[int]]]],
        logit_rows: Sequence[int],
    ) -> dict[str, Any]:
        """One step, given as to `_native.StepInput`. Returns the captured values and the graph's outputs, by name."""
        step = StepContext(tuple(SequenceRows(*rows) for *rows, _ in sequences), self._cache)
        self._cache.set_tables([tables for *_, tables in sequences])
        given = {"token_ids": token_ids, "positions": positions, "logit_rows": logit_rows}
        values = dict(self._parameters)
        for name, value in self.program.graph.inputs.items():
            values[value] = torch.tensor(given[name], dtype=torch.int64)
        for group in self.program.groups:
            kernel = group.kernel
            assert isinstance(kernel, TorchKernel), f"{kernel.name} is not a kernel of this platform"
            outputs = kernel.run(group, step, [values[value] for value in group.inputs])
            values.update(zip(group.members[-1].outputs, outputs, strict=True))
        kept = {*self.program.settings.capture, *(value.name for value in self.program.graph.outputs.values())}
        return {value.name: tensor for value, tensor in values.items() if value.name in kept}
