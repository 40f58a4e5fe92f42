"""Which blocks each running request holds: a table per cache group. It knows slots and token counts, no tensors."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pelton.cache.groups import BLOCK_TOKENS, CacheGroupSpec, blocks_for, invisible_blocks, peak_blocks, peak_slabs
from pelton.cache.pool import BlockPool


@dataclass(slots=True)
class _Tables:
    """One slot's blocks. All groups cover the same num_blocks blocks of tokens; of these, freed[group] leading ones
    have been given back, and blocks[group] are the offsets of the others in order. told: `freed` as last reported."""

    num_blocks: int
    freed: list[int]
    told: list[int]
    blocks: list[list[int]]


@dataclass(frozen=True, slots=True)
class Growth:
    """What changed in a slot's tables.

    new_blocks:    per group, the offsets that were appended.
    freed_blocks:  per group, how many leading blocks are given back by now; None if that has not changed.
    """

    new_blocks: list[list[int]]
    freed_blocks: list[int] | None = None


class CacheManager:
    """Gives each slot the blocks for its tokens, and takes back those that no later token can see."""

    def __init__(self, groups: Sequence[CacheGroupSpec], pool_bytes: int, slab_bytes: int, max_chunk: int) -> None:
        """max_chunk: the most tokens that one slot computes in a step; it bounds what window groups hold."""
        self.groups = list(groups)
        self.slab_bytes = slab_bytes
        self.max_chunk = max_chunk
        self.pool = BlockPool(groups, pool_bytes, slab_bytes)
        self._tables: dict[int, _Tables] = {}
        self._windows = [(index, group.window) for index, group in enumerate(groups) if group.window is not None]
        self._unchanged = Growth([[] for _ in groups])

    def slabs_needed(self, num_tokens: int) -> int:
        """Slabs that a request of num_tokens takes at its peak, alone in the pool."""
        return peak_slabs(self.groups, self.slab_bytes, num_tokens, self.max_chunk)

    def can_ever_hold(self, num_tokens: int) -> bool:
        return self.slabs_needed(num_tokens) <= self.pool.num_slabs

    def can_hold_too(self, num_tokens: int, promised: Iterable[tuple[int, int]]) -> bool:
        """Whether a request of num_tokens finds room beside what is promised: (slot, num_tokens) pairs, each with one
        more block to grow into."""
        counts = [peak_blocks(group, num_tokens, self.max_chunk) for group in self.groups]
        for slot, promised_tokens in promised:
            tables = self._tables[slot]
            missing = blocks_for(promised_tokens) + 1 - tables.num_blocks
            for index, group in enumerate(self.groups):
                room = peak_blocks(group, promised_tokens, self.max_chunk) + 1 - len(tables.blocks[index])
                counts[index] += max(0, min(missing, room))
        return self.pool.can_allocate(counts)

    def open(self, slot: int) -> None:
        """Starts empty tables for a slot."""
        assert slot not in self._tables, f"slot {slot} has tables already"
        self._tables[slot] = _Tables(0, [0] * len(self.groups), [0] * len(self.groups), [[] for _ in self.groups])

    def grow(self, slot: int, num_computed: int, num_tokens: int) -> Growth | None:
        """Makes room for positions [num_computed, num_computed + num_tokens).

        If that takes new blocks, window groups first give back those that none of these positions sees. None if the
        pool lacks the blocks; then nothing is taken and the call may be repeated.
        """
        tables = self._tables[slot]
        end = num_computed + num_tokens
        if end <= tables.num_blocks * BLOCK_TOKENS:
            return self._unchanged
        for index, window in self._windows:
            self._give_back(tables, index, invisible_blocks(window, num_computed))
        missing = blocks_for(end) - tables.num_blocks
        if not self.pool.can_allocate([missing] * len(self.groups)):
            return None
        new_blocks = [self.pool.allocate(index, missing) for index in range(len(self.groups))]
        for blocks, added in zip(tables.blocks, new_blocks, strict=True):
            blocks += added
        tables.num_blocks += missing
        if tables.freed == tables.told:
            return Growth(new_blocks)
        tables.told = list(tables.freed)
        return Growth(new_blocks, tables.told)

    def close(self, slot: int) -> None:
        """Gives back all that a slot holds."""
        tables = self._tables.pop(slot)
        for index, blocks in enumerate(tables.blocks):
            self.pool.release(index, blocks)

    @property
    def usage(self) -> float:
        """Share of the pool that is held, 0 to 1."""
        return self.pool.usage

    def clear(self) -> None:
        """Forgets all tables and all blocks."""
        self._tables = {}
        self.pool.clear()

    def table(self, slot: int, group: int) -> list[int | None]:
        """A slot's table as the kernels see it: an offset per 16 tokens, None where it was given back."""
        tables = self._tables[slot]
        return [*[None] * tables.freed[group], *tables.blocks[group]]

    def check_integrity(self) -> None:
        """Raises AssertionError unless every block in use is held as often as it is counted."""
        self.pool.check_integrity()
        for index in range(len(self.groups)):
            held: dict[int, int] = {}
            for slot, tables in self._tables.items():
                assert tables.freed[index] + len(tables.blocks[index]) == tables.num_blocks, f"slot {slot} lost a block"
                for offset in tables.blocks[index]:
                    held[offset] = held.get(offset, 0) + 1
            counted = self.pool.reference_counts(index)
            assert held == counted, f"group {index}: blocks held and blocks counted differ"

    def _give_back(self, tables: _Tables, group: int, invisible: int) -> None:
        count = min(invisible, tables.num_blocks) - tables.freed[group]
        if count > 0:
            blocks = tables.blocks[group]
            self.pool.release(group, blocks[:count])
            del blocks[:count]
            tables.freed[group] += count
