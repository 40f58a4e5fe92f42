"""A recurrent layer's tokens give the same bits however a step cuts them up, whoever else is there, on any threads."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from pelton import _native
from pelton.graph.ops import DeltaSizes
from tests.ops.native_kernels import LEVELS, Array, Node, Rows, bits, run, team, zeros

LAYERS, LAYER = 2, 1
SIZES = (
    DeltaSizes(2, 4, 32, 48, 4, False, True),
    DeltaSizes(2, 6, 20, 13, 3, True, False),
    DeltaSizes(1, 1, 128, 128, 4, False, False),
)
Schedule = Sequence[Sequence[tuple[int, int]]]  # per step: (sequence, rows)


def name(sizes: DeltaSizes) -> str:
    return f"heads{sizes.num_key_heads}-{sizes.num_value_heads}_dims{sizes.key_head_dim}-{sizes.value_head_dim}"


class Layer:
    """Random tokens of some sequences, parameters, and blocks for their states: every byte 0xff before it is written,
    which is NaN. Table entries [0, 2) are read, [2, 4) written; `moves` says whether these are other blocks."""

    def __init__(self, sizes: DeltaSizes, lengths: Sequence[int], moves: bool = False) -> None:
        self.sizes = sizes
        heads = sizes.num_value_heads
        self.widths = (sizes.conv_columns, sizes.value_columns, heads, heads)
        draws = [np.random.default_rng(7 + index) for index in range(len(lengths))]
        self.tokens = [
            [draw.standard_normal((length, width), np.float32) * 1.5 for width in self.widths]
            for draw, length in zip(draws, lengths, strict=True)
        ]
        draw = np.random.default_rng(3)
        counts = (sizes.conv_kernel * sizes.conv_columns, heads, heads, sizes.value_head_dim)
        self.parameters = [draw.standard_normal(count, np.float32) * 0.5 for count in counts]
        if not sizes.has_log_decay:
            self.parameters[1] = -np.abs(self.parameters[1])
        self.unit = -(-4 * sizes.state_floats // 64)
        self.pool = _native.Buffer(64 * self.unit * 2 * LAYERS * len(lengths), "states")
        self.bytes = np.frombuffer(self.pool, np.uint8)
        self.bytes[:] = 0xFF
        self.moves = moves
        self.written = [0] * len(lengths)  # which of a sequence's two sets of blocks holds its states

    def blocks(self, sequence: int, which: int) -> list[int]:
        return [self.unit * (LAYERS * (2 * sequence + which) + layer) for layer in range(LAYERS)]

    def state(self, sequence: int) -> Array:
        start = 64 * self.blocks(sequence, self.written[sequence])[LAYER]
        return self.bytes[start : start + 4 * self.sizes.state_floats].view(np.uint32).copy()

    def table(self, sequence: int) -> list[int]:
        read = self.written[sequence]
        write = 1 - read if self.moves else read
        self.written[sequence] = write
        return [*self.blocks(sequence, read), *self.blocks(sequence, write)]


def apply(level: str, layer: Layer, schedule: Schedule, num_threads: int = 2) -> list[Array]:
    """Each sequence's rows after all steps."""
    sizes = layer.sizes
    done = [0] * len(layer.tokens)
    outputs: list[list[Array]] = [[] for _ in layer.tokens]
    with team(num_threads) as workers:
        for step in schedule:
            parts = [(sequence, slice(done[sequence], done[sequence] + rows)) for sequence, rows in step]
            inputs = [np.concatenate([layer.tokens[s][index][part] for s, part in parts]) for index in range(4)]
            out = zeros(len(inputs[0]), sizes.value_columns)
            numbers = (sizes.num_key_heads, sizes.num_value_heads, sizes.key_head_dim, sizes.value_head_dim)
            flags = (sizes.conv_kernel, int(sizes.is_tiled), int(sizes.has_log_decay))
            strides = (*layer.widths, sizes.value_columns)
            node = Node(
                "gated_delta",
                [*inputs, *layer.parameters, out],
                [*numbers, *flags, *strides, 0, LAYER, LAYERS],
                [1e-6],
            )
            rows = [Rows(part.stop - part.start, part.start, [layer.table(s)]) for s, part in parts]
            run(workers, level, [node], rows, layer.pool, num_states=[LAYERS])
            first = 0
            for s, part in parts:
                done[s] = part.stop
                outputs[s].append(out[first : first + part.stop - part.start])
                first += part.stop - part.start
    return [np.concatenate(rows) for rows in outputs]


def cut(length: int, size: int) -> Schedule:
    return [[(0, min(size, length - start))] for start in range(0, length, size)]


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("sizes", SIZES, ids=name)
def test_chunks_of_any_size_give_the_same_rows_and_state(level: str, sizes: DeltaSizes) -> None:
    length = 75
    whole = Layer(sizes, [length])
    expected = apply(level, whole, cut(length, length))[0]
    assert np.isfinite(expected).all()
    for size in (1, 2, 3, 31, 32, 64):
        chunked = Layer(sizes, [length])
        assert np.array_equal(bits(apply(level, chunked, cut(length, size))[0]), bits(expected)), f"chunks of {size}"
        assert np.array_equal(chunked.state(0), whole.state(0)), f"chunks of {size}"


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("sizes", SIZES, ids=name)
@pytest.mark.parametrize("num_threads", [1, 2])
def test_rows_do_not_depend_on_other_sequences_or_threads(level: str, sizes: DeltaSizes, num_threads: int) -> None:
    lengths = [40, 7, 33]
    together = Layer(sizes, lengths)
    schedule = [[(0, 13), (2, 1)], [(1, 6), (0, 26), (2, 31)], [(2, 1), (0, 1), (1, 1)]]
    mixed = apply(level, together, schedule, num_threads)
    for sequence in range(len(lengths)):
        alone = Layer(sizes, lengths)
        own = [[(sequence, rows)] for step in schedule for s, rows in step if s == sequence]
        others = [[(s, lengths[s])] for s in range(len(lengths)) if s != sequence]
        only = apply(level, alone, own + others)
        assert np.array_equal(bits(mixed[sequence]), bits(only[sequence]))
        assert np.array_equal(together.state(sequence), alone.state(sequence))


@pytest.mark.parametrize("level", LEVELS)
def test_what_is_read_stays_when_the_state_is_written_elsewhere(level: str) -> None:
    in_place, moving = Layer(SIZES[0], [20]), Layer(SIZES[0], [20], moves=True)
    expected = apply(level, in_place, cut(20, 10))[0]
    first = Layer(SIZES[0], [20], moves=True)
    apply(level, first, cut(10, 10))
    checkpoint = first.state(0)
    assert np.array_equal(bits(apply(level, moving, cut(20, 10))[0]), bits(expected))
    assert np.array_equal(moving.state(0), in_place.state(0))
    moving.written[0] = 1 - moving.written[0]
    assert np.array_equal(moving.state(0), checkpoint)


def test_levels_agree() -> None:
    """All compute in one order of operations, so that a state could move between machines."""
    for sizes in SIZES:
        layers = [Layer(sizes, [50]) for _ in LEVELS]
        rows = [bits(apply(level, layer, cut(50, 20))[0]) for level, layer in zip(LEVELS, layers, strict=True)]
        assert all(np.array_equal(rows[0], other) for other in rows[1:])
        assert all(np.array_equal(layers[0].state(0), other.state(0)) for other in layers[1:])
