"""Which blocks hold the states of recurrent layers: each sequence's own, and those kept as checkpoints.

A sequence has one block per recurrent layer, which its steps write again and again. A *checkpoint* is a set of such
blocks as they stood at a boundary between two blocks of tokens, kept under the key of the block before it. The step
behind a checkpoint reads it and writes to other blocks, so keeping one copies nothing, and nobody ever writes to a
block that has a key. It knows slots and keys, no tensors.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from pelton.cache.groups import CacheGroupSpec
from pelton.cache.pool import BlockPool


class _States(msgspec.Struct):
    """One slot's blocks, per group.

    written:  those that its steps write; none before the first.
    read:     those of a checkpoint that its last step read, or its first will read.
    is_kept:  `written` are a checkpoint now, so the next step has to write elsewhere.
    """

    written: list[list[int]]
    read: list[list[int]]
    is_kept: bool = False


class StateBlocks:
    """Without groups of states there is nothing to hold, and every boundary has its checkpoint."""

    def __init__(self, groups: Sequence[CacheGroupSpec], pool: BlockPool, checkpoint_bytes: int | None) -> None:
        """checkpoint_bytes: what checkpoints that nobody uses may take of the pool; None for no bound of their own.
        The newest is kept whatever its size."""
        self._groups = [(index, group.num_states) for index, group in enumerate(groups) if group.num_states]
        self._pool = pool
        self._slots: dict[int, _States] = {}
        self._most_unused: int | None = None  # checkpoints
        if self._groups and checkpoint_bytes is not None:
            each = sum(groups[index].block_bytes * num_states for index, num_states in self._groups)
            self._most_unused = max(1, checkpoint_bytes // each)

    def __bool__(self) -> bool:
        return bool(self._groups)

    def clear(self) -> None:
        self._slots = {}

    def has(self, key: bytes) -> bool:
        """Whether there is a whole checkpoint behind the block of this key."""
        return all(
            all(name in offsets for name in _names(key, num_states))
            for index, num_states in self._groups
            for offsets in (self._pool.keys(index),)
        )

    def open(self, slot: int, key: bytes | None) -> None:
        """The slot starts behind the block of this key, or at the start."""
        read: list[list[int]] = [[] for _ in self._groups]
        if key is not None:
            for place, (index, num_states) in enumerate(self._groups):
                offsets = self._pool.keys(index)
                read[place] = [offsets[name] for name in _names(key, num_states)]
                self._pool.retain(index, read[place])
        self._slots[slot] = _States([[] for _ in self._groups], read)

    def missing(self, slot: int, counts: list[int]) -> None:
        """Adds to counts, per group of the cache, the blocks without which the slot's next step can't be."""
        states = self._slots[slot]
        for place, (index, num_states) in enumerate(self._groups):
            if not states.written[place] or self._is_shared(states):
                counts[index] += num_states

    def release_read(self, slot: int) -> None:
        """The step that read a checkpoint is done, if it has been."""
        states = self._slots[slot]
        for place, (index, _) in enumerate(self._groups):
            if states.written[place]:
                self._pool.release(index, states.read[place])
                states.read[place] = []
        self._trim()

    def spare_checkpoint(self, slot: int, counts: Sequence[int]) -> list[int]:
        """counts: what the slot's next step needs. With what it takes beside to leave its checkpoint as it is, if there
        is one and room; else the checkpoint is given up and written over."""
        states = self._slots[slot]
        if not states.is_kept or self._is_shared(states):
            return list(counts)
        wanted = list(counts)
        for index, num_states in self._groups:
            wanted[index] += num_states
        if self._pool.can_allocate(wanted):
            return wanted
        states.is_kept = False
        for (index, _), blocks in zip(self._groups, states.written, strict=True):
            for offset in blocks:
                self._pool.drop_key(index, offset)
        return list(counts)

    def take(self, slot: int, new_blocks: list[list[int]]) -> None:
        """new_blocks: per group of the cache, what was allocated for the slot. Those of states get what the step reads
        put before them, if that is another's."""
        states = self._slots[slot]
        for place, (index, _) in enumerate(self._groups):
            added = new_blocks[index]
            if not added:
                continue
            if states.written[place]:
                states.read[place] = states.written[place]
            else:
                new_blocks[index] = states.read[place] + added
            states.written[place] = added
        states.is_kept = False

    def keep(self, slot: int, key: bytes) -> None:
        """The slot's states stand behind the block of this key: they become a checkpoint unless there is one."""
        states = self._slots[slot]
        if states.is_kept or self.has(key):
            return
        for (index, num_states), blocks in zip(self._groups, states.written, strict=True):
            for name, offset in zip(_names(key, num_states), blocks, strict=True):
                is_mine = self._pool.set_key(index, offset, name)
                assert is_mine, "a state of a checkpoint that is not whole is in use"
        states.is_kept = bool(self._groups)

    def close(self, slot: int) -> None:
        states = self._slots.pop(slot)
        for place, (index, _) in enumerate(self._groups):
            self._pool.release(index, states.read[place])
            self._pool.release(index, states.written[place])
        self._trim()

    def held(self, index: int) -> list[int]:
        """Offsets that slots hold of a group of the cache, each as often as it is held."""
        places = [place for place, (group, _) in enumerate(self._groups) if group == index]
        return [
            offset
            for states in self._slots.values()
            for place in places
            for offset in (*states.written[place], *states.read[place])
        ]

    def _trim(self) -> None:
        if self._most_unused is None:
            return
        for index, num_states in self._groups:
            while self._pool.num_cached_blocks(index) > self._most_unused * num_states:
                self._pool.evict_oldest_of(index)

    def _is_shared(self, states: _States) -> bool:
        """Whether another reads what this slot has written, so that it must not write there again."""
        return states.is_kept and any(
            self._pool.reference_count(index, blocks[0]) > 1
            for (index, _), blocks in zip(self._groups, states.written, strict=True)
        )


def _names(key: bytes, num_states: int) -> Iterator[bytes]:
    """The key of each layer's block. Most keys have no checkpoint, so the first is often the last that is made."""
    return (key + number.to_bytes(2) for number in range(num_states))
