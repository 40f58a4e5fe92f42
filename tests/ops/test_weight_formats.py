"""Packed weights: nothing is lost, nothing is widened, and single rows can be read out of the panels."""

from __future__ import annotations

import numpy as np
import pytest

from pelton import _native

from .products import FLOAT_FORMATS, FORMATS, K_QUANTS, LEVELS, format_number, random_weights, run, unpacked


@pytest.mark.parametrize("format", FORMATS)
def test_unpacked_weights_are_bitwise_the_formats_values(format: str) -> None:
    # A whole panel and one that is not full; for f16 and bf16 also an odd K.
    k = 512 if format not in FLOAT_FORMATS else 67
    weights = random_weights(format, 21, k)
    assert np.array_equal(unpacked(weights).view(np.uint32), weights.values.view(np.uint32))


@pytest.mark.parametrize("format", FORMATS)
def test_packed_weights_keep_their_stored_width(format: str) -> None:
    # Scales of 6 bits may take 8: at most 4 % of a K-quant. (At this K no panel needs padding to 64 bytes.)
    weights = random_weights(format, 32, 1024)
    allowance = 1.04 if format in K_QUANTS else 1.0
    assert weights.raw.nbytes <= _native.packed_bytes(format, 32, 1024) <= weights.raw.nbytes * allowance


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("format", FORMATS)
def test_embedding_reads_rows_out_of_panels(format: str, level: str) -> None:
    table = random_weights(format, 37, 256)
    token_ids = [0, 36, 15, 16, 36, 1]
    sizes = [format_number(format), 37, 256, 260]
    for factor in (1.0, 16.970562):
        out = np.zeros((6, 260), np.float32)
        run(level, "embedding", 6, [table.packed, out], sizes, [factor], token_ids=token_ids)
        assert np.array_equal(out[:, :256], table.values[token_ids] * np.float32(factor))
        assert not out[:, 256:].any()
