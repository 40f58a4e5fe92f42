"""What an operation is: signature, shape rule, reference, examples, tolerance. One file in `ops/` per family.

The generic op test runs every kernel of every provider on every example of its op against the reference in float64.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from pelton.graph.graph import Shape, Value

OPS: dict[str, Op] = {}


@dataclass(frozen=True)
class Example:
    """One set of inputs, made from a seed: shapes and attributes that a kernel must get right.

    inputs: per input a shape with "tokens"/"rows" replaced by numbers, or a ready description (see ops/).
    """

    name: str
    sizes: Mapping[str, int]
    inputs: Mapping[str, Any]
    attributes: Mapping[str, Any] = field(default_factory=dict)


class Op(ABC):
    """One instance per operation, registered under its name."""

    name: ClassVar[str]

    def __init_subclass__(cls) -> None:
        if "name" in cls.__dict__:
            OPS[cls.name] = cls()

    @abstractmethod
    def infer(self, *inputs: Value, **attributes: Any) -> list[tuple[Shape, str]]:
        """Shapes and dtypes of the outputs. Raises AssertionError on a model file's mistake."""

    @abstractmethod
    def reference(self, torch: Any, *inputs: Any, **attributes: Any) -> tuple[Any, ...]:
        """The meaning, in plain torch, in the dtype of the inputs. `torch` is passed in, never imported."""

    @abstractmethod
    def examples(self) -> Iterator[Example]: ...

    @abstractmethod
    def tolerance(self, torch: Any, example: Example, *inputs: Any) -> Any:
        """Largest allowed |kernel - reference| per element, derived from accumulation length, epsilon, magnitude."""
