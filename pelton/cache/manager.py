"""Which blocks each running request holds: a table per cache group. It knows slots, token counts and keys, no tensors.

Blocks are shared, never copied: a request that starts with cached blocks takes full ones only, and computes at least
one token itself, so it writes to blocks of its own from the first. No block is ever written by two. The tables here are
those of attention; the blocks of recurrent layers are in states.py.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Sequence

import msgspec

from pelton.cache.groups import BLOCK_TOKENS, CacheGroupSpec, blocks_for, invisible_blocks, peak_blocks, peak_slabs
from pelton.cache.pool import BlockPool
from pelton.cache.prefix import KeyChain
from pelton.cache.states import StateBlocks

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


class PrefixMatch(msgspec.Struct, frozen=True):
    """What the cache has of a chain's leading blocks.

    usable:   with how many a sequence can start.
    present:  how many full groups have; more than usable where windows or states are not kept.
    """

    usable: int
    present: int


class Growth(msgspec.Struct, frozen=True):
    """What changed in a slot's tables.

    new_blocks:    per group, the offsets that were appended; see SlotWork for those of states. Of blocks that count as
                   given back from the start there are no offsets; a 0 stands for each.
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
        checkpoint_bytes: int | None = None,
    ) -> None:
        """max_chunk: the most tokens that one slot computes in a step; it bounds what window groups hold.
        checkpoint_bytes: see StateBlocks."""
        self.groups = list(groups)
        self.slab_bytes = slab_bytes
        self.max_chunk = max_chunk
        self.pool = BlockPool(groups, pool_bytes, slab_bytes)
        self._secret = os.urandom(_SECRET_BYTES)
        self._tables: dict[int, _Tables] = {}
        self._coming: dict[bytes, int] = {}  # key -> the slot that is about to compute its block
        self._attention = [index for index, group in enumerate(groups) if not group.num_states]
        self._full = [index for index, group in enumerate(groups) if group.kind == "full"]
        self._windows = [(index, group.window) for index, group in enumerate(groups) if group.window is not None]
        self._states = StateBlocks(groups, self.pool, checkpoint_bytes)
        self._unchanged = Growth([[] for _ in groups])

    @property
    def usage(self) -> float:
        """Share of the pool that running requests hold, 0 to 1."""
        return self.pool.usage

    def clear(self) -> None:
        """Forgets all tables and all blocks."""
        self._tables = {}
        self._coming = {}
        self._states.clear()
        self.pool.clear()

    # The prefix cache.

    def new_chain(self, salt: str) -> KeyChain:
        return KeyChain(self._secret, salt)

    @property
    def has_states(self) -> bool:
        """Whether a sequence can start only behind a checkpoint."""
        return bool(self._states)

    def find(self, keys: Sequence[bytes], max_blocks: int) -> PrefixMatch:
        """What a sequence with these keys can start with.

        Full groups need all of the blocks, window groups those that the next token sees, recurrent layers a checkpoint
        behind the last.
        """
        full = [self.pool.keys(index) for index in self._full]
        windows = [(self.pool.keys(index), window) for index, window in self._windows]
        runs = [0] * len(windows)  # blocks in a row that each window group has, up to this one
        has_states = self.has_states
        usable = present = 0
        for num_blocks, key in enumerate(keys[:max_blocks], 1):
            if not all(key in offsets for offsets in full):
                break
            has_all = True
            for index, (offsets, window) in enumerate(windows):
                runs[index] = runs[index] + 1 if key in offsets else 0
                unseen = invisible_blocks(window, num_blocks * BLOCK_TOKENS)
                has_all = has_all and runs[index] >= num_blocks - unseen
            present = num_blocks
            if has_all and (not has_states or self._states.has(key)):
                usable = num_blocks
        return PrefixMatch(usable, present)

    def computed_by(self, key: bytes) -> int | None:
        """The slot that is about to compute the block of this key, if one is."""
        return self._coming.get(key)

    def keep(self, slot: int, keys: Sequence[bytes], num_blocks: int, *, is_checkpoint: bool = False) -> None:
        """The slot's first num_blocks blocks are computed: from now on others find them by these keys.

        is_checkpoint: no token behind them is, and the states of recurrent layers shall be kept.

        Where another holds an equal block already, that one stays. Of a full group the slot then offers no more: its
        later blocks would be found only as long as the other's are there. So whoever holds a block of a full group
        holds all before it in its chain, and as the last are released first, the last are evicted first. With recurrent
        layers slots compute again what others hold, up to the next checkpoint, and go on offering behind that.
        """
        tables = self._tables[slot]
        for number in range(tables.num_keyed, num_blocks):
            key = keys[number]
            for group in self._attention:
                if group in tables.foreign:
                    continue
                is_mine = self.pool.set_key(group, tables.blocks[group][number - tables.freed[group]], key)
                if not is_mine and self.groups[group].window is None and not self._states:
                    tables.foreign.add(group)
            if self._coming.get(key) == slot:
                del self._coming[key]
        tables.num_keyed = num_blocks
        if is_checkpoint:
            self._states.keep(slot, keys[num_blocks - 1])
        if tables.foreign:
            self._forget_coming(slot, tables)

    # Tables.

    def has_room(self, promised: Iterable[tuple[int, int]], num_new: int = 0) -> bool:
        """Whether every slot of these (slot, num_tokens) can grow to its number of tokens, all at once, and full groups
        have num_new blocks beside."""
        counts = [num_new if group.kind == "full" else 0 for group in self.groups]
        for slot, num_tokens in promised:
            tables = self._tables[slot]
            self._states.missing(slot, counts)
            missing = blocks_for(num_tokens) - tables.num_blocks
            if missing <= 0:
                continue
            for index in self._full:
                counts[index] += missing
            for index, _ in self._windows:
                room = peak_blocks(self.groups[index], num_tokens, self.max_chunk) - len(tables.blocks[index])
                counts[index] += max(0, min(missing, room))
        return self.pool.can_allocate(counts)

    def open(
        self,
        slot: int,
        peak_tokens: int,
        keys: Sequence[bytes] = (),
        num_found: int = 0,
        coming: Sequence[bytes] | None = None,
    ) -> None:
        """Starts a slot's tables with the first num_found blocks of a chain, usable by what `find` says.

        peak_tokens: the most that it will ever hold. keys: the chain of all its known full blocks. coming: those behind
        which others will be able to start, None for all of them; who starts alike may wait for one.
        """
        assert slot not in self._tables, f"slot {slot} has tables already"
        freed = [0] * len(self.groups)
        for index, window in self._windows:
            freed[index] = min(num_found, invisible_blocks(window, num_found * BLOCK_TOKENS))
        blocks = []
        for index, group in enumerate(self.groups):
            offsets = self.pool.keys(index)
            shared = () if group.num_states else keys[freed[index] : num_found]
            blocks.append([offsets[key] for key in shared])
            self.pool.retain(index, blocks[index])
        self._states.open(slot, keys[num_found - 1] if num_found else None)
        untold = None
        if num_found:
            untold = [[0] * count + offsets for count, offsets in zip(freed, blocks, strict=True)]
        if coming is None:
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
        self._states.release_read(slot)
        num_missing = blocks_for(end) - tables.num_blocks
        missing = [0 if group.num_states else num_missing for group in self.groups]
        self._states.missing(slot, missing)
        if not self.pool.can_allocate(missing):
            return None
        new_blocks = self.pool.allocate(self._states.spare_checkpoint(slot, missing))
        for index in self._attention:
            tables.blocks[index] += new_blocks[index]
        self._states.take(slot, new_blocks)
        tables.num_blocks += num_missing
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
        self._states.close(slot)
        self._forget_coming(slot, tables)
        self._reserve()

    def table(self, slot: int, group: int) -> list[int | None]:
        """A slot's table as the kernels see it: an offset per 16 tokens, None where it was given back."""
        tables = self._tables[slot]
        return [*[None] * tables.freed[group], *tables.blocks[group]]

    def check_integrity(self) -> None:
        """Raises AssertionError unless every used block is held as often as it is counted."""
        self.pool.check_integrity()
        for index in self._attention:
            for slot, tables in self._tables.items():
                has = tables.freed[index] + len(tables.blocks[index])
                assert has == tables.num_blocks, f"slot {slot} lost a block"
        for index in range(len(self.groups)):
            held = Counter(self._states.held(index))
            for tables in self._tables.values():
                held.update(tables.blocks[index])
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
