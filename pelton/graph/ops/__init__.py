"""What models are written in: one function per operation. Each records a node in the graph of its first input."""

from __future__ import annotations

from pelton.graph.ops.activation import gated_activation
from pelton.graph.ops.attention import attention, rope
from pelton.graph.ops.embedding import embedding, gather_rows
from pelton.graph.ops.experts import experts_down, experts_gated, route
from pelton.graph.ops.gated_delta import DeltaParameters, DeltaSizes, gated_delta
from pelton.graph.ops.linear import add, linear
from pelton.graph.ops.norm import rms_norm
from pelton.graph.ops.quantise import Quantise  # noqa: F401  registers the op that the compiler inserts

__all__ = [
    "DeltaParameters",
    "DeltaSizes",
    "add",
    "attention",
    "embedding",
    "experts_down",
    "experts_gated",
    "gated_activation",
    "gated_delta",
    "gather_rows",
    "linear",
    "rms_norm",
    "rope",
    "route",
]
