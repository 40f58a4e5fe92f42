"""Mixture of experts: which experts a row takes, and their gated MLPs in two products."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from pelton.graph.formats import FORMATS
from pelton.graph.graph import Parameter, Shape, Value, columns, is_matrix
from pelton.graph.op import FLOAT32_EPSILON, OPS, Example, ExampleInput, Op
from pelton.graph.ops.activation import ACTIVATIONS, activate
from pelton.graph.step import StepContext


def route(logits: Value, *, num_chosen: int, is_normalised: bool, name: str) -> tuple[Value, Value]:
    """The num_chosen likeliest experts of each row, the likeliest first, and their weights (arXiv:1701.06538).

    logits: [tokens, experts]. Returns choices [tokens, num_chosen] int32 and weights of that shape: softmax(logits)
    over all experts, divided by the sum of the chosen ones if is_normalised.
    """
    attributes = {"num_chosen": num_chosen, "is_normalised": is_normalised}
    choices, weights = logits.graph.record(OPS["route"], name, (logits,), attributes).outputs
    return choices, weights


def experts_gated(
    x: Value, choices: Value, gate: Parameter, up: Parameter, *, num_experts: int, activation: str, name: str
) -> Value:
    """activation(x @ gate_e.T) * (x @ up_e.T) for each chosen expert e of a row, side by side.

    x: [tokens, hidden]. choices: [tokens, chosen]. gate, up: [experts * inner, hidden], one expert after the other.
    Returns [tokens, chosen * inner].
    """
    attributes = {"num_experts": num_experts, "activation": activation}
    return x.graph.record(OPS["experts_gated"], name, (x, gate, up, choices), attributes).output


def experts_down(
    inner: Value, choices: Value, weights: Value, down: Parameter, *, num_experts: int, name: str
) -> Value:
    """The sum over a row's chosen experts e of weight * (inner_e @ down_e.T).

    inner: [tokens, chosen * inner]. choices, weights: [tokens, chosen]. down: [experts * hidden, inner], one expert
    after the other. Returns [tokens, hidden].
    """
    attributes = {"num_experts": num_experts}
    return inner.graph.record(OPS["experts_down"], name, (inner, down, choices, weights), attributes).output


class Route(Op):
    name = "route"

    def infer(self, *inputs: Value, **attributes: Any) -> list[tuple[Shape, str]]:
        (logits,) = inputs
        assert is_matrix(logits), f"{logits.name} is not a matrix"
        chosen = attributes["num_chosen"]
        assert 1 <= chosen <= columns(logits), f"{logits.name}: {chosen} of {columns(logits)} experts"
        return [((logits.shape[0], chosen), "int32"), ((logits.shape[0], chosen), "float32")]

    def reference(self, torch: Any, step: StepContext, *inputs: Any, **attributes: Any) -> tuple[Any, ...]:
        (logits,) = inputs
        choices = logits.sort(dim=-1, descending=True, stable=True).indices[:, : attributes["num_chosen"]]
        weights = logits.softmax(dim=-1).gather(1, choices)
        if attributes["is_normalised"]:
            weights = weights / weights.sum(dim=-1, keepdim=True)
        return choices.to(torch.int32), weights

    def examples(self) -> Iterator[Example]:
        for experts, chosen, is_normalised, num_tokens in (
            (8, 2, True, 5),
            (37, 8, False, 1),
            (128, 8, True, 40),
            (1, 1, False, 2),
        ):
            yield Example(
                name=f"experts{experts}_chosen{chosen}_tokens{num_tokens}",
                inputs=(ExampleInput("values", (experts,), 2.0),),
                attributes={"num_chosen": chosen, "is_normalised": is_normalised},
                sequences=((num_tokens, 0),),
            )

    def tolerance(self, torch: Any, step: StepContext, *inputs: Any, **attributes: Any) -> tuple[Any, ...]:
        """Choices are exact. exp of a difference of logits is off by its rounding, |difference| epsilon, and by 4 of
        its own; a sum of E of them by E more, the quotients and the sum of the chosen by chosen + 3."""
        (logits,) = inputs
        choices, weights = self.reference(torch, step, *inputs, **attributes)
        spread = (logits.amax(dim=-1, keepdim=True) - logits).gather(1, choices.long())
        count = logits.shape[1] + attributes["num_chosen"] + 16
        return torch.zeros_like(choices), weights * (2 * spread + count) * FLOAT32_EPSILON


class _ExpertProduct(Op):
    """What both products share: each row reads the matrices of its experts alone."""

    def read_share(self, rows: int, *inputs: Value, **attributes: Any) -> float:
        """Of experts that are chosen alike."""
        chosen = self._num_chosen(*inputs)
        return float(1.0 - (1.0 - chosen / attributes["num_experts"]) ** rows)

    def products(self, *inputs: Value, **attributes: Any) -> int:
        weights = [value for value in inputs if isinstance(value, Parameter)]
        one = sum(math.prod(size for size in weight.shape if isinstance(size, int)) for weight in weights)
        return one // int(attributes["num_experts"]) * self._num_chosen(*inputs)

    def _num_chosen(self, *inputs: Value) -> int:
        return columns(next(value for value in inputs if value.dtype == "int32"))


class ExpertsGated(_ExpertProduct):
    name = "experts_gated"

    def infer(self, *inputs: Value, **attributes: Any) -> list[tuple[Shape, str]]:
        x, gate, up, choices = inputs
        experts = attributes["num_experts"]
        rows = gate.shape[0]
        assert gate.shape == up.shape, f"{gate.name} is {gate.shape}, {up.name} {up.shape}"
        assert isinstance(rows, int), f"{gate.name} has a symbolic size"
        assert rows % experts == 0, f"{gate.name}: {rows} rows for {experts} experts"
        assert columns(x) == columns(gate), f"{x.name} has {columns(x)} columns, {gate.name} {columns(gate)}"
        assert attributes["activation"] in ACTIVATIONS, f"no activation {attributes['activation']}"
        return [((x.shape[0], columns(choices) * (rows // experts)), "float32")]

    def reference(self, torch: Any, step: StepContext, *inputs: Any, **attributes: Any) -> tuple[Any, ...]:
        gate, up = self._products(torch, *inputs, **attributes)
        return ((activate(torch, gate, attributes["activation"]) * up).reshape(gate.shape[0], -1),)

    def _products(self, torch: Any, *inputs: Any, **attributes: Any) -> tuple[Any, Any]:
        """x @ w_e.T of both matrices: [tokens, chosen, inner]."""
        x, gate, up, choices = inputs
        parts = []
        for weight in (gate, up):
            matrices = weight.reshape(attributes["num_experts"], -1, weight.shape[-1])
            parts.append(torch.einsum("tcnk,tk->tcn", matrices[choices.long()], x))
        return parts[0], parts[1]

    def examples(self) -> Iterator[Example]:
        for experts, chosen, inner, width, num_tokens in ((4, 2, 32, 256, 7), (8, 3, 64, 256, 1), (3, 1, 96, 512, 40)):
            yield self._example(experts, chosen, inner, width, num_tokens, "silu", tuple(FORMATS))
        yield self._example(5, 2, 48, 67, 6, "gelu_tanh", ("f32", "f16", "bf16"))

    def _example(
        self,
        experts: int,
        chosen: int,
        inner: int,
        width: int,
        num_tokens: int,
        activation: str,
        formats: tuple[str, ...],
    ) -> Example:
        weight = ExampleInput("weight", (experts * inner, width), width**-0.5)
        return Example(
            name=f"experts{experts}_chosen{chosen}_inner{inner}_in{width}_tokens{num_tokens}",
            inputs=(ExampleInput("values", (width,)), weight, weight, ExampleInput("choices", (chosen,), experts)),
            attributes={"num_experts": experts, "activation": activation},
            sequences=((num_tokens, 0),),
            formats=formats,
        )

    def tolerance(self, torch: Any, step: StepContext, *inputs: Any, **attributes: Any) -> tuple[Any, ...]:
        """Each product as in Linear; an activation's slope is at most 1.13, its own error that of GatedActivation."""
        x, gate, up, choices = inputs
        first, second = self._products(torch, *inputs, **attributes)
        bounds = self._products(torch, x.abs(), gate.abs(), up.abs(), choices, num_experts=attributes["num_experts"])
        errors = [2 * bound * ((x.shape[1] + 8) * FLOAT32_EPSILON) for bound in bounds]
        active = activate(torch, first, attributes["activation"]).abs() + 1.13 * errors[0]
        error = 1.13 * errors[0] * second.abs() + active * errors[1]
        error = error + (first.abs() + errors[0]) * (second.abs() + errors[1]) * (16 * FLOAT32_EPSILON)
        return (error.reshape(x.shape[0], -1),)


