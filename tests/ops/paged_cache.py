"""A paged KV cache and the steps that go through it, for tests of the native attention kernels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from pelton import _native
from tests.ops.native_kernels import Array, Node, Rows, run, team, zeros

BLOCK_TOKENS = 16
NO_BLOCK = 0xFFFFFFFF
KV_TYPES = {"bf16": (0, 2, torch.bfloat16), "f16": (1, 2, torch.float16), "f32": (2, 4, torch.float32)}
Schedule = Sequence[Sequence[tuple[int, int]]]  # per step: (sequence, rows)


@dataclass(frozen=True)
class Shape:
    """One attention layer."""

    heads: int
    kv_heads: int
    head_dim: int
    window: int = 0
    kv_type: str = "bf16"

    @property
    def scale(self) -> float:
        return self.head_dim**-0.5

    @property
    def half_bytes(self) -> int:
        """Keys, or values, of one block and layer, on whole cache lines."""
        return -(-self.kv_heads * self.head_dim * BLOCK_TOKENS * KV_TYPES[self.kv_type][1] // 64) * 64

    def rounded(self, x: Array) -> Array:
        """As the cache keeps it, in float64."""
        kept: Array = torch.from_numpy(x).to(KV_TYPES[self.kv_type][2]).to(torch.float64).numpy()
        return kept


@dataclass
class Tokens:
    """A sequence's queries, keys and values: [tokens, heads * head_dim] float32."""

    query: Array
    key: Array
    value: Array

    @classmethod
    def random(cls, shape: Shape, length: int, seed: int) -> Tokens:
        draw = np.random.default_rng(seed)
        widths = (shape.heads, shape.kv_heads, shape.kv_heads)
        return cls(*(draw.standard_normal((length, n * shape.head_dim), np.float32) * 1.5 for n in widths))

    def __len__(self) -> int:
        return len(self.query)


class PagedCache:
    """Blocks of two layers in scattered order, every byte 0xff before it is written: NaN in all three types."""

    def __init__(self, shape: Shape, lengths: Sequence[int], seed: int = 0) -> None:
        self.shape = shape
        self.block_bytes = 4 * shape.half_bytes
        counts = [-(-length // BLOCK_TOKENS) for length in lengths]
        order = np.random.default_rng(seed).permutation(sum(counts))
        offsets = iter((order * self.block_bytes // 64).tolist())
        self.tables = [[next(offsets) for _ in range(count)] for count in counts]
        self.pool = _native.Buffer(max(sum(counts), 1) * self.block_bytes, "test")
        self.bytes = np.frombuffer(self.pool, np.uint8)
        self.bytes[:] = 0xFF
        # The second layer: keys, then values.
        self.key_offset, self.value_offset = 2 * shape.half_bytes, 3 * shape.half_bytes

    def free_before(self, sequence: int, position: int) -> None:
        """Gives back the blocks that no token from `position` on sees."""
        first_visible = max(0, position - self.shape.window + 1)
        for block in range(first_visible // BLOCK_TOKENS):
            self.tables[sequence][block] = NO_BLOCK

    def read(self, sequence: int, position: int) -> tuple[Array, Array]:
        """Key and value of a token as they stand there, [kv_heads, head_dim] in the bits of the cache's type."""
        shape, element = self.shape, KV_TYPES[self.shape.kv_type][1]
        block = self.tables[sequence][position // BLOCK_TOKENS] * 64
        count = shape.kv_heads * shape.head_dim * BLOCK_TOKENS * element
        kind = np.uint16 if element == 2 else np.uint32
        slot = position % BLOCK_TOKENS
        halves = [self.bytes[block + at :][:count].view(kind) for at in (self.key_offset, self.value_offset)]
        keys = halves[0].reshape(shape.kv_heads, shape.head_dim, BLOCK_TOKENS)[:, :, slot]
        values = halves[1].reshape(shape.kv_heads, BLOCK_TOKENS, shape.head_dim)[:, slot]
        return keys, values


def prepare_node(
    shape: Shape,
    cache: PagedCache,
    arrays: Sequence[Array],
    norms: Sequence[Array | None] = (None, None),
    table: Array | None = None,
    rotary_dim: int = 0,
    eps: float = 0.0,
) -> Node:
    sizes = [shape.heads, shape.kv_heads, shape.head_dim, rotary_dim, *(array.shape[1] for array in arrays)]
    sizes += [0, cache.key_offset, cache.value_offset, KV_TYPES[shape.kv_type][0]]
    return Node("attention_prepare", [*arrays, *norms, table], sizes, [eps])


def attention_nodes(
    shape: Shape,
    cache: PagedCache,
    query: Array,
    out: Array,
    workspace: Array,
    blocks: Array | None = None,
    mode: int = 0,
) -> list[Node]:
    sizes = [shape.heads, shape.kv_heads, shape.head_dim]
    columns = [query.shape[1], out.shape[1], 0, cache.key_offset, cache.value_offset, shape.window]
    return [
        Node("attention_plan", [workspace], [*sizes, shape.window, workspace.nbytes]),
        Node(
            "attention",
            [query, out, blocks, workspace],
            [*sizes, *columns, KV_TYPES[shape.kv_type][0], mode],
            [shape.scale],
        ),
    ]


def workspace_bytes(shape: Shape, max_tokens: int, max_context: int, num_threads: int) -> int:
    return _native.attention_workspace_bytes(
        max_tokens, max_context, num_threads, shape.heads, shape.kv_heads, shape.head_dim
    )


def attend(
    level: str,
    shape: Shape,
    sequences: Sequence[Tokens],
    schedule: Schedule,
    num_threads: int = 1,
    extra_workspace: int | None = None,
) -> list[Array]:
    """Runs the schedule and returns each sequence's outputs, [tokens, heads * head_dim].

    extra_workspace: bytes for partial results beyond the plan itself; None for the room that the formula gives.
    """
    cache = PagedCache(shape, [len(tokens) for tokens in sequences])
    outputs = [zeros(len(tokens), shape.heads * shape.head_dim) for tokens in sequences]
    done = [0] * len(sequences)
    with team(num_threads) as workers:
        for step in schedule:
            parts = [(index, slice(done[index], done[index] + rows)) for index, rows in step]
            rows = []
            for index, part in parts:
                if shape.window:
                    cache.free_before(index, part.start)
                rows.append(Rows(part.stop - part.start, part.start, [cache.tables[index]]))
            arrays = [
                np.concatenate([getattr(sequences[index], name)[part] for index, part in parts])
                for name in ("query", "key", "value")
            ]
            total = len(arrays[0])
            out = zeros(total, shape.heads * shape.head_dim)
            longest = max(len(tokens) for tokens in sequences)
            nbytes = workspace_bytes(shape, total, longest, num_threads)
            if extra_workspace is not None:
                nbytes = workspace_bytes(shape, total, 1, num_threads) + extra_workspace
            workspace = zeros(nbytes // 4)
            nodes = [prepare_node(shape, cache, arrays), *attention_nodes(shape, cache, arrays[0], out, workspace)]
            run(workers, level, nodes, rows, cache.pool)
            first = 0
            for index, part in parts:
                count = part.stop - part.start
                outputs[index][part] = out[first : first + count]
                first += count
                done[index] = part.stop
    assert done == [len(tokens) for tokens in sequences]
    return outputs
