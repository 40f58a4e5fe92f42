"""How many blocks a request needs in each group of layers. Arithmetic only: it holds no memory and knows no requests.

A *block* holds 16 tokens of every layer of one group. A *slab* is a piece of the pool that is lent to one group at a
time and cut into its blocks, so that groups need neither one block size nor fixed shares of the pool.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

BLOCK_TOKENS = 16
OFFSET_UNIT = 64  # bytes; blocks are named by their offset into the pool in this unit, so 32 bits reach 256 GiB
MAX_POOL_BYTES = (1 << 32) * OFFSET_UNIT - OFFSET_UNIT  # the last offset means "no block"

_MIN_SLAB_BYTES = 2 << 20  # one huge page
_MAX_SLAB_BYTES = 16 << 20


class CacheGroupSpec(msgspec.Struct, frozen=True):
    """What the engine must know of one group of layers that share block tables.

    kind:         "full" or "window" (attention), or "state" (recurrent).
    block_bytes:  one block, a multiple of 64: 16 tokens of every layer of an attention group; the state of one layer of
                  one sequence of a state group.
    window:       tokens that a layer of a window group can see, itself included; None otherwise.
    num_states:   layers of a state group, so blocks of a sequence of any length; 0 for attention.
    """

    kind: str
    block_bytes: int
    window: int | None = None
    num_states: int = 0


def blocks_for(num_tokens: int) -> int:
    """Blocks that hold positions [0, num_tokens)."""
    return -(-num_tokens // BLOCK_TOKENS)


def invisible_blocks(window: int, num_computed: int) -> int:
    """Leading blocks that no query at a position >= num_computed can see.

    The query at position p sees keys in (p - window, p].
    """
    return max(0, num_computed - window + 1) // BLOCK_TOKENS


def peak_blocks(group: CacheGroupSpec, num_tokens: int, max_chunk: int) -> int:
    """The most blocks that a request of num_tokens holds at once when it is computed in chunks of at most max_chunk.

    For a window the worst chunk starts where the oldest visible key is the last of its block: the window's other
    tokens, the chunk, 15 tokens that share the first block, and 15 more that the last block has room for.
    """
    if group.num_states:
        return group.num_states
    whole = blocks_for(num_tokens)
    if group.window is None:
        return whole
    return min(whole, (group.window - 1 + max_chunk + 2 * (BLOCK_TOKENS - 1)) // BLOCK_TOKENS)


def peak_slabs(groups: Sequence[CacheGroupSpec], slab_bytes: int, num_tokens: int, max_chunk: int) -> int:
    """Slabs that a request of num_tokens needs at its peak when it has an empty pool to itself."""
    return sum(-(-peak_blocks(group, num_tokens, max_chunk) // (slab_bytes // group.block_bytes)) for group in groups)


def max_tokens_in(groups: Sequence[CacheGroupSpec], slab_bytes: int, num_slabs: int, max_chunk: int) -> int:
    """The longest request that fits a pool of num_slabs, in whole blocks of tokens. Needs a full group for a bound."""
    low, high = 0, 1
    while peak_slabs(groups, slab_bytes, high * BLOCK_TOKENS, max_chunk) <= num_slabs:
        low, high = high, high * 2
        if high > (1 << 40):
            break  # window groups only: any length fits
    while high - low > 1:
        middle = (low + high) // 2
        if peak_slabs(groups, slab_bytes, middle * BLOCK_TOKENS, max_chunk) <= num_slabs:
            low = middle
        else:
            high = middle
    return low * BLOCK_TOKENS


def choose_slab_bytes(groups: Sequence[CacheGroupSpec]) -> int:
    """The slab size that wastes least when cut into each group's blocks.

    Candidates are multiples of the largest block from 2 MiB (a huge page) to 16 MiB; a slab holds at least one block
    of every group.
    """
    largest = max(group.block_bytes for group in groups)
    first = max(1, -(-_MIN_SLAB_BYTES // largest))
    last = max(first, _MAX_SLAB_BYTES // largest)
    candidates = [count * largest for count in range(first, last + 1)]

    def wasted_share(slab_bytes: int) -> float:
        return max((slab_bytes % group.block_bytes) / slab_bytes for group in groups)

    return min(candidates, key=lambda slab_bytes: (wasted_share(slab_bytes), slab_bytes))
