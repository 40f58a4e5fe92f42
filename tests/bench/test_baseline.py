"""A regression is told from noise, whichever way a measure counts, and whatever the machine's speed that day."""

from __future__ import annotations

import random

from bench.baseline import Runs, changes, table


def runs(decode: float, first_token_s: float, machine: float = 1.0, rounds: int = 7, seed: int = 1) -> Runs:
    """Rounds of two engines with 3 % of noise. machine: how fast it is on that day."""
    generator = random.Random(seed)

    def noisy(value: float) -> float:
        return value * generator.uniform(0.97, 1.03)

    return {
        engine: [{"decode_16": noisy(speed * machine), "first_token_s": noisy(start / machine)} for _ in range(rounds)]
        for engine, speed, start in (("pelton", decode, first_token_s), ("llama.cpp", 50.0, 0.3))
    }


def test_the_same_speed_on_a_slower_machine_is_no_regression() -> None:
    found = changes(runs(100, 0.4, machine=0.6, seed=2), runs(100, 0.4))
    assert [change.measure for change in found] == ["decode_16", "first_token_s"]
    assert all(change.low < 1 < change.high for change in found)
    assert not any(change.is_regression for change in found)


def test_a_tenth_less_is_a_regression() -> None:
    slower, later = changes(runs(88, 0.46, seed=2), runs(100, 0.4))
    assert slower.is_regression
    assert later.is_regression  # here less is better
    assert "regression" in table([slower], {"date": "2026-01-01", "commit": "0" * 40})


def test_a_gain_is_none_and_a_measure_without_a_baseline_is_left_out() -> None:
    before = {
        engine: [{"decode_16": each["decode_16"]} for each in rounds] for engine, rounds in runs(100, 0.4).items()
    }
    (faster,) = changes(runs(120, 0.4, seed=2), before)
    assert faster.low > 1
    assert not faster.is_regression
