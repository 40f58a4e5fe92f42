"""Runs given token ids through a program and shows what it computed: for judging a model, not for answering requests.

Teacher-forced: every position sees the given tokens before it, whatever the model would have said. A log-probability
per token of a text is to be had from a request's `prompt_logprobs`; here are whole rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

from pelton import _native
from pelton.cache.groups import BLOCK_TOKENS, OFFSET_UNIT, blocks_for
from pelton.errors import ContextLengthError, UsageError
from pelton.graph.program import HEAD_ROWS, Program

_FLOAT_BYTES = 4


class ReadableProgram(Protocol):
    """A compiled program in memory, with its weights loaded, whose values can be read after a step."""

    @property
    def program(self) -> Program: ...
    @property
    def native(self) -> _native.Program: ...

    def row(self, name: str, index: int) -> memoryview: ...


def forward_logits(program: ReadableProgram, token_ids: Sequence[int]) -> Iterator[tuple[int, memoryview[float]]]:
    """(position, logits) of every position in order: float32 [vocab_size], valid until the next one is asked for.

    Raises ContextLengthError if the program was compiled for a shorter context, UsageError on ids it does not know.
    """
    name = program.program.graph.outputs["logits"].name
    for first, num_rows in _run(program, token_ids):
        for index in range(num_rows):
            with _read(program, name, index) as row:
                yield first + index, row


def capture(program: ReadableProgram, token_ids: Sequence[int], names: Sequence[str]) -> dict[str, list[list[float]]]:
    """Rows [tokens][columns] of values that the program was compiled to keep (CompileSettings.capture), by name.

    Raises ContextLengthError and UsageError as forward_logits does, and UsageError on a value that is not kept, or is
    kept in a packed form.
    """
    for name in names:
        value = program.program.value(name)
        if value.dtype != "float32":
            raise UsageError(f"`{name}` is `{value.dtype}`; only float32 values can be read")
    rows: dict[str, list[list[float]]] = {name: [] for name in names}
    for _, num_rows in _run(program, token_ids):
        for name in names:
            for index in range(num_rows):
                with _read(program, name, index) as row:
                    rows[name].append(list(row))
    return rows


def _run(program: ReadableProgram, token_ids: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Computes the tokens in steps of one head tile, in which every row gets logits. Yields (first position, rows)."""
    compiled = program.program
    _check(compiled, token_ids)
    tables, pool_bytes = block_tables(compiled, len(token_ids))
    pool = _native.Buffer(pool_bytes, "capture")
    try:
        num_rows = min(HEAD_ROWS, compiled.settings.max_tokens)
        for first in range(0, len(token_ids), num_rows):
            chunk = token_ids[first : first + num_rows]
            positions = range(first, first + len(chunk))
            sequences = [(0, len(chunk), first, tables)]
            rows = list(range(len(chunk)))
            step = _native.StepInput(chunk, list(positions), sequences, rows, pool, num_states(compiled))
            program.native.run(step)
            yield first, len(chunk)
    finally:
        pool.close()


def _check(compiled: Program, token_ids: Sequence[int]) -> None:
    num_tokens, max_context = len(token_ids), compiled.settings.max_context
    if num_tokens > max_context:
        raise ContextLengthError(f"`{num_tokens}` tokens; the program was compiled for a context of `{max_context}`")
    _, vocab_size = compiled.graph.outputs["logits"].shape
    assert isinstance(vocab_size, int), "logits have a symbolic number of columns"
    for token_id in token_ids:
        if not 0 <= token_id < vocab_size:
            raise UsageError(f"token `{token_id}` is outside the vocabulary of `{vocab_size}`")


def block_tables(compiled: Program, num_tokens: int) -> tuple[list[list[int]], int]:
    """A block table per cache group, one group's blocks after the other's, and the bytes of all. States are written
    where they are read."""
    tables, offset = [], 0
    for layout in compiled.cache_layout:
        assert layout.block_bytes % OFFSET_UNIT == 0, f"a block of {BLOCK_TOKENS} tokens does not fill its units"
        end = offset + (layout.num_states or blocks_for(num_tokens)) * layout.block_bytes
        table = [start // OFFSET_UNIT for start in range(offset, end, layout.block_bytes)]
        tables.append(table * 2 if layout.num_states else table)
        offset = end
    return tables, max(offset, OFFSET_UNIT)


def num_states(compiled: Program) -> list[int]:
    """Per cache group, for `_native.StepInput`."""
    return [layout.num_states for layout in compiled.cache_layout]


def _read(program: ReadableProgram, name: str, index: int) -> memoryview[float]:
    columns = program.program.value(name).shape[1]
    assert isinstance(columns, int), f"{name} has a symbolic number of columns"
    return program.row(name, index)[: columns * _FLOAT_BYTES].cast("f")
