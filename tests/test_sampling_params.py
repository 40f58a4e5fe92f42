"""What can't be asked for is refused when it is written down, not when it runs."""

from __future__ import annotations

from typing import Any

import pytest

from pelton.errors import UsageError
from pelton.sampling_params import LEAST_POSITIVE, SamplingParams


@pytest.mark.parametrize("name", ["n", "top_k", "seed", "max_tokens", "min_tokens", "logprobs", "prompt_logprobs"])
@pytest.mark.parametrize("value", [1.5, 2.0, "2", True])
def test_counts_are_whole_numbers(name: str, value: Any) -> None:
    with pytest.raises(UsageError, match=f"`{name}` is"):
        SamplingParams(**{name: value})


@pytest.mark.parametrize("name", ["top_p", "repetition_penalty"])
def test_numbers_that_float32_would_take_for_zero_are_refused(name: str) -> None:
    SamplingParams(**{name: LEAST_POSITIVE})  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=f"`{name}` is"):
        SamplingParams(**{name: LEAST_POSITIVE / 2})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("stop", 3),
        ("stop", b"end"),
        ("stop", {"end": 1}),
        ("stop", [b"end"]),
        ("stop_token_ids", 3),
        ("logit_bias", [1]),
        ("logit_bias", {"1": 2.0}),
        ("logit_bias", {1: "2"}),
        ("temperature", None),
        ("ignore_eos", "no"),
    ],
)
def test_a_value_of_another_kind_is_named(name: str, value: Any) -> None:
    with pytest.raises(UsageError, match=f"`{name}"):
        SamplingParams(**{name: value})


def test_none_means_none() -> None:
    given: Any = {"stop": None, "stop_token_ids": None, "logit_bias": None}
    assert SamplingParams(**given) == SamplingParams()


def test_a_stop_string_that_is_too_long_is_refused() -> None:
    with pytest.raises(UsageError, match="at most 1024 characters"):
        SamplingParams(stop=("x" * 1025,))
