"""One step as the references see it: which rows belong to whom, and each sequence's keys and values, densely.

It knows no blocks and no devices: how a cache is laid out is its owner's affair.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import msgspec

from pelton.graph.graph import CacheLayer


class SequenceRows(msgspec.Struct, frozen=True):
    """Rows [first_row, first_row + num_rows) hold this sequence's tokens at positions [context, context + num_rows)."""

    first_row: int
    num_rows: int
    context: int

    @property
    def rows(self) -> slice:
        return slice(self.first_row, self.first_row + self.num_rows)


class Cache(Protocol):
    """Keys and values of the sequences of a step, by position."""

    def write(self, layer: CacheLayer, sequence: int, context: int, keys: Any, values: Any) -> None:
        """Stores [rows, kv_heads, head_dim] at positions [context, context + rows), rounded to the cache's dtype."""

    def read(self, layer: CacheLayer, sequence: int, num_tokens: int) -> tuple[Any, Any]:
        """Keys and values of positions [0, num_tokens), as [num_tokens, kv_heads, head_dim]. Positions that no
        window of this layer reaches may hold anything finite."""


class StepContext(msgspec.Struct, frozen=True):
    """What a reference may ask beyond its inputs."""

    sequences: tuple[SequenceRows, ...]
    cache: Cache

    @classmethod
    def of(cls, lengths: Sequence[tuple[int, int]], cache: Cache) -> StepContext:
        """lengths: (num_rows, context) per sequence; their rows follow one another."""
        sequences, first_row = [], 0
        for num_rows, context in lengths:
            sequences.append(SequenceRows(first_row, num_rows, context))
            first_row += num_rows
        return cls(tuple(sequences), cache)

    @property
    def num_tokens(self) -> int:
        return sum(sequence.num_rows for sequence in self.sequences)
