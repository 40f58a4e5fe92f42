"""Kernels on tensors: what a torch provider consists of, and the provider that runs every op's reference."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any

import torch

import pelton.graph.ops  # noqa: F401  registers every op
from pelton.graph.graph import Parameter, Value
from pelton.graph.kernel import CompileSettings, Group, Kernel, Provider
from pelton.graph.op import OPS
from pelton.graph.step import StepContext

DENSE = "dense"  # the values as the format defines them, in the platform's dtype


class TorchKernel(Kernel):
    """A kernel that takes tensors and returns tensors. Providers of other packages derive from it."""

    @abstractmethod
    def run(self, group: Group, step: StepContext, inputs: Sequence[Any]) -> tuple[Any, ...]:
        """inputs: a tensor per value of `group.inputs`. Returns one per output of the last member."""

    def layouts(self, group: Group) -> Iterator[tuple[Value, str]]:
        for value in group.inputs:
            if isinstance(value, Parameter):
                yield value, DENSE


class ReferenceKernel(TorchKernel):
    """Any operation, by its reference, in the dtype of its inputs."""

    def __init__(self, provider: str, kind: str) -> None:
        self.kind = kind  # type: ignore[misc]  # one class for all kinds
        super().__init__(provider)

    def declines(self, group: Group, settings: CompileSettings) -> str | None:
        return "a reference is one operation" if len(group.members) > 1 else None

    def run(self, group: Group, step: StepContext, inputs: Sequence[Any]) -> tuple[Any, ...]:
        (node,) = group.members
        given = dict(zip(group.inputs, inputs, strict=True))
        outputs = node.op.reference(torch, step, *(given[value] for value in node.inputs), **node.attributes)
        assert isinstance(outputs, tuple), f"the reference of {node.op.name} returns no tuple"
        return outputs


class ReferenceProvider(Provider):
    """No fused kernels: one node at a time."""

    name = "torch"
    unusable = None

    def __init__(self) -> None:
        self._kernels = {kind: ReferenceKernel(self.name, kind) for kind in OPS}

    def kernel(self, kind: str) -> Kernel | None:
        return self._kernels.get(kind)

    def kinds(self) -> Sequence[str]:
        return tuple(self._kernels)
