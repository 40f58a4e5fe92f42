"""Runs a compiled example on a platform and reads back everything that it computed, as float64."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from pelton import _native
from pelton.graph.graph import CacheLayer, StateLayer, Value, columns
from pelton.graph.kernel import CompileSettings
from pelton.graph.program import Program
from pelton.platforms.cpu.platform import CpuPlatform
from pelton.platforms.cpu.program import CpuProgram, WeightPlace
from pelton.platforms.platform import Platform
from pelton.platforms.torch.kernels import TorchKernel
from pelton.platforms.torch.platform import TorchPlatform
from tests.ops.data import Array, Case, DenseCache

BLOCK_TOKENS = 16
KV_TORCH = {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32}


def platforms() -> list[Platform]:
    return [CpuPlatform(), TorchPlatform(torch.float32)]


def load_weight(place: WeightPlace, raw: bytes, team: _native.Team) -> None:
    """Packs a tensor's bytes where the program wants them."""
    packing = place.packing
    if packing.layout == "vector":
        with memoryview(place.buffer) as view:
            view[place.offset : place.offset + len(raw)] = raw
        return
    n, k = packing.shape
    fd = os.memfd_create("tensor")
    try:
        os.write(fd, raw)
        reads = _native.WeightReads()
        reads.add_matrix(packing.format, fd, 0, n, k, place.buffer, place.offset)
        reads.run(team)
    finally:
        os.close(fd)


def run_on_tensors(program: Program, case: Case) -> dict[Value, Any]:
    """Every value of the program. Writes to the case's cache."""
    graph = program.graph
    values: dict[Value, Any] = {graph.inputs[name]: case.inputs[name] for name in graph.inputs}
    values.update({graph.parameters[name]: torch.from_numpy(weight) for name, (_, weight) in case.weights.items()})
    for group in program.groups:
        assert isinstance(group.kernel, TorchKernel)
        outputs = group.kernel.run(group, case.step, [values[value] for value in group.inputs])
        values.update(zip(group.members[-1].outputs, outputs, strict=True))
    return values


