"""The native elementwise kernels against float64 or exact results, at whole and broken vectors."""

from __future__ import annotations

import numpy as np
import pytest

from tests.ops.native_kernels import EPSILON, LEVELS, Array, Node, Rows, bits, run, run_rows, team, zeros

ROWS = 19
COLUMNS = [64, 100, 7]


def drawn(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape, np.float32) * np.float32(4)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("columns", COLUMNS)
def test_add_rounds_once(level: str, columns: int) -> None:
    a, b, out = drawn(ROWS, columns + 3), drawn(ROWS, columns + 1, seed=1), zeros(ROWS, columns + 2)
    run_rows(level, [Node("add", [a, b, out], [columns, columns + 3, columns + 1, columns + 2])], ROWS, num_threads=2)
    assert np.array_equal(bits(out[:, :columns]), bits(a[:, :columns] + b[:, :columns]))
    assert not out[:, columns:].any()


@pytest.mark.parametrize("level", LEVELS)
def test_gather_takes_the_rows_that_need_logits(level: str) -> None:
    x, out = drawn(ROWS, 40), zeros(4, 40)
    with team(2) as workers:
        run(
            workers, level, [Node("gather_rows", [x, out], [40, 40, 40], dim=1)], [Rows(ROWS)], logit_rows=[18, 3, 3, 0]
        )
    assert np.array_equal(bits(out), bits(x[[18, 3, 3, 0]]))


def exponent(activation: int, x: Array) -> Array:
    """silu(x) and gelu_tanh(x) are x / (1 + exp(this)); 1 + tanh would lose the digits of small results."""
    return -x if activation == 0 else -2 * np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("activation", [0, 1])
@pytest.mark.parametrize("columns", [96, 100])
def test_gated_activation_agrees_with_float64(level: str, activation: int, columns: int) -> None:
    """The exponent is off by 4 roundings (silu: none), which exp makes relative; exp itself is right to 2, the sum, the
    quotient and the product round once each. Where 1 / exp is no longer normal the result may be 0."""
    gate, up, out = drawn(ROWS, columns), drawn(ROWS, columns, seed=1), zeros(ROWS, columns)
    sizes = [columns, columns, columns, columns, 0, activation, columns]
    run_rows(level, [Node("gated_activation", [gate, up, out, None], sizes)], ROWS, num_threads=2)
    x = gate.astype(np.float64)
    t = exponent(activation, x)
    expected = x / (1 + np.exp(t)) * up
    bound = abs(expected) * (5.1 + 4 * abs(t) * activation) * EPSILON + abs(x * up) * 2.0**-126
    assert (abs(out - expected) <= bound).all()


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("mode", [1, 2])
def test_gated_blocks_are_the_product_quantised(level: str, mode: int) -> None:
    gate, up, out = drawn(ROWS, 96), drawn(ROWS, 96, seed=1), zeros(ROWS, 96)
    alone, fused = zeros(ROWS, 96 * 4), zeros(ROWS, 96 * 4)
    sizes = [96, 96, 96, 96, mode, 0, 96]
    run_rows(level, [Node("gated_activation", [gate, up, out, None], sizes)], ROWS)
    run_rows(level, [Node("quantise", [out, alone], [96, 96, mode])], ROWS)
    run_rows(level, [Node("gated_activation", [gate, up, None, fused], sizes)], ROWS, num_threads=2)
    assert bits(fused).any()
    assert np.array_equal(bits(fused), bits(alone))
