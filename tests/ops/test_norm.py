"""The native RMS norm against float64, and a row's bits against other rows."""

from __future__ import annotations

import numpy as np
import pytest

from tests.ops.native_kernels import EPSILON, LEVELS, Array, Node, bits, run_rows, zeros

# (vectors per row, columns): whole and broken vectors, fewer and more than the four chains of the sum.
SIZES = [(1, 576), (1, 640), (1, 7), (1, 1000), (9, 64), (3, 80), (2, 256), (5, 8)]
EPS = 1e-5


def normed(level: str, x: Array, weight: Array, vectors: int, num_threads: int = 1) -> Array:
    columns = x.shape[1] // vectors
    out = zeros(*x.shape)
    node = Node("rms_norm", [x, weight, out, None], [columns, x.shape[1], x.shape[1], 0, vectors], [EPS])
    run_rows(level, [node], len(x), num_threads)
    return out


def inputs(vectors: int, columns: int, rows: int = 37) -> tuple[Array, Array]:
    draw = np.random.default_rng(columns)
    x = draw.standard_normal((rows, vectors * columns), np.float32) * draw.uniform(0.01, 30, (rows, 1))
    return x.astype(np.float32), draw.standard_normal(columns, np.float32)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize(("vectors", "columns"), SIZES)
def test_agrees_with_float64(level: str, vectors: int, columns: int) -> None:
    """The sum's chains are at most columns / 64 + 1 long, 2 + 4 more additions follow, then a division, an addition, a
    root and a reciprocal, each halved by the root except the last two; two products end it."""
    x, weight = inputs(vectors, columns)
    parts = x.astype(np.float64).reshape(len(x), vectors, columns)
    expected = parts / np.sqrt((parts**2).mean(axis=-1, keepdims=True) + float(np.float32(EPS))) * weight
    roundings = (columns / 64 + 1 + 6 + 2) / 2 + 2 + 2
    out = normed(level, x, weight, vectors).reshape(parts.shape)
    assert (abs(out - expected) <= abs(expected) * roundings * EPSILON).all()


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize(("vectors", "columns"), SIZES)
def test_a_row_depends_on_itself_alone(level: str, vectors: int, columns: int) -> None:
    x, weight = inputs(vectors, columns)
    together = normed(level, x, weight, vectors, num_threads=2)
    for row in (0, 18, 36):
        assert np.array_equal(bits(normed(level, x[row : row + 1].copy(), weight, vectors)[0]), bits(together[row]))
    x[5] = np.nan
    x[6, 0] = np.inf
    spoiled = normed(level, x, weight, vectors, num_threads=3)
    others = [row for row in range(len(x)) if row not in (5, 6)]
    assert np.array_equal(bits(spoiled[others]), bits(together[others]))
    assert np.isnan(spoiled[5]).all()


@pytest.mark.parametrize(("vectors", "columns"), SIZES)
def test_all_levels_give_the_same_bits(vectors: int, columns: int) -> None:
    x, weight = inputs(vectors, columns)
    first, *others = (bits(normed(level, x, weight, vectors)) for level in LEVELS)
    for other in others:
        assert np.array_equal(first, other)


@pytest.mark.parametrize("level", LEVELS)
def test_strides_place_and_columns_between_rows_stay(level: str) -> None:
    x, weight = inputs(2, 24, rows=5)
    expected = normed(level, x, weight, 2)
    wide, out = zeros(5, 60), zeros(5, 50)
    wide[:] = np.nan
    wide[:, :48] = x
    run_rows(level, [Node("rms_norm", [wide, weight, out, None], [24, 60, 50, 0, 2], [EPS])], 5)
    assert np.array_equal(bits(out[:, :48]), bits(expected))
    assert not out[:, 48:].any()
    run_rows(level, [Node("rms_norm", [wide, weight, wide, None], [24, 60, 60, 0, 2], [EPS])], 5)
    assert np.array_equal(bits(wide[:, :48]), bits(expected))


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("mode", [1, 2])
@pytest.mark.parametrize("keeps_floats", [True, False])
def test_blocks_are_the_norm_quantised(level: str, mode: int, keeps_floats: bool) -> None:
    x, weight = inputs(1, 576)
    expected = normed(level, x, weight, 1)
    alone, fused, out = zeros(37, 576 * 4), zeros(37, 576 * 4), zeros(37, 576)
    run_rows(level, [Node("quantise", [expected, alone], [576, 576, mode])], 37)
    node = Node("rms_norm", [x, weight, out if keeps_floats else None, fused], [576, 576, 576, mode, 1], [EPS])
    run_rows(level, [node], 37, num_threads=2)
    assert bits(fused).any()
    assert np.array_equal(bits(fused), bits(alone))
    if keeps_floats:
        assert np.array_equal(bits(out), bits(expected))
