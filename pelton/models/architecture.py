"""What a model file gives: a spec from a checkpoint's header, the names of its tensors, and the graph.

A new model is one file with one subclass of Architecture, one line in registry.py, and a test case.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Protocol

import msgspec

from pelton.graph.graph import Graph
from pelton.models.spec import ModelSpec


class CheckpointHeader(Protocol):
    """What a model file may know of a checkpoint: names, shapes and metadata, and the bytes of small vectors."""

    @property
    def kind(self) -> str:
        """`gguf` or `safetensors`."""

    @property
    def metadata(self) -> Mapping[str, Any]:
        """GGUF's key-value pairs, or config.json."""

    @property
    def tensors(self) -> Mapping[str, Any]:
        """TensorInfo by name: `.shape` in [out, in] order, `.format`."""

    def read_vector(self, name: str) -> Sequence[float]: ...


class Binding(msgspec.Struct, frozen=True):
    """Fills one parameter from one tensor.

    row_order:  parameter row i is tensor row row_order[i].
    add_one:    the tensor holds w where the parameter is 1 + w.
    """

    parameter: str
    tensor: str
    row_order: tuple[int, ...] | None = None
    add_one: bool = False


class Ignored(msgspec.Struct, frozen=True):
    """Tensors (by a name pattern with `*`) that this model leaves in the file, and why. `explain` shows it."""

    pattern: str
    reason: str


class Architecture(ABC):
    """One model family.

    name:          the registry's name, a module of this package.
    config_names:  entries of config.json's `architectures`.
    gguf_names:    values of GGUF's `general.architecture`.
    """

    name: ClassVar[str]
    config_names: ClassVar[tuple[str, ...]]
    gguf_names: ClassVar[tuple[str, ...]]

    @abstractmethod
    def spec(self, checkpoint: CheckpointHeader) -> ModelSpec:
        """Raises CheckpointError or UnsupportedModelError on what the header can't mean."""

    @abstractmethod
    def bindings(self, spec: ModelSpec, kind: str) -> list[Binding]: ...

    @abstractmethod
    def ignored(self, spec: ModelSpec, kind: str) -> list[Ignored]: ...

    @abstractmethod
    def build(self, spec: ModelSpec, graph: Graph) -> None:
        """Records the model: inputs `token_ids`, `positions`, `logit_rows`; outputs `hidden` and `logits`."""
