"""Steps and parameters for running small programs directly."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from pelton.graph.graph import Graph
from pelton.graph.program import Program

BLOCK_TOKENS = 16


def random_parameters(graph: Graph, dtype: torch.dtype, seed: int = 0) -> dict[str, torch.Tensor]:
    """Drawn in float32, so that every dtype sees the same numbers; of a size that keeps activations near one."""
    generator = torch.Generator().manual_seed(seed)
    parameters = {}
    for name, value in graph.parameters.items():
        values = torch.randn(*value.shape, generator=generator)  # type: ignore[arg-type]
        scaled = values * value.shape[-1] ** -0.5 if len(value.shape) == 2 else 1 + 0.1 * values
        parameters[name] = scaled.to(dtype)
    return parameters


def tables_for(program: Program, sequence: int, num_tokens: int) -> list[list[int]]:
    """Blocks of a sequence per group, in units of 64 bytes: 8 blocks are set aside per sequence, handed out backwards
    so that neighbours in time are not neighbours in memory."""
    tables, base = [], 0
    for layout in program.cache_layout:
        unit = layout.block_bytes // 64
        if layout.num_states:
            tables.append([base + (8 * sequence + index) * unit for index in range(layout.num_states)] * 2)
            base += 64 * unit
            continue
        count = -(-num_tokens // BLOCK_TOKENS)
        tables.append([base + (8 * sequence + 7 - index) * unit for index in range(count)])
        base += 64 * unit
    return tables


def step_of(
    program: Program, rows: Sequence[tuple[Sequence[int], int]], logit_rows: Sequence[int] | None = None
) -> dict[str, Any]:
    """Arguments of a step. rows: per sequence its new token ids and how many tokens stand before them. logit_rows:
    the last row of each sequence by default."""
    token_ids: list[int] = []
    positions: list[int] = []
    sequences, last_rows = [], []
    for index, (ids, context) in enumerate(rows):
        tables = tables_for(program, index, context + len(ids))
        sequences.append((len(token_ids), len(ids), context, tables))
        token_ids += ids
        positions += range(context, context + len(ids))
        last_rows.append(len(token_ids) - 1)
    return {
        "token_ids": token_ids,
        "positions": positions,
        "sequences": sequences,
        "logit_rows": list(last_rows if logit_rows is None else logit_rows),
    }


def one_sequence(program: Program, ids: Sequence[int], context: int = 0) -> dict[str, Any]:
    return step_of(program, [(ids, context)])
