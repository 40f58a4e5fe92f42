from __future__ import annotations

import pytest

from pelton.measure.load import Outcome
from pelton.measure.summary import distribution, percentile, summarise


def outcome(sent: float, moments: list[float], *, tokens: int, error: str | None = None) -> Outcome:
    return Outcome(sent, moments, moments[-1] if moments else sent + 1, 10, tokens, 429 if error else None, error)


def test_a_percentile_is_the_smallest_value_that_covers_its_share() -> None:
    values = [float(value) for value in range(1, 101)]
    assert [percentile(values, share) for share in (50, 95, 99, 100)] == [50, 95, 99, 100]
    assert percentile([3.0], 50) == percentile([3.0], 99) == 3.0
    assert percentile([1.0, 2.0, 3.0], 50) == 2.0


def test_figures_of_a_load_test_come_from_answered_requests_only() -> None:
    found = summarise(
        [
            outcome(0.0, [0.5, 0.6, 0.7], tokens=3),
            outcome(0.0, [1.0, 1.5, 2.0], tokens=3),
            outcome(1.0, [], tokens=0, error="full"),
        ],
        slo_first_token_ms=600,
        slo_per_token_ms=None,
    )
    assert (found["requests"], found["answered"], found["failures"]) == (3, 2, {"429: full": 1})
    assert found["duration_s"] == 2.0
    assert found["output_tokens_per_s"] == 3.0
    assert found["total_tokens_per_s"] == 13.0
    assert found["goodput_requests_per_s"] == 0.5
    assert found["time_to_first_token_ms"] == pytest.approx(
        {"mean": 750, "p50": 500, "p95": 1000, "p99": 1000, "max": 1000}
    )
    assert found["inter_token_ms"]["max"] == pytest.approx(500)
    assert found["time_per_output_token_ms"]["p50"] == pytest.approx(100)


def test_a_request_is_good_if_it_keeps_both_bounds() -> None:
    outcomes = [outcome(0.0, [0.5, 1.0], tokens=2), outcome(0.0, [0.9, 1.0], tokens=2)]
    assert summarise(outcomes, 600, 600)["goodput_requests_per_s"] == 1.0
    assert summarise(outcomes, 600, 400)["goodput_requests_per_s"] == 0.0
    assert summarise(outcomes, 1000, 400)["goodput_requests_per_s"] == 1.0


def test_nothing_answered_has_no_distribution() -> None:
    assert distribution([]) is None
    found = summarise([outcome(0.0, [], tokens=0, error="gone")], None, None)
    assert found["time_to_first_token_ms"] is None
    assert found["output_tokens_per_s"] == 0.0
