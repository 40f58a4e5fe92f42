"""Root-mean-square normalisation, of whole rows or of each head within a row."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pelton.graph.graph import Parameter, Shape, Value, columns, is_matrix
from pelton.graph.op import FLOAT32_EPSILON, OPS, Example, ExampleInput, Op
from pelton.graph.step import StepContext


def rms_norm(x: Value, weight: Parameter, *, eps: float, name: str, vectors: int = 1) -> Value:
    """x / sqrt(mean(x²) + eps) * weight (arXiv:1910.07467), for each of `vectors` equal parts of a row on its own.

    x: [tokens, vectors * size]. weight: [size]. Returns the shape of x.
    """
    return x.graph.record(OPS["rms_norm"], name, (x, weight), {"eps": eps, "vectors": vectors}).output


class RmsNorm(Op):
    name = "rms_norm"

    def infer(self, *inputs: Value, **attributes: Any) -> list[tuple[Shape, str]]:
        x, weight = inputs
        assert is_matrix(x), f"{x.name} is not a matrix"
        expected = attributes["vectors"] * columns(weight)
        assert columns(x) == expected, f"{x.name} has {columns(x)} columns, {weight.name} needs {expected}"
        return [(x.shape, "float32")]

    def reference(self, torch: Any, step: StepContext, *inputs: Any, **attributes: Any) -> tuple[Any, ...]:
        x, weight = inputs
        parts = x.reshape(x.shape[0], attributes["vectors"], -1)
        mean_square = parts.square().mean(dim=-1, keepdim=True)
        return ((parts * (mean_square + attributes["eps"]).rsqrt() * weight).reshape(x.shape),)

    def examples(self) -> Iterator[Example]:
        for size, vectors, num_tokens, eps in ((64, 1, 1, 1e-5), (576, 1, 5, 1e-6), (67, 1, 3, 1e-6), (1, 1, 2, 1e-5)):
            yield self._example(size, vectors, num_tokens, eps)
        for size, vectors, num_tokens in ((64, 3, 4), (256, 4, 2), (20, 5, 3)):
            yield self._example(size, vectors, num_tokens, 1e-6)

    def _example(self, size: int, vectors: int, num_tokens: int, eps: float) -> Example:
        return Example(
            name=f"size{size}_vectors{vectors}_tokens{num_tokens}",
            inputs=(ExampleInput("values", (size * vectors,), 3.0), ExampleInput("weight", (size,))),
            attributes={"eps": eps, "vectors": vectors},
            sequences=((num_tokens, 0),),
        )

    def tolerance(self, torch: Any, step: StepContext, *inputs: Any, **attributes: Any) -> tuple[Any, ...]:
        """A sum of n squares (all positive: relative error <= n roundings), halved by the root; then the mean, eps,
        root, division and two products with at most two roundings each."""
        (expected,) = self.reference(torch, step, *inputs, **attributes)
        size = inputs[1].shape[0]
        return (expected.abs() * ((size / 2 + 8) * FLOAT32_EPSILON),)
