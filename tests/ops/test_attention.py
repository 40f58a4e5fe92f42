"""Native attention against float64, and a row's bits against everything that must not matter to them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tests.ops.native_kernels import EPSILON, LEVELS, Array, Node, Rows, bits, run, team, zeros
from tests.ops.paged_cache import (
    BLOCK_TOKENS,
    PagedCache,
    Schedule,
    Shape,
    Tokens,
    attend,
    attention_nodes,
    prepare_node,
    workspace_bytes,
)

SHAPES = [
    Shape(9, 3, 64),
    Shape(3, 3, 64, kv_type="f16"),
    Shape(4, 1, 80, window=40, kv_type="f32"),
    Shape(7, 1, 96),
    Shape(10, 5, 128, window=7),
    Shape(16, 1, 16),
    Shape(1, 1, 256, kv_type="f16"),
    Shape(6, 3, 24, window=300),
    Shape(5, 1, 20),
    Shape(2, 2, 8, kv_type="f32"),
]
# Lengths around the edges of blocks (16), of units of rows, and of splits (256).
LENGTHS = (1, 17, 300, 33)


def whole(lengths: tuple[int, ...]) -> Schedule:
    """Every prompt at once, all in one step."""
    return [list(enumerate(lengths))]


def pieces_of(length: int, size: int, first: int = 0) -> Schedule:
    """One sequence in chunks, after `first` tokens at once."""
    start = [[(0, first)]] if first else []
    return [*start, *([(0, min(size, length - at))] for at in range(first, length, size))]


def name(shape: Shape) -> str:
    return f"{shape.heads}over{shape.kv_heads}x{shape.head_dim}w{shape.window}{shape.kv_type}"


def reference(shape: Shape, tokens: Tokens) -> tuple[Array, Array]:
    """Outputs in float64, and the largest error that float32 arithmetic in any order may make of each.

    A score is a chain of head_dim products of a query that was scaled (one more rounding): off by at most
    (head_dim + 1) * sum |q * scale| |k| roundings, the subtraction of the maximum by one rounding of the difference.
    exp turns the absolute error of an exponent into a relative one of a weight, in numerator and sum alike, and adds
    2 of its own; merging splits scales both by two more exponentials. Sums over T tokens add T roundings each.
    """
    length, group = len(tokens), shape.heads // shape.kv_heads
    query = tokens.query.astype(np.float64).reshape(length, shape.heads, shape.head_dim) * shape.scale
    keys, values = (
        np.repeat(shape.rounded(x).reshape(length, shape.kv_heads, shape.head_dim), group, axis=1)
        for x in (tokens.key, tokens.value)
    )
    own, other = np.arange(length)[:, None], np.arange(length)[None, :]
    hidden = (other > own) | ((other <= own - shape.window) if shape.window else False)
    scores = np.where(hidden, -np.inf, np.einsum("qhd,thd->hqt", query, keys))
    spread = np.where(hidden, 0, scores.max(axis=-1, keepdims=True) - scores).max(axis=-1)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    magnitude = np.where(hidden, 0, np.einsum("qhd,thd->hqt", abs(query), abs(keys))).max(axis=-1)
    exponent_error = 2 * (shape.head_dim + 1) * magnitude + spread
    visible = (~hidden).sum(axis=-1)
    relative = 2 * exponent_error + 2 * visible + 16
    bound = np.einsum("hqt,thd->qhd", weights, abs(values)) * relative.T[..., None] * EPSILON
    out = np.einsum("hqt,thd->qhd", weights, values)
    return out.reshape(length, -1), bound.reshape(length, -1)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("shape", SHAPES, ids=name)
def test_agrees_with_float64(level: str, shape: Shape) -> None:
    sequences = [Tokens.random(shape, length, seed) for seed, length in enumerate(LENGTHS)]
    for tokens, out in zip(sequences, attend(level, shape, sequences, whole(LENGTHS)), strict=True):
        expected, bound = reference(shape, tokens)
        excess = abs(out - expected) - bound
        assert excess.max() <= 0, f"{excess.max()} beyond the bound at {np.unravel_index(excess.argmax(), out.shape)}"


@pytest.mark.parametrize("shape", SHAPES, ids=name)
def test_all_levels_give_the_same_bits(shape: Shape) -> None:
    sequences = [Tokens.random(shape, 290, 1)]
    first, *others = (bits(attend(level, shape, sequences, [[(0, 290)]])[0]) for level in LEVELS)
    for other in others:
        assert np.array_equal(first, other)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("shape", SHAPES, ids=name)
def test_chunks_do_not_matter(level: str, shape: Shape, case_count: Callable[[int, int], int]) -> None:
    length, first = 275, case_count(225, 0)
    tokens = Tokens.random(shape, length, 2)
    expected = bits(attend(level, shape, [tokens], [[(0, length)]])[0])
    for schedule in (pieces_of(length, 1, first), pieces_of(length, 3, first), pieces_of(length, 64)):
        assert np.array_equal(bits(attend(level, shape, [tokens], schedule)[0]), expected)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("shape", SHAPES[:6], ids=name)
def test_other_sequences_do_not_matter(level: str, shape: Shape) -> None:
    sequences = [Tokens.random(shape, length, 10 + seed) for seed, length in enumerate(LENGTHS)]
    alone = [attend(level, shape, [tokens], [[(0, len(tokens))]])[0] for tokens in sequences]
    mixed = [[(2, 200), (0, 1)], [(1, 5), (2, 60)], [(3, 33), (2, 1), (1, 1)], [(1, 11), (2, 39)]]
    for schedule in (whole(LENGTHS), mixed):
        for one, among in zip(alone, attend(level, shape, sequences, schedule), strict=True):
            assert np.array_equal(bits(one), bits(among))


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("shape", [Shape(6, 2, 32), Shape(3, 1, 40, window=300)], ids=name)
def test_threads_do_not_matter(level: str, shape: Shape) -> None:
    # The last steps are one or two rows at a long context, which threads share by splits and merge.
    tokens = [Tokens.random(shape, 600, 3), Tokens.random(shape, 20, 4)]
    schedule: Schedule = [[(0, 560), (1, 19)], [(0, 38)], [(0, 1)], [(0, 1), (1, 1)]]
    expected = attend(level, shape, tokens, schedule, num_threads=1)
    for num_threads in (2, 3):
        for one, other in zip(expected, attend(level, shape, tokens, schedule, num_threads), strict=True):
            assert np.array_equal(bits(one), bits(other)), num_threads


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("extra_workspace", [0, 1000, 4000])
def test_a_small_workspace_changes_nothing_but_the_cut(level: str, extra_workspace: int) -> None:
    shape = Shape(2, 2, 16)
    tokens = [Tokens.random(shape, 1040, 5)]
    schedule: Schedule = [[(0, 1036)], [(0, 2)], [(0, 2)]]
    expected = attend(level, shape, tokens, schedule, num_threads=2)[0]
    cut = attend(level, shape, tokens, schedule, num_threads=2, extra_workspace=extra_workspace)[0]
    assert np.array_equal(bits(expected), bits(cut))


@pytest.mark.parametrize("level", LEVELS)
def test_a_broken_row_spoils_no_earlier_row_and_no_other_sequence(level: str) -> None:
    shape = Shape(6, 2, 48)
    sequences = [Tokens.random(shape, 60, 6), Tokens.random(shape, 30, 7)]
    expected = attend(level, shape, sequences, whole((60, 30)))
    for value in (np.nan, np.inf):
        for part in (sequences[0].query, sequences[0].key, sequences[0].value):
            part[41] = value
        broken = attend(level, shape, sequences, whole((60, 30)))
        assert np.array_equal(bits(broken[0][:41]), bits(expected[0][:41]))
        assert np.array_equal(bits(broken[1]), bits(expected[1]))
        assert np.isnan(broken[0][41:]).all()


@pytest.mark.parametrize("level", LEVELS)
def test_queries_of_any_stride(level: str) -> None:
    shape = Shape(4, 2, 32)
    tokens = Tokens.random(shape, 40, 8)
    expected = attend(level, shape, [tokens], [[(0, 40)]])[0]
    cache = PagedCache(shape, [40])
    wide, out = zeros(40, 128 + 24), zeros(40, 128 + 8)
    wide[:] = np.nan
    wide[:, :128] = tokens.query
    workspace = zeros(workspace_bytes(shape, 40, 40, 2) // 4)
    nodes = [prepare_node(shape, cache, [wide, tokens.key, tokens.value])]
    nodes += attention_nodes(shape, cache, wide, out, workspace)
    with team(2) as workers:
        run(workers, level, nodes, [Rows(40, 0, [cache.tables[0]])], cache.pool)
    assert np.array_equal(bits(out[:, :128]), bits(expected))
    assert not out[:, 128:].any()


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("num_threads", [1, 2])
def test_quantised_output_is_the_output_quantised(level: str, num_threads: int) -> None:
    shape = Shape(9, 3, 64)
    contexts, columns = [(1, 700), (20, 3), (1, 0)], 576
    cache = PagedCache(shape, [rows + context for rows, context in contexts])
    draw = np.random.default_rng(9)
    # The context is any finite memory: bytes below 0x80 are finite bf16 of either size.
    cache.bytes[:] = draw.integers(0, 0x40, len(cache.bytes))
    rows = [Rows(n, context, [cache.tables[i]]) for i, (n, context) in enumerate(contexts)]
    query, out = draw.standard_normal((22, columns), np.float32), zeros(22, columns)
    workspace = zeros(workspace_bytes(shape, 22, 701, num_threads) // 4)
    for mode in (1, 2):
        fused, alone = zeros(22, columns * 4), zeros(22, columns * 4)
        nodes = attention_nodes(shape, cache, query, out, workspace, fused, mode)
        nodes.append(Node("quantise", [out, alone], [columns, columns, mode]))
        with team(num_threads) as workers:
            run(workers, level, nodes, rows, cache.pool)
            run(workers, level, nodes, rows, cache.pool)  # the workspace is as good for the next layer
        assert bits(fused).any()
        assert np.array_equal(bits(fused), bits(alone))


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("shape", SHAPES, ids=name)
def test_keys_and_values_stand_in_the_cache_rounded_to_its_type(level: str, shape: Shape) -> None:
    contexts = (0, 5, 31)
    sequences = [Tokens.random(shape, context + 20, 20 + context) for context in contexts]
    cache = PagedCache(shape, [len(tokens) for tokens in sequences])
    arrays = [
        np.concatenate([getattr(tokens, part)[-20:] for tokens in sequences]) for part in ("query", "key", "value")
    ]
    rows = [Rows(20, context, [table]) for context, table in zip(contexts, cache.tables, strict=True)]
    before = cache.bytes.copy()
    with team(2) as workers:
        run(workers, level, [prepare_node(shape, cache, arrays)], rows, cache.pool)
    for index, tokens in enumerate(sequences):
        for position in range(contexts[index], len(tokens)):
            for stored, exact in zip(cache.read(index, position), (tokens.key, tokens.value), strict=True):
                expected = shape.rounded(exact[position]).reshape(stored.shape)
                assert np.array_equal(_float64(stored, shape), expected)
    written = 60 * 2 * shape.kv_heads * shape.head_dim * (4 if shape.kv_type == "f32" else 2)
    assert np.count_nonzero(cache.bytes != before) <= written
    assert BLOCK_TOKENS == 16


def _float64(stored: Array, shape: Shape) -> Array:
    if shape.kv_type == "bf16":
        return (stored.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    kind = np.float16 if shape.kv_type == "f16" else np.float32
    return np.ascontiguousarray(stored).view(kind).astype(np.float64)
