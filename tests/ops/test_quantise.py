"""Quantised activations are bitwise those of the written definition (csrc/kernels/activation_blocks.h)."""

from __future__ import annotations

import numpy as np
import pytest

from .products import EXACT, LEVELS, OUTLIER, Floats, QuantisedRows, quantised, random_rows, read_blocks

SMALLEST = np.float32(2.0**-126)


def reference(x: Floats, mode: int) -> QuantisedRows:
    """The definition in numpy, group by group, in float32."""
    groups = x.reshape(len(x), -1, 32)
    q = np.zeros(groups.shape, np.int64)
    scale = np.zeros(groups.shape[:2], np.float32)
    for index in np.ndindex(*groups.shape[:2]):
        group = groups[index]
        quads = np.abs(group).reshape(8, 4).max(1)
        if not np.isfinite(group).all():
            scale[index] = np.nan
            continue
        wide = quads.max() / np.float32(16319)
        others = np.delete(quads, quads.argmax()).max() / np.float32(127)
        candidate = max(wide, others) if mode == OUTLIER else wide
        if candidate >= SMALLEST:
            scale[index] = candidate
            q[index] = np.rint(group * (np.float32(1) / candidate))
    half_sum = q.reshape(*q.shape[:2], 2, 16).sum(-1).astype(np.int32)
    total = half_sum.sum(-1, dtype=np.int32)
    return QuantisedRows(q, scale, scale * total.astype(np.float32), total, half_sum)


def difficult_rows() -> Floats:
    x = random_rows(9, 9 * 32)  # groups are quantised four at a time: two fours and one alone
    x[1] = 0
    x[2] *= np.float32(1e-38)  # some groups below the smallest scale
    x[3] *= np.float32(1e36)
    x[4, 5], x[4, 40], x[4, 70] = np.nan, np.inf, -np.inf
    x[5, :32] = 1  # every quad holds the maximum
    x[6, 32:64] = 0
    x[6, 63] = -3  # a group of one value
    x[7, 20] = 5000  # an outlier that sets the scale
    return x


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("mode", [OUTLIER, EXACT])
def test_blocks_are_bitwise_the_definition(level: str, mode: int) -> None:
    x = difficult_rows()
    found, expected = read_blocks(quantised(level, x, mode), mode), reference(x, mode)
    assert np.array_equal(found.q, expected.q)
    assert np.array_equal(found.sum, expected.sum)
    assert np.array_equal(found.half_sum, expected.half_sum)
    assert np.array_equal(found.scale, expected.scale, equal_nan=True)
    assert np.array_equal(found.scaled_sum, expected.scaled_sum, equal_nan=True)


@pytest.mark.parametrize("mode", [OUTLIER, EXACT])
def test_blocks_have_the_same_bytes_on_every_level(mode: int) -> None:
    x = random_rows(7, 576)
    assert len({quantised(level, x, mode).tobytes() for level in LEVELS}) == 1


def test_values_are_near_their_rows() -> None:
    # Half a step, and half a unit of the multiplication by the reciprocal: 16319 * 2^-23 steps at most.
    x = random_rows(5, 576)
    for mode in (OUTLIER, EXACT):
        rows = read_blocks(quantised(LEVELS[0], x, mode), mode)
        error = np.abs(rows.values - x).reshape(rows.q.shape)
        assert (error <= rows.scale[..., None] * (0.5 + 16319 * 2.0**-23)).all()
