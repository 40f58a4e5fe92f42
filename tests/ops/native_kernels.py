"""Runs single native kernels on numpy arrays, for the tests of this folder. Knows no graph and no reference."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from pelton import _native

LEVELS = [name for name, usable, _ in _native.levels() if usable]
EPSILON = 2.0**-24  # half a unit in the last place of a float32 next to 1: one rounding

Array = np.ndarray[Any, Any]


def bits(x: Array) -> Array:
    """For comparisons that tell -0 from 0 and equal NaNs."""
    return np.ascontiguousarray(x).view(np.uint32)


def zeros(*shape: int) -> Array:
    """float32 on a cache line's boundary."""
    count = int(np.prod(shape))
    raw = np.zeros(count + 16, np.float32)
    start = -raw.ctypes.data // 4 % 16
    return raw[start : start + count].reshape(shape)


@dataclass(frozen=True)
class Node:
    """arrays: None is a null pointer, an int an address."""

    kernel: str
    arrays: Sequence[Array | int | None]
    sizes: Sequence[int]
    values: Sequence[float] = ()
    dim: int = 0

    def pointers(self) -> list[int]:
        return [a if isinstance(a, int) else 0 if a is None else a.ctypes.data for a in self.arrays]


@dataclass(frozen=True)
class Rows:
    """One sequence's part of a step; tables per cache group, in units of 64 bytes."""

    num_rows: int
    context: int = 0
    tables: Sequence[Sequence[int]] = field(default=())


@contextmanager
def team(num_threads: int) -> Iterator[_native.Team]:
    made = _native.Team(num_threads)
    try:
        yield made
    finally:
        made.close()


def run(
    workers: _native.Team,
    level: str,
    nodes: Sequence[Node],
    sequences: Sequence[Rows],
    pool: _native.Buffer | None = None,
    logit_rows: Sequence[int] = (),
    num_states: Sequence[int] = (),
) -> None:
    """The nodes in order, over one step. num_states: per cache group how many recurrent layers it has."""
    program = _native.Program(workers, level)
    for node in nodes:
        program.add(node.kernel, node.dim, node.pointers(), list(node.sizes), list(node.values))
    first_row, described, positions = 0, [], []
    for rows in sequences:
        described.append((first_row, rows.num_rows, rows.context, [list(table) for table in rows.tables]))
        positions += range(rows.context, rows.context + rows.num_rows)
        first_row += rows.num_rows
    program.run(_native.StepInput([0] * first_row, positions, described, list(logit_rows), pool, list(num_states)))


def run_rows(level: str, nodes: Sequence[Node], num_rows: int, num_threads: int = 1) -> None:
    """Nodes that know rows only, over one sequence from position 0."""
    with team(num_threads) as workers:
        run(workers, level, nodes, [Rows(num_rows)])
