"""The matrix product with a weight, and the addition of two matrices."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from pelton.graph.formats import FORMATS
from pelton.graph.graph import Parameter, Shape, Value, columns, is_matrix
from pelton.graph.op import FLOAT32_EPSILON, OPS, Example, ExampleInput, Op
from pelton.graph.step import StepContext


def linear(x: Value, weight: Parameter, bias: Parameter | None = None, *, name: str) -> Value:
    """x @ weight.T + bias. x: [tokens, in]. weight: [out, in]. bias: [out]. Returns [tokens, out]."""
    inputs = (x, weight) if bias is None else (x, weight, bias)
    return x.graph.record(OPS["linear"], name, inputs, {}).output


def add(a: Value, b: Value, *, name: str) -> Value:
    """a + b, of equal shapes: the residual stream."""
    return a.graph.record(OPS["add"], name, (a, b), {}).output


class Linear(Op):
    name = "linear"

    def infer(self, *inputs: Value, **attributes: Any) -> list[tuple[Shape, str]]:
        x, weight, *bias = inputs
        assert is_matrix(x), f"{x.name} is not a matrix"
        assert len(weight.shape) == 2, f"{weight.name} is not a matrix"
        assert columns(x) == columns(weight), f"{x.name} has {columns(x)} columns, {weight.name} {columns(weight)}"
        for vector in bias:
            assert vector.shape == weight.shape[:1], f"{vector.name} is {vector.shape}, {weight.name} {weight.shape}"
        return [((x.shape[0], weight.shape[0]), "float32")]

    def reference(self, torch: Any, step: StepContext, *inputs: Any, **attributes: Any) -> tuple[Any, ...]:
        x, weight, *bias = inputs
        product = x @ weight.T
        return (product + bias[0] if bias else product,)

    def products(self, *inputs: Value, **attributes: Any) -> int:
        return math.prod(size for size in inputs[1].shape if isinstance(size, int))

    def examples(self) -> Iterator[Example]:
        for out, width, num_tokens in ((16, 256, 1), (21, 512, 2), (48, 256, 19), (1, 768, 5), (130, 256, 3)):
            yield self._example(out, width, num_tokens, tuple(FORMATS))
        yield self._example(33, 96, 6, ("f32", "f16", "bf16", "q4_0", "q4_1", "q5_0", "q5_1", "q8_0"))
        for out, width, num_tokens in ((17, 67, 3), (1, 1, 1), (50, 33, 18)):
            yield self._example(out, width, num_tokens, ("f32", "f16", "bf16"))
        yield self._example(40, 256, 5, tuple(FORMATS), with_bias=True)

    def _example(
        self, out: int, width: int, num_tokens: int, formats: tuple[str, ...], with_bias: bool = False
    ) -> Example:
        bias = (ExampleInput("weight", (out,)),) if with_bias else ()
        return Example(
            name=f"out{out}_in{width}_tokens{num_tokens}{'_bias' if with_bias else ''}",
            inputs=(ExampleInput("values", (width,)), ExampleInput("weight", (out, width), width**-0.5), *bias),
            sequences=((num_tokens, 0),),
            formats=formats,
        )

    def tolerance(self, torch: Any, step: StepContext, *inputs: Any, **attributes: Any) -> tuple[Any, ...]:
        """A sum of K products in any order: (K + 1) roundings of at most sum |x||w| (Higham, Accuracy and Stability
        of Numerical Algorithms, 3.1); eight more for scales, min terms and bias. Integer formats: on the values that
        the quantised activations stand for, and their offset weights are at most twice as large in magnitude."""
        x, weight, *bias = inputs
        magnitude = 2 * (x.abs() @ weight.abs().T)
        if bias:
            magnitude = magnitude + bias[0].abs()
        return (magnitude * ((x.shape[1] + 8) * FLOAT32_EPSILON),)


class Add(Op):
    name = "add"

    def infer(self, *inputs: Value, **attributes: Any) -> list[tuple[Shape, str]]:
        a, b = inputs
        assert a.shape == b.shape, f"{a.name} is {a.shape}, {b.name} {b.shape}"
        assert is_matrix(a), f"{a.name} is not a matrix"
        return [(a.shape, "float32")]

    def reference(self, torch: Any, step: StepContext, *inputs: Any, **attributes: Any) -> tuple[Any, ...]:
        a, b = inputs
        return (a + b,)

    def examples(self) -> Iterator[Example]:
        for width, num_tokens in ((64, 1), (67, 5), (1, 3), (576, 2)):
            yield Example(
                name=f"columns{width}_tokens{num_tokens}",
                inputs=(ExampleInput("values", (width,)), ExampleInput("values", (width,))),
                sequences=((num_tokens, 0),),
            )

    def tolerance(self, torch: Any, step: StepContext, *inputs: Any, **attributes: Any) -> tuple[Any, ...]:
        (expected,) = self.reference(torch, step, *inputs, **attributes)
        return (expected.abs() * FLOAT32_EPSILON,)
