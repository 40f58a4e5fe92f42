"""What a program asks of a platform: providers with kernels that accept a group of nodes or decline with a reason.

It knows no kernel, no device and no instruction set by name.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import ClassVar, Protocol

import msgspec

from pelton.graph.graph import Graph, Node, Value

# Fusions in the order in which they are tried; see fuse.py.
FUSIONS = ("linear_gated", "segments", "attention_prepare", "quantise", "residual")


class CompileSettings(msgspec.Struct, frozen=True):
    """What a program is compiled for.

    formats:          parameter name → the format that the files hold it in.
    max_tokens:       rows of the largest step.
    max_context:      longest sequence that a step may have, in tokens.
    activation_mode:  how activations are quantised for integer formats: "outlier" or "exact".
    kv_dtype:         dtype of cached keys and values: "bf16", "f16" or "f32".
    providers:        names in order of preference, None for the platform's own order.
    disabled:         kernels not to use, "<provider>/<kind>".
    fusions:          which of FUSIONS to apply.
    capture:          names of values to keep for reading after a step; they are never fused away.
    """

    formats: Mapping[str, str]
    max_tokens: int
    max_context: int
    activation_mode: str = "outlier"
    kv_dtype: str = "bf16"
    providers: tuple[str, ...] | None = None
    disabled: frozenset[str] = frozenset()
    fusions: frozenset[str] = frozenset(FUSIONS)
    capture: frozenset[str] = frozenset()


class PassedOver(msgspec.Struct, frozen=True):
    """A kernel that could have been meant, and why it is not used."""

    kernel: str
    reason: str


class Group(msgspec.Struct, frozen=True, eq=False, dict=True):
    """Nodes that one kernel computes together; `kind` is an op's name or that of a fused kernel.

    outputs:  the members' outputs that something outside reads: those are written, the others exist nowhere.
    in_place: output → the input whose memory it takes over.
    notes:    fusions that were not to be, with reasons.
    """

    kind: str
    members: tuple[Node, ...]
    kernel: Kernel
    passed_over: tuple[PassedOver, ...] = ()
    in_place: Mapping[Value, Value] = msgspec.field(default_factory=dict)
    outputs: tuple[Value, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return self.members[0].name

    @cached_property
    def inputs(self) -> tuple[Value, ...]:
        """Values read from outside, each once, in order of reading."""
        inner = {value for node in self.members for value in node.outputs}
        read = (value for node in self.members for value in node.inputs)
        return tuple(dict.fromkeys(value for value in read if value not in inner))

    def of(self, op_name: str) -> list[Node]:
        """The members that are this operation."""
        return [node for node in self.members if node.op.name == op_name]

    def writes(self, value: Value) -> bool:
        return value in self.outputs


class Kernel(ABC):
    """One implementation of one kind of group."""

    kind: ClassVar[str]

    def __init__(self, provider: str) -> None:
        self.name = f"{provider}/{self.kind}"

    @abstractmethod
    def declines(self, group: Group, settings: CompileSettings) -> str | None:
        """Why this group can't be computed here, or None. Called before `outputs` are known."""

    def quantised_inputs(self, node: Node, settings: CompileSettings) -> Sequence[Value]:
        """Inputs that this kernel reads as quantised blocks."""
        return ()

    def always_writes(self, group: Group) -> Sequence[Value]:
        """Outputs that this kernel needs memory for even if nothing outside reads them."""
        return ()

    def layouts(self, group: Group) -> Iterator[tuple[Value, str]]:
        """Each parameter that the group reads, with the layout that it is to be packed in."""
        return iter(())


class Provider(ABC):
    """A set of kernels that run together on one device or instruction set.

    name: "torch", or with a level after a slash. unusable: why not on this machine, or None.
    """

    name: str
    unusable: str | None

    @abstractmethod
    def kernel(self, kind: str) -> Kernel | None: ...

    @abstractmethod
    def kinds(self) -> Sequence[str]: ...


class Packing(msgspec.Struct, frozen=True):
    """A parameter in one layout. format: as the files hold it."""

    parameter: str
    shape: tuple[int, ...]
    format: str
    layout: str
    nbytes: int


class CacheGroupLayout(msgspec.Struct, frozen=True):
    """Bytes of one block of a cache group, and where in it each layer's keys and values start."""

    block_bytes: int
    offsets: tuple[tuple[int, int], ...]


class Target(Protocol):
    """What compiling needs of a platform."""

    @property
    def name(self) -> str: ...

    def providers(self) -> Sequence[Provider]:
        """In order of preference, unusable ones included (for their reasons)."""

    def provider(self, name: str) -> Provider:
        """Raises UsageError if there is none of that name."""

    def row_bytes(self, value: Value) -> int:
        """Bytes from one row of this intermediate to the next."""

    def packed_bytes(self, format: str, layout: str, shape: tuple[int, ...]) -> int: ...

    def cache_layout(self, graph: Graph, kv_dtype: str) -> list[CacheGroupLayout]: ...
