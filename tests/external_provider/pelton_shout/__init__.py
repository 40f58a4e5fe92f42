"""A provider as another package would bring it: `add` on tensors, which declines sums of more than 1,000 columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pelton.graph.graph import columns
from pelton.graph.kernel import CompileSettings, Group, Kernel, Provider
from pelton.graph.step import StepContext
from pelton.platforms.torch.kernels import TorchKernel


class ShoutingAdd(TorchKernel):
    """Adds, and remembers how often."""

    kind = "add"
    calls = 0

    def declines(self, group: Group, settings: CompileSettings) -> str | None:
        width = columns(group.members[0].output)
        return f"{width} columns, more than 1000" if width > 1000 else None

    def run(self, group: Group, step: StepContext, inputs: Sequence[Any]) -> tuple[Any, ...]:
        ShoutingAdd.calls += 1
        a, b = (inputs[group.inputs.index(value)] for value in group.members[0].inputs)
        return (a + b,)


class ShoutProvider(Provider):
    name = "shout"
    unusable = None

    def kernel(self, kind: str) -> Kernel | None:
        return ShoutingAdd(self.name) if kind == "add" else None

    def kinds(self) -> Sequence[str]:
        return ("add",)
