"""Admission from sizes alone, as the client's side asks it; what is refused is told with the numbers."""

from __future__ import annotations

import msgspec
import pytest

from pelton.cache.groups import CacheGroupSpec
from pelton.engine.admission import check_request, max_output
from pelton.engine.scheduler import EngineLimits
from pelton.errors import ContextLengthError, RequestError
from pelton.sampling_params import SamplingParams

GROUPS = [CacheGroupSpec("full", 128), CacheGroupSpec("window", 128, window=20)]
LIMITS = EngineLimits(
    max_model_len=256,
    max_num_seqs=4,
    max_num_batched_tokens=32,
    kv_cache_bytes=4 * 512,
    slab_bytes=512,
    vocab_size=50,
)


def test_sizes_that_have_crossed_a_process_border_are_the_same() -> None:
    received = msgspec.msgpack.decode(msgspec.msgpack.encode(LIMITS), type=EngineLimits)
    assert received == LIMITS
    check_request(received, GROUPS, [1] * 40, SamplingParams(max_tokens=20))


def test_the_pool_bounds_prompt_and_answer_together() -> None:
    check_request(LIMITS, GROUPS, [1] * 100, SamplingParams(max_tokens=29))  # 8 blocks and 5 of the window's
    with pytest.raises(RequestError, match=r"`100` prompt tokens and up to `30` more need `2560` bytes .* has `2048`"):
        check_request(LIMITS, GROUPS, [1] * 100, SamplingParams(max_tokens=30))


def test_the_context_bounds_the_prompt() -> None:
    with pytest.raises(ContextLengthError, match="`256` tokens; the context holds `256`") as caught:
        check_request(LIMITS, GROUPS, [1] * 256, SamplingParams())
    assert caught.value.hint is not None
    assert "at most 255 tokens" in caught.value.hint


@pytest.mark.parametrize(("max_tokens", "expected"), [(None, 156), (10, 10), (1000, 156)])
def test_an_answer_ends_with_the_context(max_tokens: int | None, expected: int) -> None:
    assert max_output(LIMITS, 100, SamplingParams(max_tokens=max_tokens)) == expected
