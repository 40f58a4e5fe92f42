"""Linear products against a float64 reference that includes the quantisation of the activations, and bit for bit
against themselves under every change of rows, threads and levels."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from .products import (
    EXACT,
    FLOAT_FORMATS,
    FORMATS,
    K_QUANTS,
    LEVELS,
    NO_MODE,
    OUTLIER,
    UNIT_ROUNDOFF,
    Doubles,
    Floats,
    Weights,
    format_number,
    linear,
    linear_input,
    modes,
    quantised,
    random_rows,
    random_weights,
    read_blocks,
    run,
)

CASES = [(format, mode) for format in FORMATS for mode in modes(format)]


def depths(format: str) -> tuple[int, ...]:
    if format in FLOAT_FORMATS:
        return (1, 67, 576)
    return (256, 768) if format in K_QUANTS else (32, 576)


def reference(weights: Weights, x: Floats, mode: int, level: str) -> tuple[Doubles, Doubles]:
    """The product in float64, and a bound of its rounding errors in float32.

    Each group (or half, or K value) adds one or two fused multiply-adds to a sum; its own term is rounded at most three
    times before (integer to float, times the activation's scale, the weight's scale being exact)."""
    if mode == NO_MODE:
        inputs, num_terms = x.astype(np.float64), weights.k
    else:
        inputs, num_terms = read_blocks(quantised(level, x, mode), mode).values, weights.k // 32 * 2 * 2
    bound = UNIT_ROUNDOFF * (num_terms + 3) * (np.abs(inputs) @ weights.magnitudes().T)
    return inputs @ weights.values.astype(np.float64).T, bound * 1.01


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize(("format", "mode"), CASES)
def test_product_is_exact_up_to_float32_sums(format: str, mode: int, level: str) -> None:
    for k in depths(format):
        for n in (1, 37):
            weights, x = random_weights(format, n, k), random_rows(6, k)
            expected, bound = reference(weights, x, mode, level)
            found = linear(level, weights, linear_input(level, x, mode), mode)
            assert (np.abs(found - expected) <= bound).all(), (n, k)


@pytest.mark.parametrize(("format", "mode"), CASES)
def test_row_does_not_depend_on_the_rows_beside_it(
    format: str, mode: int, case_count: Callable[[int, int], int]
) -> None:
    k = depths(format)[-1]
    weights = random_weights(format, 48, k)
    for level in LEVELS[1:] or LEVELS:
        x = linear_input(level, random_rows(64, k), mode)
        together = linear(level, weights, x, mode)
        for rows in [1, 2, 3, 4, 5, 9, 17, 33][: case_count(6, 8)]:
            assert np.array_equal(linear(level, weights, x, mode, rows), together[:rows]), (level, rows)


@pytest.mark.parametrize(("format", "mode"), CASES)
def test_product_does_not_depend_on_threads_or_level(format: str, mode: int) -> None:
    k = depths(format)[-1]
    weights, x = random_weights(format, 100, k), random_rows(9, k)
    inputs = linear_input(LEVELS[0], x, mode)
    results = [linear(level, weights, inputs, mode, num_threads=threads) for level in LEVELS for threads in (1, 3)]
    assert all(np.array_equal(result, results[0]) for result in results)


@pytest.mark.parametrize("level", LEVELS)
def test_many_rows_are_cut_into_blocks(level: str) -> None:
    weights = random_weights("q4_0", 33, 64)
    x = quantised(level, random_rows(300, 64), OUTLIER)
    together = linear(level, weights, x, OUTLIER)
    for start in (0, 127, 128, 299):
        assert np.array_equal(linear(level, weights, x[start : start + 1], OUTLIER), together[start : start + 1])


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("mode", [OUTLIER, EXACT])
def test_segments_of_different_formats_share_their_input(level: str, mode: int) -> None:
    k, rows = 512, 5
    segments = [random_weights(format, n, k) for format, n in [("q4_k", 48), ("q6_k", 17), ("q8_0", 33), ("q5_0", 1)]]
    x = quantised(level, random_rows(rows, k), mode)
    generator = np.random.default_rng(0)
    pointers: list[object] = [x]
    sizes = [k, len(segments), mode, k]
    expected, outputs = [], []
    for index, weights in enumerate(segments):
        bias = generator.standard_normal(weights.n).astype(np.float32) if index % 2 else None
        out = generator.standard_normal((rows, weights.n + 3)).astype(np.float32)
        accumulate = index >= 2
        product = linear(level, weights, x, mode)
        product = product if bias is None else product + bias
        before = out.copy()
        before[:, : weights.n] = before[:, : weights.n] + product if accumulate else product
        expected.append(before)
        outputs.append(out)
        pointers += [weights.packed, out, bias]
        sizes += [format_number(weights.format), weights.n, weights.n + 3, int(accumulate)]
    run(level, "linear", rows, pointers, sizes)
    for out, wanted in zip(outputs, expected, strict=True):
        assert np.array_equal(out, wanted)


def activated(gate: Floats, activation: int) -> Doubles:
    x = gate.astype(np.float64)
    if activation == 0:
        return x / (1 + np.exp(-x))
    tanh_argument = np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)
    return x / (1 + np.exp(-2 * tanh_argument))  # x / 2 * (1 + tanh), also where tanh is nearly -1


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("activation", [0, 1])
@pytest.mark.parametrize(("gate_format", "up_format", "mode"), [("q4_1", "q8_0", OUTLIER), ("f32", "bf16", NO_MODE)])
def test_gated_product_is_its_parts(level: str, activation: int, gate_format: str, up_format: str, mode: int) -> None:
    k, n, rows = 96, 64, 7
    gate, up = random_weights(gate_format, n, k), random_weights(up_format, n, k, seed=1)
    x = linear_input(level, random_rows(rows, k) / 8, mode)
    gate_bias = np.linspace(-1, 1, n, dtype=np.float32)
    out = np.zeros((rows, n), np.float32)
    blocks = np.zeros((rows, n // 32, 64), np.uint8)
    pointers = [x, gate.packed, up.packed, out, gate_bias, None, blocks]
    sizes = [k, n, format_number(gate_format), format_number(up_format), activation, mode, n, k, OUTLIER]
    run(level, "linear_gated", rows, pointers, sizes)
    gate_out, up_out = linear(level, gate, x, mode) + gate_bias, linear(level, up, x, mode)
    expected = activated(gate_out, activation) * up_out
    # e^z of relative error 2^-23 plus |z| * 2^-23 from the rounding of its argument (|z| < 90 where the result is not
    # negligible), a sum, a quotient and a product of half a unit each.
    slope = 1 + np.minimum(np.abs(gate_out * (2 if activation else 1) * (1 + 0.05 * activation * gate_out**2)), 90)
    assert (np.abs(out - expected) <= 2.0**-23 * (4 + 2 * slope) * np.abs(expected) + 1e-30).all()
    assert np.array_equal(blocks, quantised(level, out, OUTLIER))


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize(("format", "mode"), [("f16", NO_MODE), ("q4_0", OUTLIER), ("q6_k", OUTLIER), ("q8_0", EXACT)])
def test_infinite_input_harms_its_row_alone(level: str, format: str, mode: int) -> None:
    weights, x = random_weights(format, 20, 256), random_rows(6, 256)
    clean = linear(level, weights, linear_input(level, x, mode), mode)
    x[1, 3], x[4, 200] = np.inf, np.nan
    found = linear(level, weights, linear_input(level, x, mode), mode)
    harmed = [1, 4]
    assert not np.isfinite(found[harmed]).any()
    assert np.array_equal(np.delete(found, harmed, 0), np.delete(clean, harmed, 0))
