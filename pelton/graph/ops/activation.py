"""The gated activation of an MLP, and the quantisation of activations for integer products."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pelton.graph.graph import Shape, Value, columns, is_matrix
from pelton.graph.op import FLOAT32_EPSILON, OPS, Example, ExampleInput, Op
from pelton.graph.step import StepContext

ACTIVATIONS = ("silu", "gelu_tanh", "sigmoid")


def gated_activation(gate: Value, up: Value, *, activation: str, name: str) -> Value:
    """activation(gate) * up (arXiv:2002.05202), of equal shapes, or with one gate for all of a row.

    activation: one of ACTIVATIONS.
    """
    return gate.graph.record(OPS["gated_activation"], name, (gate, up), {"activation": activation}).output


def activate(torch: Any, x: Any, activation: str) -> Any:
    """silu: x * sigmoid(x). gelu_tanh: 0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x³))) (arXiv:1606.08415).
    sigmoid: 1 / (1 + exp(-x))."""
    if activation == "sigmoid":
        return torch.sigmoid(x)
    if activation == "silu":
        return torch.nn.functional.silu(x)
    return torch.nn.functional.gelu(x, approximate="tanh")


class GatedActivation(Op):
    name = "gated_activation"

    def infer(self, *inputs: Value, **attributes: Any) -> list[tuple[Shape, str]]:
        gate, up = inputs
        assert is_matrix(gate), f"{gate.name} is not a matrix"
        fits = gate.shape[0] == up.shape[0] and columns(gate) in (1, columns(up))
        assert fits, f"{gate.name} is {gate.shape}, {up.name} {up.shape}"
        assert attributes["activation"] in ACTIVATIONS, f"no activation {attributes['activation']}"
        return [(up.shape, "float32")]

    def reference(self, torch: Any, step: StepContext, *inputs: Any, **attributes: Any) -> tuple[Any, ...]:
        gate, up = inputs
        return (activate(torch, gate, attributes["activation"]) * up,)

    def examples(self) -> Iterator[Example]:
        for activation in ACTIVATIONS:
            for width, num_tokens, spread in ((96, 1, 1.0), (67, 4, 10.0), (1, 2, 100.0)):
                yield Example(
                    name=f"{activation}_columns{width}_tokens{num_tokens}",
                    inputs=(ExampleInput("values", (width,), spread), ExampleInput("values", (width,))),
                    attributes={"activation": activation},
                    sequences=((num_tokens, 0),),
                )

        yield Example(
            name="one_gate_per_row",
            inputs=(ExampleInput("values", (1,)), ExampleInput("values", (67,))),
            attributes={"activation": "sigmoid"},
            sequences=((3, 0),),
        )

    def tolerance(self, torch: Any, step: StepContext, *inputs: Any, **attributes: Any) -> tuple[Any, ...]:
        """activation(x) = x * s with s in [0, 1]: s is judged absolutely, since 1 + tanh cancels for large negative x.
        Its argument is at most 4 roundings off, which the sigmoid turns into at most |x s (1 - s)| <= 0.28 of them;
        exp or tanh, the quotient and the products add a dozen. A sigmoid is s itself, exact in its argument."""
        gate, up = inputs
        if attributes["activation"] == "sigmoid":
            return (up.abs() * (16 * FLOAT32_EPSILON),)
        return ((gate * up).abs() * (16 * FLOAT32_EPSILON),)
