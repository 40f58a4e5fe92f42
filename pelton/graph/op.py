"""What an operation is: signature, shape rule, reference, examples, tolerance. One file in `ops/` per family.

The generic op test runs every kernel of every provider on every example of its op against the reference in float64.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import msgspec

from pelton.graph.graph import CacheLayer, Shape, Value
from pelton.graph.step import StepContext

OPS: dict[str, Op] = {}

FLOAT32_EPSILON = 2.0**-24  # relative error of one rounding to nearest


class ExampleInput(msgspec.Struct, frozen=True):
    """One input of an example.

    role:  "values" float32 [rows, columns], "weight" a parameter, "token_ids", "positions" or "row_index" of the step.
    shape: of a weight as it is; of values only the columns, since the step gives the rows.
    range: for values and weights the standard deviation; for token_ids the exclusive upper bound.
    """

    role: str
    shape: tuple[int, ...] = ()
    range: float = 1.0


class Example(msgspec.Struct, frozen=True):
    """One set of inputs that a kernel must get right; its numbers are drawn from a seed made of its name.

    sequences:   (num_rows, context) of each sequence of the step.
    logit_rows:  rows that the head reads; values have as many rows if `dim` is "rows".
    cache:       the layer that the op reads or writes. Positions before the step are filled at random.
    formats:     weight formats to try; each gives one test.
    """

    name: str
    inputs: tuple[ExampleInput, ...]
    attributes: Mapping[str, Any] = msgspec.field(default_factory=dict)
    sequences: tuple[tuple[int, int], ...] = ((1, 0),)
    logit_rows: tuple[int, ...] = (0,)
    dim: str = "tokens"
    cache: CacheLayer | None = None
    formats: tuple[str, ...] = ("f32",)


class Op(ABC):
    """One instance per operation, registered under its name."""

    name: ClassVar[str]

    def __init_subclass__(cls) -> None:
        if "name" in cls.__dict__:
            assert cls.name not in OPS, f"two ops are called {cls.name}"
            OPS[cls.name] = cls()

    @abstractmethod
    def infer(self, *inputs: Value, **attributes: Any) -> list[tuple[Shape, str]]:
        """Shapes and dtypes of the outputs. Raises AssertionError on a model file's mistake."""

    @abstractmethod
    def reference(self, torch: Any, step: StepContext, *inputs: Any, **attributes: Any) -> tuple[Any, ...]:
        """The meaning, in plain torch, in the dtype of the inputs. `torch` is passed in, never imported."""

    def products(self, *inputs: Value, **attributes: Any) -> int:
        """Multiplications with weights that a row takes: what a roofline counts."""
        return 0

    def read_share(self, rows: int, *inputs: Value, **attributes: Any) -> float:
        """Share of its weights that a step of so many rows reads: all, unless each row chooses."""
        return 1.0

    def position_products(self, *inputs: Value, **attributes: Any) -> int:
        """Multiplications that a row takes with each position before it."""
        return 0

    @abstractmethod
    def examples(self) -> Iterator[Example]:
        """Sizes that matter: one row and several, odd ones, the smallest."""

    @abstractmethod
    def tolerance(self, torch: Any, step: StepContext, *inputs: Any, **attributes: Any) -> tuple[Any, ...]:
        """Per output, the largest allowed |kernel - reference| of each element, for a kernel that computes in float32
        on these very inputs: derived from accumulation length, epsilon and magnitude."""
