"""The KV cache's memory as numbers: slabs lent to groups, cut into blocks, counted by reference. It owns no bytes.

    pool   | slab 0: group 0      | slab 1: group 1 | slab 2: free | ...
             block block block .    block block

A slab that holds no block in use goes back to the free slabs and may serve another group next.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pelton.cache.groups import MAX_POOL_BYTES, OFFSET_UNIT, CacheGroupSpec


class _GroupBlocks:
    """One group's slabs. `partial` maps a slab to the offsets that are free in it; full slabs are not in it."""

    def __init__(self, block_bytes: int, slab_bytes: int) -> None:
        self.block_units = block_bytes // OFFSET_UNIT
        self.blocks_per_slab = slab_bytes // block_bytes
        self.slabs: set[int] = set()
        self.partial: dict[int, list[int]] = {}
        self.num_free = 0
        self.reference_counts: dict[int, int] = {}


class BlockPool:
    """Allocates blocks by offset from the pool's base, in units of 64 bytes.

    A block is free, or in use with a reference count >= 1. Raises ValueError on sizes that can't be cut.
    """

    def __init__(self, groups: Sequence[CacheGroupSpec], pool_bytes: int, slab_bytes: int) -> None:
        if pool_bytes > MAX_POOL_BYTES:
            raise ValueError(f"a pool of {pool_bytes} bytes is beyond the reach of block offsets, {MAX_POOL_BYTES}")
        if slab_bytes % OFFSET_UNIT:
            raise ValueError(f"slab_bytes is {slab_bytes}, not a multiple of {OFFSET_UNIT}")
        for group in groups:
            if group.block_bytes <= 0 or group.block_bytes % OFFSET_UNIT or group.block_bytes > slab_bytes:
                raise ValueError(f"a block of {group.block_bytes} bytes can't be cut from a slab of {slab_bytes}")
        self.num_slabs = pool_bytes // slab_bytes
        self.slab_bytes = slab_bytes
        self._slab_units = slab_bytes // OFFSET_UNIT
        self._block_bytes = [group.block_bytes for group in groups]
        self.clear()

    def clear(self) -> None:
        """All blocks are free."""
        self._free_slabs = list(range(self.num_slabs - 1, -1, -1))  # the lowest first: untouched pages stay untouched
        self._groups = [_GroupBlocks(block_bytes, self.slab_bytes) for block_bytes in self._block_bytes]

    @property
    def num_free_slabs(self) -> int:
        return len(self._free_slabs)

    @property
    def usage(self) -> float:
        """Share of the pool that is in use, 0 to 1."""
        used = sum(
            len(group.reference_counts) * block_bytes
            for group, block_bytes in zip(self._groups, self._block_bytes, strict=True)
        )
        return used / max(1, self.num_slabs * self.slab_bytes)

    def num_used_blocks(self, group: int) -> int:
        return len(self._groups[group].reference_counts)

    def reference_counts(self, group: int) -> dict[int, int]:
        """Of every block in use, by offset."""
        return dict(self._groups[group].reference_counts)

    def can_allocate(self, counts: Sequence[int]) -> bool:
        """Whether counts[group] blocks can be had of every group at once."""
        slabs = 0
        for group, count in zip(self._groups, counts, strict=True):
            missing = count - group.num_free
            if missing > 0:
                slabs += -(-missing // group.blocks_per_slab)
        return slabs <= len(self._free_slabs)

    def allocate(self, group: int, count: int) -> list[int]:
        """Takes `count` blocks, each with one reference. The caller has asked `can_allocate`."""
        blocks = self._groups[group]
        taken: list[int] = []
        while len(taken) < count:
            if not blocks.partial:
                self._lend_slab(blocks)
            slab, free = next(iter(blocks.partial.items()))  # partial slabs are filled before another is taken
            part = free[-(count - len(taken)) :][::-1]
            del free[len(free) - len(part) :]
            if not free:
                del blocks.partial[slab]
            taken += part
        blocks.num_free -= count
        for offset in taken:
            blocks.reference_counts[offset] = 1
        return taken

    def retain(self, group: int, offsets: Iterable[int]) -> None:
        """Adds a reference to blocks in use."""
        counts = self._groups[group].reference_counts
        for offset in offsets:
            counts[offset] += 1

    def release(self, group: int, offsets: Iterable[int]) -> None:
        """Drops a reference of each block; a block without any is free at once."""
        blocks = self._groups[group]
        counts = blocks.reference_counts
        for offset in offsets:
            count = counts[offset] - 1
            if count:
                counts[offset] = count
                continue
            del counts[offset]
            slab = offset // self._slab_units
            free = blocks.partial.setdefault(slab, [])
            free.append(offset)
            blocks.num_free += 1
            if len(free) == blocks.blocks_per_slab:
                self._take_back_slab(blocks, slab)

    def check_integrity(self) -> None:
        """Raises AssertionError unless free + used = total, in slabs and in each slab's blocks."""
        lent = [slab for group in self._groups for slab in group.slabs]
        assert sorted(lent + self._free_slabs) == list(range(self.num_slabs)), "a slab is lost or has two owners"
        for index, group in enumerate(self._groups):
            free = [offset for slab in group.partial.values() for offset in slab]
            assert len(free) == group.num_free, f"group {index} counts {group.num_free} free blocks, has {len(free)}"
            assert all(group.partial.values()), f"group {index} keeps a full slab among the partial ones"
            expected = [
                slab * self._slab_units + block * group.block_units
                for slab in sorted(group.slabs)
                for block in range(group.blocks_per_slab)
            ]
            assert sorted(free + list(group.reference_counts)) == expected, f"group {index} lost or doubled a block"
            assert all(count > 0 for count in group.reference_counts.values()), f"group {index} has a dead block"

    def _lend_slab(self, blocks: _GroupBlocks) -> None:
        slab = self._free_slabs.pop()
        first = slab * self._slab_units
        last = first + (blocks.blocks_per_slab - 1) * blocks.block_units
        blocks.slabs.add(slab)
        blocks.partial[slab] = list(range(last, first - 1, -blocks.block_units))
        blocks.num_free += blocks.blocks_per_slab

    def _take_back_slab(self, blocks: _GroupBlocks, slab: int) -> None:
        del blocks.partial[slab]
        blocks.slabs.remove(slab)
        blocks.num_free -= blocks.blocks_per_slab
        self._free_slabs.append(slab)