class ExpertsDown(_ExpertProduct):
    name = "experts_down"

    def infer(self, *inputs: Value, **attributes: Any) -> list[tuple[Shape, str]]:
        inner, down, choices, weights = inputs
        rows = down.shape[0]
        assert isinstance(rows, int), f"{down.name} has a symbolic size"
        experts = attributes["num_experts"]
        assert rows % experts == 0, f"{down.name}: {rows} rows for {experts} experts"
        assert choices.shape == weights.shape, f"{choices.name} is {choices.shape}, {weights.name} {weights.shape}"
        expected = columns(choices) * columns(down)
        assert columns(inner) == expected, f"{inner.name} has {columns(inner)} columns, not {expected}"
        return [((inner.shape[0], rows // experts), "float32")]

    def reference(self, torch: Any, step: StepContext, *inputs: Any, **attributes: Any) -> tuple[Any, ...]:
        inner, down, choices, weights = inputs
        matrices = down.reshape(attributes["num_experts"], -1, down.shape[-1])
        parts = inner.reshape(inner.shape[0], choices.shape[1], -1)
        return (torch.einsum("tcnk,tck,tc->tn", matrices[choices.long()], parts, weights),)

    def examples(self) -> Iterator[Example]:
        for experts, chosen, width, out, num_tokens in ((4, 2, 256, 48, 7), (8, 3, 256, 32, 1), (3, 1, 512, 80, 40)):
            yield self._example(experts, chosen, width, out, num_tokens, tuple(FORMATS))
        yield self._example(5, 2, 32, 16, 6, ("f32", "f16", "bf16"))

    def _example(
        self, experts: int, chosen: int, width: int, out: int, num_tokens: int, formats: tuple[str, ...]
    ) -> Example:
        return Example(
            name=f"experts{experts}_chosen{chosen}_in{width}_out{out}_tokens{num_tokens}",
            inputs=(
                ExampleInput("values", (chosen * width,)),
                ExampleInput("weight", (experts * out, width), width**-0.5),
                ExampleInput("choices", (chosen,), experts),
                ExampleInput("values", (chosen,)),
            ),
            attributes={"num_experts": experts},
            sequences=((num_tokens, 0),),
            formats=formats,
        )

    def tolerance(self, torch: Any, step: StepContext, *inputs: Any, **attributes: Any) -> tuple[Any, ...]:
        """A sum of chosen * K products in any order, see Linear, and a weight's product for each expert."""
        inner, down, choices, weights = inputs
        (magnitude,) = self.reference(torch, step, inner.abs(), down.abs(), choices, weights.abs(), **attributes)
        count = down.shape[1] + 2 * choices.shape[1] + 8
        return (2 * magnitude * (count * FLOAT32_EPSILON),)
