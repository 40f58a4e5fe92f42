"""The roofline: what is read once per step, what is done per row, and which of the two counts."""

from __future__ import annotations

import math

import pytest
from msgspec.structs import replace

from pelton.graph.program import Program, compile
from pelton.measure.roofline import ProductRate, Rates, StepShape, predict, predict_speed
from tests.graph.tiny_model import (
    HEAD_DIM,
    HEADS,
    HIDDEN,
    INNER,
    KV_HEADS,
    VOCABULARY,
    FakeTarget,
    build_tiny_model,
    settings_for,
)

RATES = Rates(
    read_bytes_per_s=1e9,
    node_s=0.0,
    norm_s=0.0,
    quantise_s=0.0,
    activation_s={},
    products={"f32": ProductRate((1, 8), (1e-10, 1e-10))},
    attention={(HEADS, KV_HEADS, HEAD_DIM): ProductRate((1, 8), (1e-9, 1e-9))},
)
BODY = 2 * (HIDDEN * HEAD_DIM * (2 * HEADS + 2 * KV_HEADS) + 3 * HIDDEN * INNER)  # weights of two layers
HEAD = VOCABULARY * HIDDEN


class SizedTarget(FakeTarget):
    """Weights take the bytes of their floats."""

    def packed_bytes(self, format: str, layout: str, shape: tuple[int, ...]) -> int:
        return 4 * math.prod(shape)


@pytest.fixture
def program() -> Program:
    graph = build_tiny_model()
    return compile(graph, SizedTarget(), settings_for(graph, "f32", max_tokens=64))


def test_one_row_waits_for_the_weights_and_many_for_arithmetic(program: Program) -> None:
    for rows, bound in ((1, "memory"), (64, "arithmetic")):
        times = predict(program, RATES, StepShape(1, rows, 0))
        assert {time.bound for time in times if "linear" in time.group.kind} >= {bound}


def test_products_and_positions_are_counted(program: Program) -> None:
    rates = replace(RATES, read_bytes_per_s=1e30)
    total = sum(time.seconds for time in predict(program, rates, StepShape(2, 3, 10)))
    attention = 2 * 6 * 12 * 2 * HEADS * HEAD_DIM  # layers, rows, positions 11 to 13, products with each
    assert total == pytest.approx((6 * BODY + 2 * HEAD) * 1e-10 + attention * 1e-9)


def test_a_prompt_beyond_a_step_takes_several(program: Program) -> None:
    rates = replace(RATES, read_bytes_per_s=1e30)
    short, long = predict_speed(program, rates, [64, 128], [])
    assert (short.name, long.name) == ("prefill 64", "prefill 128")
    assert long.tokens_per_s < short.tokens_per_s  # its second half sees the first


def test_streams_share_the_reading_of_weights(program: Program) -> None:
    free = ProductRate((1,), (0.0,))
    rates = replace(RATES, products={"f32": free}, attention=dict.fromkeys(RATES.attention, free))
    one, eight = predict_speed(program, rates, [], [1, 8])
    assert one.bound == eight.bound == "memory"
    assert 7 < eight.tokens_per_s / one.tokens_per_s <= 8


def test_between_measured_numbers_of_rows_a_rate_changes_linearly() -> None:
    rate = ProductRate((1, 8, 128), (8.0, 1.0, 0.5))
    assert [rate.at(rows) for rows in (1, 4.5, 8, 68, 500)] == [8.0, 4.5, 1.0, 0.75, 0.5]
