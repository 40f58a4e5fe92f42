"""Activations as integers, for products with integer weight formats. Inserted by the compiler, not by models."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pelton.graph.graph import Node, Shape, Value, columns, is_matrix
from pelton.graph.op import FLOAT32_EPSILON, OPS, Example, ExampleInput, Op
from pelton.graph.step import StepContext

GROUP = 32
# Largest magnitudes: of eight bits, and of the 15 bits lo + 128 * hi with lo in [-64, 63], hi in [-127, 127].
INT8_MAX = 127
INT15_MAX = 127 * 128 + 63

# mode → dtype of a quantised value
BLOCKS = {"outlier": "blocks_outlier", "exact": "blocks_exact"}


def quantise_node(x: Value, mode: str) -> Node:
    """A node that quantises x, outside the graph's recording.

    Groups of 32 along a row share one scale. "outlier": the aligned quad that holds the group's largest magnitude gets
    15 bits, the other 28 values 8. "exact": 15 bits for all.
    """
    op = OPS["quantise"]
    node = Node(f"{x.name}.quantise", op, (x,), {"mode": mode})
    ((shape, dtype),) = op.infer(x, mode=mode)
    node.outputs.append(Value(x.graph, node.name, shape, dtype, node))
    return node


class Quantise(Op):
    name = "quantise"

    def infer(self, *inputs: Value, **attributes: Any) -> list[tuple[Shape, str]]:
        (x,) = inputs
        assert is_matrix(x), f"{x.name} is not a matrix"
        assert columns(x) % GROUP == 0, f"{x.name} has {columns(x)} columns, not a multiple of {GROUP}"
        return [(x.shape, BLOCKS[attributes["mode"]])]

    def reference(self, torch: Any, step: StepContext, *inputs: Any, **attributes: Any) -> tuple[Any, ...]:
        """The values that the blocks stand for: scale * round(x / scale)."""
        (x,) = inputs
        groups = x.reshape(x.shape[0], -1, GROUP)
        scale = self._scale(torch, groups, attributes["mode"])
        codes = torch.where(scale > 0, groups / scale, torch.zeros_like(groups)).round()
        return ((codes * scale).reshape(x.shape),)

    def _scale(self, torch: Any, groups: Any, mode: str) -> Any:
        """[rows, groups, 1] of groups [rows, groups, 32]."""
        largest = groups.abs().amax(dim=-1, keepdim=True)
        if mode == "exact":
            return largest / INT15_MAX
        quads = groups.abs().reshape(*groups.shape[:2], GROUP // 4, 4).amax(dim=-1)
        outlier = torch.nn.functional.one_hot(quads.argmax(dim=-1), GROUP // 4).bool()
        others = quads.masked_fill(outlier, 0).amax(dim=-1, keepdim=True)
        return torch.maximum(others / INT8_MAX, largest / INT15_MAX)

    def examples(self) -> Iterator[Example]:
        for mode in BLOCKS:
            for width, num_tokens in ((32, 1), (96, 5), (576, 2)):
                yield Example(
                    name=f"{mode}_columns{width}_tokens{num_tokens}",
                    inputs=(ExampleInput("values", (width,), 3.0),),
                    attributes={"mode": mode},
                    sequences=((num_tokens, 0),),
                )

    def tolerance(self, torch: Any, step: StepContext, *inputs: Any, **attributes: Any) -> tuple[Any, ...]:
        """One step of the scale: a value next to the middle of two codes may go either way. The scale itself and its
        product with a code are rounded."""
        (x,) = inputs
        groups = x.reshape(x.shape[0], -1, GROUP)
        scale = self._scale(torch, groups, attributes["mode"])
        return ((scale * (1 + 8 * FLOAT32_EPSILON) + groups.abs() * (4 * FLOAT32_EPSILON)).reshape(x.shape),)
