"""Which blocks each running request holds: a table per cache group. It knows slots, token counts and keys, no tensors.

Blocks are shared, never copied: a request that starts with cached blocks takes full ones only, and computes at least
one token itself, so it writes to blocks of its own from the first. No block is ever written by two.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence

import msgspec

from pelton.cache.groups import BLOCK_TOKENS, CacheGroupSpec, blocks_for, invisible_blocks, peak_blocks, peak_slabs
from pelton.cache.pool import BlockPool
from pelton.cache.prefix import KeyChain

_SECRET_BYTES = 64


class _Tables(msgspec.Struct):
    """One slot's blocks.

    All groups cover the same num_blocks blocks of tokens; of these, freed[group] leading ones have been given back, and
    blocks[group] are the offsets of the others in order.

    untold:      blocks that the slot started with, until the first growth tells of them.
    told:        `freed` as last reported.
    num_keyed:   leading blocks that have been offered to the prefix cache; foreign: groups of which a later block
                 would hang on a chain that this slot does not hold.
    coming:      keys of blocks that it is about to compute.
    peak_slabs:  what it needs in an empty pool.
    """

    num_blocks: int
    freed: list[int]
    told: list[int]
    blocks: list[list[int]]
    untold: list[list[int]] | None
    num_keyed: int
    coming: Sequence[bytes]
    peak_slabs: int
    foreign: set[int] = msgspec.field(default_factory=set)


class Growth(msgspec.Struct, frozen=True):
    """What changed in a slot's tables.

    new_blocks:    per group, the offsets that were appended. Of blocks that count as given back from the start there
                   are no offsets; a 0 stands for each.
    freed_blocks:  per group, how many leading blocks are given back by now; None if that has not changed.
    """

    new_blocks: list[list[int]]
    freed_blocks: list[int] | None = None


class CacheManager:
    """Gives each slot the blocks for its tokens, and takes back those that no later token can see."""

    def __init__(
        self,
        groups: Sequence[CacheGroupSpec],
        pool_bytes: int,
        slab_bytes: int,
        max_chunk: int,
    ) -> None:
        """max_chunk: the most tokens that one slot computes in a step; it bounds what window groups hold."""
        self.groups = list(groups)
        self.slab_bytes = slab_bytes
        self.max_chunk = max_chunk
        self.pool = BlockPool(groups, pool_bytes, slab_bytes)
        self._secret = os.urandom(_SECRET_BYTES)
        self._tables: dict[int, _Tables] = {}
        self._coming: dict[bytes, int] = {}  # key -> the slot that is about to compute its block
        self._full = [index for index, group in enumerate(groups) if group.window is None]
        self._windows = [(index, group.window) for index, group in enumerate(groups) if group.window is not None]
        self._unchanged = Growth([[] for _ in groups])

    @property
    def usage(self) -> float:
        """Share of the pool that running requests hold, 0 to 1."""
        return self.pool.usage

    def clear(self) -> None:
        """Forgets all tables and all blocks."""
        self._tables = {}
        self._coming = {}
        self.pool.clear()

    # The prefix cache.

    def new_chain(self, salt: str) -> KeyChain:
        return KeyChain(self._secret, salt)

    def find(self, keys: Sequence[bytes], max_blocks: int) -> int:
        """How many leading blocks a sequence with these keys can start with.

        Full groups need all of them, window groups those that the next token sees.
        """
        full = [self.pool.keys(index) for index in self._full]
        windows = [(self.pool.keys(index), window) for index, window in self._windows]
        runs = [0] * len(windows)  # blocks in a row that each window group has, up to this one
        found = 0
        for num_blocks, key in enumerate(keys[:max_blocks], 1):
            if not all(key in offsets for offsets in full):
                break
            has_all = True
            for index, (offsets, window) in enumerate(windows):
                runs[index] = runs[index] + 1 if key in offsets else 0
                unseen = invisible_blocks(window, num_blocks * BLOCK_TOKENS)
                has_all = has_all and runs[index] >= num_blocks - unseen
            if has_all:
                found = num_blocks
        return found

    def computed_by(self, key: bytes) -> int | None:
        """The slot that is about to compute the block of this key, if one is."""
        return self._coming.get(key)

    def keep(self, slot: int, keys: Sequence[bytes], num_blocks: int) -> None:
        """The slot's first num_blocks blocks are computed: from now on others find them by these keys.

        Where another holds an equal block already, that one stays. Of a full group the slot then offers no more: its
        later blocks would be found only as long as the other's are there. So whoever holds a block of a full group
        holds all before it in its chain, and as the last are released first, the last are evicted first.
        """
        tables = self._tables[slot]
        for number in range(tables.num_keyed, num_blocks):
            key = keys[number]
            for group, blocks in enumerate(tables.blocks):
                if group in tables.foreign:
                    continue
                is_mine = self.pool.set_key(group, blocks[number - tables.freed[group]], key)
                if not is_mine and self.groups[group].window is None:
                    tables.foreign.add(group)
            if self._coming.get(key) == slot:
                del self._coming[key]
        tables.num_keyed = num_blocks
        if tables.foreign:
            self._forget_coming(slot, tables)

    # Tables.

    def has_room(self, promised: Iterable[tuple[int, int]], num_new: int = 0) -> bool:
        """Whether every slot of these (slot, num_tokens) can grow to its number of tokens, all at once, and full groups
        have num_new blocks beside."""
        counts = [0 if group.window else num_new for group in self.groups]
        for slot, num_tokens in promised:
            tables = self._tables[slot]
            missing = blocks_for(num_tokens) - tables.num_blocks
            if missing <= 0:
                continue
            for index in self._full:
                counts[index] += missing
            for index, _ in self._windows:
                room = peak_blocks(self.groups[index], num_tokens, self.max_chunk) - len(tables.blocks[index])
                counts[index] += max(0, min(missing, room))
        return self.pool.can_allocate(counts)

    def open(self, slot: int, peak_tokens: int, keys: Sequence[bytes] = (), num_found: int = 0) -> None:
        """Starts a slot's tables with the first num_found blocks of a chain, as `find` has counted them.

        peak_tokens: the most that it will ever hold. keys: the chain of all its known full blocks; others may wait for
        those that it will compute.
        """
        assert slot not in self._tables, f"slot {slot} has tables already"
        freed = [0] * len(self.groups)
        for index, window in self._windows:
            freed[index] = min(num_found, invisible_blocks(window, num_found * BLOCK_TOKENS))
        blocks = []
        for index in range(len(self.groups)):
            offsets = self.pool.keys(index)
            blocks.append([offsets[key] for key in keys[freed[index] : num_found]])
            self.pool.retain(index, blocks[index])
        untold = None
        if num_found:
            untold = [[0] * count + offsets for count, offsets in zip(freed, blocks, strict=True)]
        coming = keys[num_found:]
        for key in coming:
            self._coming.setdefault(key, slot)
        peak = peak_slabs(self.groups, self.slab_bytes, peak_tokens, self.max_chunk)
        self._tables[slot] = _Tables(num_found, freed, [0] * len(self.groups), blocks, untold, num_found, coming, peak)
        self._reserve()

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
        missing = [blocks_for(end) - tables.num_blocks] * len(self.groups)
        if not self.pool.can_allocate(missing):
            return None
        new_blocks = self.pool.allocate(missing)
        for blocks, added in zip(tables.blocks, new_blocks, strict=True):
            blocks += added
        tables.num_blocks += missing[0]
        if tables.untold is not None:
            new_blocks = [first + added for first, added in zip(tables.untold, new_blocks, strict=True)]
            tables.untold = None
        if tables.freed == tables.told:
            return Growth(new_blocks)
        tables.told = list(tables.freed)
        return Growth(new_blocks, tables.told)

    def close(self, slot: int) -> None:
        """Gives back all that a slot holds."""
        tables = self._tables.pop(slot)
        for index, blocks in enumerate(tables.blocks):
            self.pool.release(index, reversed(blocks))
        self._forget_coming(slot, tables)
        self._reserve()

    def table(self, slot: int, group: int) -> list[int | None]:
        """A slot's table as the kernels see it: an offset per 16 tokens, None where it was given back."""
        tables = self._tables[slot]
        return [*[None] * tables.freed[group], *tables.blocks[group]]

    def check_integrity(self) -> None:
        """Raises AssertionError unless every used block is held as often as it is counted."""
        self.pool.check_integrity()
        for index in range(len(self.groups)):
            held: dict[int, int] = {}
            for slot, tables in self._tables.items():
                assert tables.freed[index] + len(tables.blocks[index]) == tables.num_blocks, f"slot {slot} lost a block"
                for offset in tables.blocks[index]:
                    held[offset] = held.get(offset, 0) + 1
            counted = self.pool.reference_counts(index)
            assert held == counted, f"group {index}: blocks held and blocks counted differ"
        assert set(self._coming.values()) <= set(self._tables), "a block is to come from a slot that is gone"

    def _give_back(self, tables: _Tables, group: int, invisible: int) -> None:
        count = min(invisible, tables.num_blocks) - tables.freed[group]
        if count > 0:
            blocks = tables.blocks[group]
            self.pool.release(group, blocks[:count])
            del blocks[:count]
            tables.freed[group] += count

    def _forget_coming(self, slot: int, tables: _Tables) -> None:
        for key in tables.coming:
            if self._coming.get(key) == slot:
                del self._coming[key]
        tables.coming = ()

    def _reserve(self) -> None:
        """A single group can use every slab, so nothing need be kept for it."""
        if len(self.groups) > 1:
            self.pool.reserve_slabs = max((tables.peak_slabs for tables in self._tables.values()), default=0)
