"""The KV cache's memory as numbers: slabs lent to groups, cut into blocks, counted by reference. It owns no bytes.

    pool   | slab 0: group 0      | slab 1: group 1 | slab 2: free | ...
             used  cached free .    used  used

A block is free, used (by as many tables as it has references), or cached: nobody holds it, but it has a key under
which its content may be wanted again. Cached blocks are evicted when their room is needed, the longest unused first,
whichever group they belong to. A slab without used blocks is idle and may serve another group once its cached blocks
are evicted; one whose blocks are all free is free.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence

from pelton.cache.groups import MAX_POOL_BYTES, OFFSET_UNIT, CacheGroupSpec


class _Slab:
    __slots__ = ("free", "num_used")

    def __init__(self, free: list[int]) -> None:
        self.free = free
        self.num_used = 0


class _GroupBlocks:
    """One group's slabs and blocks.

    partial, idle:  slabs with free blocks, beside used ones and without any.
    num_idle:       slabs without used blocks, with free ones or not.
    num_beside_used:  free and cached blocks in slabs that have used ones: they can be had without another slab.
    offsets:        key -> block, of used and cached blocks that have one.
    cached:         blocks with a key that nobody holds -> when they were released, the longest ago first.
    """

    def __init__(self, block_bytes: int, slab_bytes: int) -> None:
        self.block_bytes = block_bytes
        self.block_units = block_bytes // OFFSET_UNIT
        self.blocks_per_slab = slab_bytes // block_bytes
        self.slabs: dict[int, _Slab] = {}
        self.partial: dict[int, _Slab] = {}
        self.idle: dict[int, _Slab] = {}
        self.num_idle = 0
        self.num_beside_used = 0
        self.reference_counts: dict[int, int] = {}
        self.offsets: dict[bytes, int] = {}
        self.keys: dict[int, bytes] = {}
        self.cached: OrderedDict[int, int] = OrderedDict()

    def missing_slabs(self, count: int) -> int:
        """Slabs that it must get for `count` blocks more."""
        return max(0, -(-(count - self.num_beside_used) // self.blocks_per_slab))

    def note_free(self, index: int, slab: _Slab) -> None:
        """Files a slab by what it has now."""
        self.partial.pop(index, None)
        self.idle.pop(index, None)
        if slab.free:
            (self.partial if slab.num_used else self.idle)[index] = slab


class BlockPool:
    """Gives out blocks by their offset from the pool's base, in units of 64 bytes.

    reserve_slabs: while no more slabs are idle, a group evicts its own cached blocks beside used ones before it takes
    another slab, so that the slabs stay as full as if nothing were cached. With enough of them to hold a request at
    its peak, that request never fails for want of a slab of another group's.
    """

    def __init__(self, groups: Sequence[CacheGroupSpec], pool_bytes: int, slab_bytes: int) -> None:
        """Raises ValueError on sizes that can't be cut."""
        if pool_bytes > MAX_POOL_BYTES:
            raise ValueError(f"a pool of {pool_bytes} bytes is beyond the reach of block offsets, {MAX_POOL_BYTES}")
        if slab_bytes % OFFSET_UNIT:
            raise ValueError(f"slab_bytes is {slab_bytes}, not a multiple of {OFFSET_UNIT}")
        for group in groups:
            if group.block_bytes <= 0 or group.block_bytes % OFFSET_UNIT or group.block_bytes > slab_bytes:
                raise ValueError(f"a block of {group.block_bytes} bytes can't be cut from a slab of {slab_bytes}")
        self.num_slabs = pool_bytes // slab_bytes
        self.reserve_slabs = 0
        self._slab_bytes = slab_bytes
        self._slab_units = slab_bytes // OFFSET_UNIT
        self._block_bytes = [group.block_bytes for group in groups]
        self.clear()

    def clear(self) -> None:
        """Makes all blocks free, with no key."""
        self._free_slabs = list(range(self.num_slabs - 1, -1, -1))  # the lowest first: untouched pages stay untouched
        self._groups = [_GroupBlocks(block_bytes, self._slab_bytes) for block_bytes in self._block_bytes]
        self._num_released = 0

    # Facts.

    @property
    def num_idle_slabs(self) -> int:
        """Slabs without used blocks."""
        return len(self._free_slabs) + sum(group.num_idle for group in self._groups)

    @property
    def usage(self) -> float:
        """Share of the pool that is used, 0 to 1."""
        used = sum(len(group.reference_counts) * group.block_bytes for group in self._groups)
        return used / max(1, self.num_slabs * self._slab_bytes)

    def num_used_blocks(self, group: int) -> int:
        return len(self._groups[group].reference_counts)

    def num_cached_blocks(self, group: int) -> int:
        return len(self._groups[group].cached)

    def reference_counts(self, group: int) -> dict[int, int]:
        """Of every used block, by offset."""
        return dict(self._groups[group].reference_counts)

    def reference_count(self, group: int, offset: int) -> int:
        return self._groups[group].reference_counts.get(offset, 0)

    def keys(self, group: int) -> dict[bytes, int]:
        """Key -> block, used or cached. Not to be changed."""
        return self._groups[group].offsets

    # Taking and giving back.

    def can_allocate(self, counts: Sequence[int]) -> bool:
        """Whether counts[group] blocks can be had of every group at once."""
        missing = sum(group.missing_slabs(count) for group, count in zip(self._groups, counts, strict=True))
        return missing <= self.num_idle_slabs

    def allocate(self, counts: Sequence[int]) -> list[list[int]]:
        """Takes counts[group] blocks of every group, each with one reference. The caller has asked `can_allocate`."""
        missing = [group.missing_slabs(count) for group, count in zip(self._groups, counts, strict=True)]
        num_idle = self.num_idle_slabs
        spare = num_idle - sum(missing)  # idle slabs that nobody must get
        assert spare >= 0, "the pool lacks the blocks"
        taken: list[list[int]] = []
        for index, group in enumerate(self._groups):
            offsets: list[int] = []
            while len(offsets) < counts[index]:
                may_open = missing[index] > 0 or (spare > 0 and num_idle > self.reserve_slabs)
                offset, has_opened = self._take(group, may_open)
                offsets.append(offset)
                if has_opened:
                    num_idle -= 1
                    if missing[index]:
                        missing[index] -= 1
                    else:
                        spare -= 1
            taken.append(offsets)
        return taken

    def retain(self, group: int, offsets: Iterable[int]) -> None:
        """Adds a reference to used or cached blocks."""
        blocks = self._groups[group]
        for offset in offsets:
            if offset in blocks.reference_counts:
                blocks.reference_counts[offset] += 1
            else:
                del blocks.cached[offset]
                index = offset // self._slab_units
                self._use(blocks, index, blocks.slabs[index], offset)

    def release(self, group: int, offsets: Iterable[int]) -> None:
        """Drops a reference of each block. Those that nobody holds any more are cached if they have a key, and will be
        evicted in this order; the others are free."""
        blocks = self._groups[group]
        counts = blocks.reference_counts
        for offset in offsets:
            count = counts[offset] - 1
            if count:
                counts[offset] = count
                continue
            del counts[offset]
            index = offset // self._slab_units
            slab = blocks.slabs[index]
            slab.num_used -= 1
            if slab.num_used:
                blocks.num_beside_used += 1
            else:
                blocks.num_beside_used -= blocks.blocks_per_slab - 1
                blocks.num_idle += 1
                blocks.note_free(index, slab)
            if offset in blocks.keys:
                self._num_released += 1
                blocks.cached[offset] = self._num_released
            else:
                self._free(blocks, offset)

    def set_key(self, group: int, offset: int, key: bytes) -> bool:
        """Gives a used block a key. A cached block that had it is free now; False if a used one has it."""
        blocks = self._groups[group]
        assert offset in blocks.reference_counts, f"block {offset} gets a key but nobody holds it"
        assert offset not in blocks.keys, f"block {offset} gets a second key"
        other = blocks.offsets.get(key)
        if other is not None:
            if other in blocks.reference_counts:
                return False
            self._evict(blocks, other)
        blocks.offsets[key] = offset
        blocks.keys[offset] = key
        return True

    def drop_key(self, group: int, offset: int) -> None:
        """A used block will hold something else."""
        blocks = self._groups[group]
        assert offset in blocks.reference_counts, f"block {offset} loses its key but nobody holds it"
        del blocks.offsets[blocks.keys.pop(offset)]

    def evict_oldest_of(self, group: int) -> None:
        """Frees the cached block of a group that was released the longest ago. There must be one."""
        blocks = self._groups[group]
        self._evict(blocks, next(iter(blocks.cached)))

    # Slabs.

    def _take(self, group: _GroupBlocks, may_open: bool) -> tuple[int, bool]:
        """(a block, whether that opened an idle slab)."""
        while True:
            if group.partial:
                index = next(reversed(group.partial))
                break
            if may_open:
                if self._free_slabs:
                    self._lend(group)
                if group.idle:
                    index = next(reversed(group.idle))
                    break
                self._evict_oldest()
            else:
                units = self._slab_units
                beside_used = (offset for offset in group.cached if group.slabs[offset // units].num_used)
                self._evict(group, next(beside_used))
        slab = group.slabs[index]
        has_opened = not slab.num_used
        offset = slab.free.pop()
        self._use(group, index, slab, offset)
        if not slab.free:
            group.note_free(index, slab)
        return offset, has_opened

    def _use(self, group: _GroupBlocks, index: int, slab: _Slab, offset: int) -> None:
        """The first reference to a block that was free or cached."""
        group.reference_counts[offset] = 1
        slab.num_used += 1
        if slab.num_used > 1:
            group.num_beside_used -= 1
        else:
            group.num_beside_used += group.blocks_per_slab - 1
            group.num_idle -= 1
            group.note_free(index, slab)

    def _free(self, group: _GroupBlocks, offset: int) -> None:
        """A block that is neither used nor cached any more."""
        index = offset // self._slab_units
        slab = group.slabs[index]
        slab.free.append(offset)
        if len(slab.free) == group.blocks_per_slab:
            del group.slabs[index]
            group.idle.pop(index, None)  # a slab of one block was never filed
            group.num_idle -= 1
            self._free_slabs.append(index)
        elif len(slab.free) == 1:
            group.note_free(index, slab)

    def _evict_oldest(self) -> None:
        """Of all groups: the stamp of release decides."""
        group = min(
            (group for group in self._groups if group.cached), key=lambda group: next(iter(group.cached.values()))
        )
        self._evict(group, next(iter(group.cached)))

    def _evict(self, group: _GroupBlocks, offset: int) -> None:
        del group.cached[offset]
        del group.offsets[group.keys.pop(offset)]
        self._free(group, offset)

    def _lend(self, group: _GroupBlocks) -> None:
        index = self._free_slabs.pop()
        first = index * self._slab_units
        last = first + (group.blocks_per_slab - 1) * group.block_units
        group.slabs[index] = group.idle[index] = _Slab(list(range(last, first - 1, -group.block_units)))
        group.num_idle += 1

    # Books.

    def check_integrity(self) -> None:
        """Raises AssertionError unless free + cached + used = total, in slabs and in each slab's blocks."""
        lent = [index for group in self._groups for index in group.slabs]
        assert sorted(lent + self._free_slabs) == list(range(self.num_slabs)), "a slab is lost or has two owners"
        for number, group in enumerate(self._groups):
            self._check_group(number, group)

    def _check_group(self, number: int, group: _GroupBlocks) -> None:
        used = group.reference_counts
        num_beside_used = num_idle = 0
        for index, slab in group.slabs.items():
            first = index * self._slab_units
            offsets = [first + block * group.block_units for block in range(group.blocks_per_slab)]
            held = [offset for offset in offsets if offset in used]
            cached = [offset for offset in offsets if offset in group.cached]
            assert sorted(held + cached + slab.free) == offsets, f"group {number} lost or doubled a block"
            assert slab.num_used == len(held), f"group {number} miscounts the used blocks of slab {index}"
            assert len(slab.free) < len(offsets), f"group {number} keeps a free slab"
            assert (index in group.partial) == bool(slab.free and held), f"group {number} misfiled slab {index}"
            assert (index in group.idle) == bool(slab.free and not held), f"group {number} misfiled slab {index}"
            if held:
                num_beside_used += len(cached) + len(slab.free)
            else:
                num_idle += 1
        assert group.num_beside_used == num_beside_used, f"group {number} miscounts the blocks beside used ones"
        assert group.num_idle == num_idle, f"group {number} miscounts its idle slabs"
        assert sum(slab.num_used for slab in group.slabs.values()) == len(used), f"group {number} uses foreign blocks"
        assert all(count > 0 for count in used.values()), f"group {number} has a dead block"
        assert {key: offset for offset, key in group.keys.items()} == group.offsets, f"group {number} mixes up keys"
        assert group.cached.keys() == group.keys.keys() - used.keys(), f"group {number} caches what it should not"
        stamps = list(group.cached.values())
        assert stamps == sorted(stamps), f"group {number} evicts out of order"
