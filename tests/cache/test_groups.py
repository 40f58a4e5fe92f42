from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pelton.cache.groups import (
    BLOCK_TOKENS,
    CacheGroupSpec,
    blocks_for,
    choose_slab_bytes,
    invisible_blocks,
    max_tokens_in,
    peak_blocks,
    peak_slabs,
)

FULL = CacheGroupSpec("full", 48 << 10)
WINDOW = CacheGroupSpec("window", 240 << 10, window=512)


@given(st.integers(1, 700), st.integers(1, 64), st.integers(1, 300))
def test_a_window_never_holds_more_than_its_peak(num_tokens: int, chunk: int, window: int) -> None:
    group = CacheGroupSpec("window", 1024, window)
    held = 0
    for start in range(0, num_tokens, chunk):
        end = min(num_tokens, start + chunk)
        held = max(held, blocks_for(end) - invisible_blocks(window, start))
    assert held <= peak_blocks(group, num_tokens, chunk)


@given(st.integers(0, 5000), st.integers(1, 300))
def test_no_visible_token_lies_in_an_invisible_block(num_computed: int, window: int) -> None:
    first_visible = max(0, num_computed - window + 1)
    assert invisible_blocks(window, num_computed) * BLOCK_TOKENS <= first_visible
    assert (invisible_blocks(window, num_computed) + 1) * BLOCK_TOKENS > first_visible


def test_a_window_bounds_what_a_long_request_needs() -> None:
    assert peak_blocks(FULL, 32768, 512) == 2048
    assert peak_blocks(WINDOW, 32768, 512) == (512 - 1 + 512 + 30) // 16


@pytest.mark.parametrize("groups", [[FULL], [WINDOW], [FULL, WINDOW], [CacheGroupSpec("full", 368640)]])
def test_the_chosen_slab_wastes_nothing_where_it_can(groups: list[CacheGroupSpec]) -> None:
    slab_bytes = choose_slab_bytes(groups)
    assert all(slab_bytes % group.block_bytes == 0 for group in groups)
    assert 2 << 20 <= slab_bytes <= 16 << 20


def test_a_block_larger_than_any_slab_is_a_slab() -> None:
    assert choose_slab_bytes([CacheGroupSpec("full", 40 << 20)]) == 40 << 20


@given(st.integers(1, 400), st.integers(1, 600))
def test_the_longest_request_of_a_pool_fits_and_the_next_does_not(num_slabs: int, chunk: int) -> None:
    groups = [FULL, WINDOW]
    slab_bytes = choose_slab_bytes(groups)
    num_tokens = max_tokens_in(groups, slab_bytes, num_slabs, chunk)
    assert peak_slabs(groups, slab_bytes, num_tokens, chunk) <= num_slabs
    assert peak_slabs(groups, slab_bytes, num_tokens + BLOCK_TOKENS, chunk) > num_slabs