class CpuMachine:
    """A program in memory, with weights, inputs and a cache whose unwritten part holds NaN."""

    def __init__(self, program: Program, num_threads: int = 2) -> None:
        self.program = program
        self.team = _native.Team(num_threads)
        self.cpu = CpuProgram(program, self.team)
        blocks = [layout.block_bytes for layout in program.cache_layout]
        self.pool = _native.Buffer(max(64 * BLOCKS_PER_GROUP * sum(blocks) // 64, 64), "cache")
        with memoryview(self.pool) as view:
            view[:] = b"\xff" * self.pool.nbytes

    def close(self) -> None:
        self.cpu.close()
        self.pool.close()
        self.team.close()

    def load(self, weights: Mapping[str, bytes]) -> None:
        for place in self.cpu.weight_places:
            load_weight(place, weights[place.packing.parameter], self.team)

    def write(self, value: Value, rows: Any) -> None:
        self._rows(value).view(rows.numpy().dtype)[: len(rows), : rows.shape[1]] = rows.numpy()

    def read(self, value: Value, num_rows: int) -> Any:
        """As float64; quantised blocks as what they stand for."""
        rows = self._rows(value)[:num_rows]
        if value.dtype == "int32":
            return torch.from_numpy(rows[:, : columns(value)].view(np.int32).copy())
        if value.dtype == "float32":
            return torch.from_numpy(rows[:, : columns(value)].astype(np.float64))
        return torch.from_numpy(decode_blocks(rows.view(np.uint8), value.dtype))

    def bits(self, value: Value, num_rows: int) -> bytes:
        return self._rows(value)[:num_rows, : columns(value)].tobytes()

    def _rows(self, value: Value) -> Array:
        place = self.program.places[value]
        start, stop = place.offset, place.offset + place.nbytes
        return np.frombuffer(self.cpu.arena, np.uint8)[start:stop].reshape(place.num_rows, -1).view(np.float32)

    def tables(self, sequence: int, num_tokens: int) -> list[list[int]]:
        """Blocks of a sequence per group in units of 64 bytes, later ones before earlier ones."""
        tables, base = [], 0
        count = -(-num_tokens // BLOCK_TOKENS)
        for layout in self.program.cache_layout:
            unit = layout.block_bytes // 64
            if layout.num_states:  # read and written in one place
                first = sequence * BLOCKS_PER_SEQUENCE
                tables.append([base + (first + index) * unit for index in range(layout.num_states)] * 2)
                base += BLOCKS_PER_GROUP * unit
                continue
            last = (sequence + 1) * BLOCKS_PER_SEQUENCE - 1
            tables.append([base + (last - index) * unit for index in range(count)])
            base += BLOCKS_PER_GROUP * unit
        return tables

    def kv(self, layer: CacheLayer, sequence: int, num_tokens: int) -> list[tuple[Any, Any]]:
        """Per block, views of keys as [kv_heads, head_dim, 16] and values as [kv_heads, 16, head_dim]."""
        dtype = KV_TORCH[self.program.settings.kv_dtype]
        size = BLOCK_TOKENS * layer.num_kv_heads * layer.head_dim * dtype.itemsize
        pool = torch.from_numpy(np.frombuffer(self.pool, np.uint8))
        starts = self.program.cache_layout[layer.group].offsets[layer.layer]
        blocks = []
        for offset in self.tables(sequence, num_tokens)[layer.group]:
            keys, values = (pool[64 * offset + start :][:size].view(dtype) for start in starts)
            blocks.append(
                (
                    keys.view(layer.num_kv_heads, layer.head_dim, BLOCK_TOKENS),
                    values.view(layer.num_kv_heads, BLOCK_TOKENS, layer.head_dim),
                )
            )
        return blocks

    def fill_cache(self, cache: DenseCache) -> None:
        for (state_layer, sequence), state in cache.states.items():
            self.state(state_layer, sequence).copy_(state)
        for (layer, sequence), (keys, values) in cache.kept.items():
            for index, (key_block, value_block) in enumerate(self.kv(layer, sequence, len(keys))):
                part = slice(index * BLOCK_TOKENS, min((index + 1) * BLOCK_TOKENS, len(keys)))
                count = part.stop - part.start
                key_block[:, :, :count] = keys[part].permute(1, 2, 0).to(key_block.dtype)
                value_block[:, :count] = values[part].permute(1, 0, 2).to(value_block.dtype)

    def state(self, layer: StateLayer, sequence: int) -> Any:
        """A view of the float32 of a layer's state."""
        start = 64 * self.tables(sequence, 0)[layer.group][layer.layer]
        pool = torch.from_numpy(np.frombuffer(self.pool, np.uint8))
        return pool[start : start + 4 * layer.num_floats].view(torch.float32)

    def read_cache(self, layer: CacheLayer, sequence: int, num_tokens: int) -> tuple[Any, Any]:
        """Keys and values, [tokens, kv_heads, head_dim]."""
        blocks = self.kv(layer, sequence, num_tokens)
        keys = torch.cat([keys.permute(2, 0, 1) for keys, _ in blocks])[:num_tokens]
        values = torch.cat([values.permute(1, 0, 2) for _, values in blocks])[:num_tokens]
        return keys.to(torch.float64), values.to(torch.float64)

    def run(
        self, token_ids: list[int], positions: list[int], lengths: list[tuple[int, int]], logit_rows: list[int]
    ) -> None:
        """lengths: (rows, context) per sequence."""
        sequences, first_row = [], 0
        for index, (rows, context) in enumerate(lengths):
            sequences.append((first_row, rows, context, self.tables(index, context + rows)))
            first_row += rows
        num_states = [layout.num_states for layout in self.program.cache_layout]
        step = _native.StepInput(token_ids, positions, sequences, logit_rows, self.pool, num_states)
        self.cpu.native.run(step)


BLOCKS_PER_SEQUENCE = 40
BLOCKS_PER_GROUP = 8 * BLOCKS_PER_SEQUENCE


@contextmanager
def cpu_machine(program: Program, num_threads: int = 2) -> Iterator[CpuMachine]:
    machine = CpuMachine(program, num_threads)
    try:
        yield machine
    finally:
        machine.close()


def decode_blocks(rows: Array, dtype: str) -> Array:
    """Values of quantised activations (csrc/kernels/activation_blocks.h), [rows, columns] float64."""
    size = 64 if dtype == "blocks_outlier" else 128
    blocks = rows.reshape(-1, size)
    codes = blocks[:, :32].copy().view(np.int8).astype(np.int64)
    if dtype == "blocks_outlier":
        high = blocks[:, 32:36].copy().view(np.int8).astype(np.int64)
        quads = blocks[:, 36:40].copy().view(np.int32)
        np.add.at(codes, (np.arange(len(blocks))[:, None], 4 * quads + np.arange(4)), 128 * high)
        scale = blocks[:, 44:48].copy().view(np.float32)
    else:
        codes += 128 * blocks[:, 32:64].copy().view(np.int8).astype(np.int64)
        scale = blocks[:, 64:68].copy().view(np.float32)
    return (codes * scale.astype(np.float64)).reshape(len(rows), -1)


def settings_for_case(case: Case, provider: str, kv_dtype: str) -> CompileSettings:
    quantised = {f"{value.name}.quantise" for value in case.node.inputs if value.name in case.graph.inputs}
    longest = max(rows + context for rows, context in case.example.sequences)
    return CompileSettings(
        formats=case.formats,
        max_tokens=max(case.step.num_tokens, 1),
        max_context=longest,
        kv_dtype=kv_dtype,
        providers=(provider,),
        capture=frozenset(quantised),
    )
