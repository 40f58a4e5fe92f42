"""The native rotary tables and turns against float64, and the fused preparation of attention against its parts."""

from __future__ import annotations

import numpy as np
import pytest

from tests.ops.native_kernels import EPSILON, LEVELS, Array, Node, Rows, bits, run, run_rows, team, zeros
from tests.ops.paged_cache import PagedCache, Shape, Tokens, prepare_node

POSITIONS = (0, 1, 77, 8191, 131_071, 999_990)
# (heads, head_dim, rotated dimensions)
SIZES = [(3, 64, 64), (1, 256, 256), (2, 80, 32), (2, 96, 96), (4, 40, 20), (2, 20, 20)]


def frequencies(dim: int) -> Array:
    return (1e4 ** (-np.arange(0, dim, 2) / dim)).astype(np.float32)


def table_at(level: str, positions: tuple[int, ...], inv_freq: Array, factor: float = 1.0) -> Array:
    """Rows of cos, then sin, one per position; each position is the only row of a sequence of its own."""
    out = zeros(len(positions), 2 * len(inv_freq))
    node = Node("rope_table", [inv_freq, out], [2 * len(inv_freq)], [factor])
    with team(2) as workers:
        run(workers, level, [node], [Rows(1, position) for position in positions])
    return out


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("factor", [1.0, 1.25])
def test_table_is_right_to_the_last_bit(level: str, factor: float) -> None:
    """cos and sin of the float32 angle: one rounding to float32, one more for the factor."""
    inv_freq = frequencies(64)
    angle = (np.array(POSITIONS, np.float32)[:, None] * inv_freq).astype(np.float64)
    expected = np.concatenate([np.cos(angle), np.sin(angle)], axis=1) * factor
    roundings = 1 if factor == 1 else 2.01
    table = table_at(level, POSITIONS, inv_freq, factor)
    assert (abs(table - expected) <= roundings * EPSILON * abs(expected)).all()


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize(("heads", "head_dim", "dim"), SIZES)
def test_turns_agree_with_float64(level: str, heads: int, head_dim: int, dim: int) -> None:
    """Two products of which one is rounded, and a rounded sum, of numbers below |a| + |b|."""
    draw = np.random.default_rng(dim)
    x = draw.standard_normal((len(POSITIONS), heads * head_dim), np.float32)
    table, half = table_at(level, POSITIONS, frequencies(dim)), dim // 2
    out = zeros(*x.shape)
    node = Node("rope", [x, out, table], [heads, head_dim, dim, x.shape[1], x.shape[1]])
    run_rows(level, [node], len(x))
    parts = x.reshape(len(x), heads, head_dim).astype(np.float64)
    cos, sin = table[:, None, :half].astype(np.float64), table[:, None, half:].astype(np.float64)
    a, b = parts[..., :half], parts[..., half:dim]
    expected = np.concatenate([a * cos - b * sin, b * cos + a * sin, parts[..., dim:]], axis=-1)
    bound = np.zeros_like(expected)
    bound[..., :dim] = np.tile(abs(a) + abs(b), 2) * 2.01 * EPSILON
    assert (abs(out.reshape(expected.shape) - expected) <= bound).all()
    node = Node("rope", [x, x, table], [heads, head_dim, dim, x.shape[1], x.shape[1]])
    run_rows(level, [node], len(x), num_threads=2)
    assert np.array_equal(bits(x), bits(out))


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize(("heads", "head_dim", "dim"), SIZES)
@pytest.mark.parametrize("has_norm", [True, False])
@pytest.mark.parametrize("has_rope", [True, False])
def test_preparation_is_its_parts(
    level: str, heads: int, head_dim: int, dim: int, has_norm: bool, has_rope: bool
) -> None:
    shape, rows, eps = Shape(2 * heads, heads, head_dim, kv_type="f32"), 21, 1e-6
    tokens = Tokens.random(shape, rows, 1)
    draw = np.random.default_rng(2)
    norms = [draw.standard_normal(head_dim, np.float32) for _ in range(2)] if has_norm else [None, None]
    table = table_at(level, tuple(range(rows)), frequencies(dim)) if has_rope else None

    query, key = tokens.query.copy(), tokens.key.copy()
    nodes = []
    for x, count, weight in ((query, 2 * heads, norms[0]), (key, heads, norms[1])):
        stride = x.shape[1]
        if weight is not None:
            nodes.append(Node("rms_norm", [x, weight, x, None], [head_dim, stride, stride, 0, count], [eps]))
        if table is not None:
            nodes.append(Node("rope", [x, x, table], [count, head_dim, dim, stride, stride]))
    run_rows(level, nodes, rows)

    cache, fused = PagedCache(shape, [rows]), tokens.query.copy()
    arrays = [fused, tokens.key, tokens.value]
    with team(2) as workers:
        node = prepare_node(shape, cache, arrays, norms, table, dim if has_rope else 0, eps)
        run(workers, level, [node], [Rows(rows, 0, cache.tables)], cache.pool)
    assert np.array_equal(bits(fused), bits(query))
    for position in range(rows):
        stored_key, stored_value = cache.read(0, position)
        assert np.array_equal(np.ravel(stored_key), bits(key[position]))
        assert np.array_equal(np.ravel(stored_value), bits(tokens.value[position]))
