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
    """Fills one parameter from one tensor, or some rows of one from some rows of the other.

    row_order:      parameter row i is tensor row row_order[i]; it may leave out rows that other bindings read.
    add_one:        the tensor holds w where the parameter is 1 + w. Vectors only, as is
    factor:         the parameter is so many times the tensor, rounded once.
    tensor_row:     the first row that is read, num_rows of them; None for all that follow. A tensor that is read by
                    several bindings must be read whole by them together.
    parameter_row:  where these rows stand in the parameter, which bindings fill together likewise.
    """

    parameter: str
    tensor: str
    row_order: tuple[int, ...] | None = None
    add_one: bool = False
    factor: float = 1.0
    tensor_row: int = 0
    num_rows: int | None = None
    parameter_row: int = 0


class Ignored(msgspec.Struct, frozen=True):
    """Tensors (by a name pattern with `*`) that this model leaves in the file, and why. `explain` shows it."""

    pattern: str
    reason: str


class Architecture(ABC):
    """One model family.

    name:          the registry's name, a module of this package.
    title:         what people call it, in the list of what is supported; classes may share one.
    config_names:  entries of config.json's `architectures`.
    gguf_names:    values of GGUF's `general.architecture`.
    stored_as:     further ones, of files that another family reads although a config.json names this one.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    config_names: ClassVar[tuple[str, ...]]
    gguf_names: ClassVar[tuple[str, ...]]
    stored_as: ClassVar[tuple[str, ...]] = ()

    @abstractmethod
    def spec(self, checkpoint: CheckpointHeader) -> ModelSpec:
        """Raises CheckpointError or UnsupportedModelError on what the header can't mean."""

    @abstractmethod
    def bindings(self, spec: ModelSpec, checkpoint: CheckpointHeader) -> list[Binding]:
        """What fills each parameter. checkpoint: that of the spec, or another one of the same model."""

    @abstractmethod
    def ignored(self, spec: ModelSpec, checkpoint: CheckpointHeader) -> list[Ignored]: ...

    @abstractmethod
    def build(self, spec: ModelSpec, graph: Graph) -> None:
        """Records the model: inputs `token_ids`, `positions`, `logit_rows`; outputs `hidden` and `logits`."""
