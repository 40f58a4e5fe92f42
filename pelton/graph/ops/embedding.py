"""Rows by index: of a weight table (embedding), and of the body's rows that need logits (gather_rows)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pelton.graph.formats import FORMATS
from pelton.graph.graph import ROWS, TOKENS, Parameter, Shape, Value, columns, is_matrix
from pelton.graph.op import FLOAT32_EPSILON, OPS, Example, ExampleInput, Op
from pelton.graph.step import StepContext


def embedding(token_ids: Value, table: Parameter, *, scale: float = 1.0, name: str = "embed_tokens") -> Value:
    """table[token_ids] * scale. token_ids: [tokens] int32. table: [vocabulary, columns]. Returns [tokens, columns]."""
    return token_ids.graph.record(OPS["embedding"], name, (token_ids, table), {"scale": scale}).output


def gather_rows(x: Value, row_index: Value, *, name: str) -> Value:
    """x[row_index]: the body's rows that need logits. x: [tokens, columns]. Returns [rows, columns]."""
    return x.graph.record(OPS["gather_rows"], name, (x, row_index), {}).output


class Embedding(Op):
    name = "embedding"

    def infer(self, *inputs: Value, **attributes: Any) -> list[tuple[Shape, str]]:
        token_ids, table = inputs
        assert token_ids.shape == (TOKENS,), f"{token_ids.name} is not [tokens]"
        assert len(table.shape) == 2, f"{table.name} is not a matrix"
        return [((TOKENS, columns(table)), "float32")]

    def reference(self, torch: Any, step: StepContext, *inputs: Any, **attributes: Any) -> tuple[Any, ...]:
        token_ids, table = inputs
        return (table[token_ids] * attributes["scale"],)

    def examples(self) -> Iterator[Example]:
        for vocabulary, width, num_tokens, scale in ((5, 256, 1, 1.0), (37, 512, 7, 1.0), (16, 768, 3, 27.712812)):
            yield Example(
                name=f"vocabulary{vocabulary}_columns{width}_tokens{num_tokens}",
                inputs=(ExampleInput("token_ids", range=vocabulary), ExampleInput("weight", (vocabulary, width))),
                attributes={"scale": scale},
                sequences=((num_tokens, 0),),
                formats=tuple(FORMATS),
            )
        yield Example(
            name="odd_columns",
            inputs=(ExampleInput("token_ids", range=19), ExampleInput("weight", (19, 67))),
            attributes={"scale": 1.0},
            sequences=((4, 0),),
            formats=("f32", "f16", "bf16"),
        )

    def tolerance(self, torch: Any, step: StepContext, *inputs: Any, **attributes: Any) -> tuple[Any, ...]:
        """Without a scale the stored value itself; with one, the scale and the product are rounded once each."""
        (expected,) = self.reference(torch, step, *inputs, **attributes)
        roundings = 0 if attributes["scale"] == 1.0 else 2
        return (expected.abs() * (roundings * FLOAT32_EPSILON),)


class GatherRows(Op):
    name = "gather_rows"

    def infer(self, *inputs: Value, **attributes: Any) -> list[tuple[Shape, str]]:
        x, row_index = inputs
        assert is_matrix(x), f"{x.name} is not a matrix"
        assert x.shape[0] == TOKENS, f"{x.name} is not [tokens, columns]"
        assert row_index.shape == (ROWS,), f"{row_index.name} is not [rows]"
        return [((ROWS, columns(x)), x.dtype)]

    def reference(self, torch: Any, step: StepContext, *inputs: Any, **attributes: Any) -> tuple[Any, ...]:
        x, row_index = inputs
        return (x[row_index],)

    def examples(self) -> Iterator[Example]:
        for width, logit_rows in ((64, (0,)), (67, (2, 6)), (1, (0, 1, 2, 3, 4, 5, 6))):
            yield Example(
                name=f"columns{width}_rows{len(logit_rows)}",
                inputs=(ExampleInput("values", (width,)), ExampleInput("row_index")),
                sequences=((3, 0), (4, 9)),
                logit_rows=logit_rows,
            )

    def tolerance(self, torch: Any, step: StepContext, *inputs: Any, **attributes: Any) -> tuple[Any, ...]:
        return (torch.zeros_like(self.reference(torch, step, *inputs, **attributes)[0]),)
