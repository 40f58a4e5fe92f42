from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from pelton.cache.groups import CacheGroupSpec
from pelton.cache.pool import BlockPool

GROUPS = [CacheGroupSpec("full", 128), CacheGroupSpec("window", 320, window=32)]
SLAB_BYTES = 704  # five blocks of the first group, two of the second, and a rest for both
BLOCKS_PER_SLAB = (5, 2)


@pytest.fixture
def pool() -> BlockPool:
    return BlockPool(GROUPS, 4 * SLAB_BYTES + 100, SLAB_BYTES)


def take(pool: BlockPool, group: int, count: int) -> list[int]:
    counts = [0, 0]
    counts[group] = count
    return pool.allocate(counts)[group]


def take_keyed(pool: BlockPool, group: int, names: str) -> list[int]:
    blocks = take(pool, group, len(names))
    for block, name in zip(blocks, names, strict=True):
        assert pool.set_key(group, block, name.encode())
    return blocks


def names(pool: BlockPool, group: int) -> str:
    return "".join(sorted(key.decode() for key in pool.keys(group)))


def test_blocks_lie_inside_their_slabs_and_do_not_overlap(pool: BlockPool) -> None:
    spans = []
    for group, blocks in enumerate(pool.allocate([7, 3])):
        block_units = GROUPS[group].block_bytes // 64
        spans += [(offset, offset + block_units) for offset in blocks]
    spans.sort()
    assert all(end <= start for (_, end), (start, _) in pairwise(spans))
    assert all(start // 11 == (end - 1) // 11 for start, end in spans)
    pool.check_integrity()


def test_an_empty_slab_serves_the_other_group(pool: BlockPool) -> None:
    blocks = take(pool, 0, 20)
    assert not pool.can_allocate([0, 1])
    pool.release(0, blocks)
    assert pool.num_idle_slabs == 4
    assert pool.can_allocate([0, 8])
    assert not pool.can_allocate([1, 8])


def test_partial_slabs_are_filled_before_another_is_taken(pool: BlockPool) -> None:
    blocks = take(pool, 0, 10)
    pool.release(0, [blocks[1], blocks[7]])
    take(pool, 0, 2)
    assert pool.num_idle_slabs == 2


def test_a_shared_block_is_free_after_its_last_reference(pool: BlockPool) -> None:
    blocks = take(pool, 0, 2)
    pool.retain(0, blocks)
    pool.release(0, blocks)
    assert pool.num_used_blocks(0) == 2
    pool.release(0, blocks)
    assert pool.num_used_blocks(0) == 0
    pool.check_integrity()


def test_a_block_is_not_released_twice(pool: BlockPool) -> None:
    blocks = take(pool, 0, 1)
    pool.release(0, blocks)
    with pytest.raises(KeyError):
        pool.release(0, blocks)


def test_a_block_with_a_key_stays_until_its_room_is_needed(pool: BlockPool) -> None:
    blocks = take_keyed(pool, 0, "abc")
    pool.release(0, blocks)
    assert (pool.num_used_blocks(0), pool.num_cached_blocks(0), pool.num_idle_slabs) == (0, 3, 4)
    take(pool, 0, 17)
    assert names(pool, 0) == "abc"
    take(pool, 0, 1)
    assert names(pool, 0) == "bc"  # the first released is the first to go
    take(pool, 0, 2)
    assert names(pool, 0) == ""
    assert not pool.can_allocate([1, 0])
    pool.check_integrity()


def test_a_cached_block_that_is_taken_again_is_not_evicted(pool: BlockPool) -> None:
    blocks = take_keyed(pool, 0, "abc")
    pool.release(0, blocks)
    pool.retain(0, blocks[:1])
    assert not pool.can_allocate([20, 0])
    take(pool, 0, 19)
    assert names(pool, 0) == "a"
    pool.check_integrity()


def test_use_makes_a_cached_block_young_again(pool: BlockPool) -> None:
    blocks = take_keyed(pool, 0, "abc")
    pool.release(0, blocks)
    pool.retain(0, blocks[:1])
    pool.release(0, blocks[:1])
    take(pool, 0, 18)
    assert names(pool, 0) == "ac"


def test_the_oldest_goes_first_whichever_group_it_belongs_to(pool: BlockPool) -> None:
    full, window = take_keyed(pool, 0, "abcdefghij"), take_keyed(pool, 1, "klmn")  # all four slabs
    pool.release(0, full[:5])
    pool.release(1, window[:2])
    pool.release(0, full[5:])
    pool.release(1, window[2:])
    take(pool, 1, 1)  # a slab of the other group's must go
    assert names(pool, 0) == "fghij"
    take(pool, 1, 2)  # one is left of that slab; then this group's own are the oldest
    assert (names(pool, 0), names(pool, 1)) == ("fghij", "lmn")
    pool.check_integrity()


def test_slabs_in_reserve_are_not_opened_for_the_sake_of_cached_blocks(pool: BlockPool) -> None:
    used = take(pool, 0, 1)
    pool.release(0, take_keyed(pool, 0, "abcd"))
    pool.reserve_slabs = 3
    take(pool, 0, 4)
    assert pool.num_idle_slabs == 3
    assert names(pool, 0) == ""
    take(pool, 0, 1)
    assert pool.num_idle_slabs == 2
    assert used


def test_groups_are_given_blocks_all_at_once(pool: BlockPool) -> None:
    """The one idle slab is the second group's, though the first, which is served before, would rather have it."""
    take(pool, 0, 11)
    pool.release(0, take_keyed(pool, 0, "abcd"))
    assert pool.num_idle_slabs == 1
    assert [len(blocks) for blocks in pool.allocate([4, 2])] == [4, 2]
    assert names(pool, 0) == ""
    pool.check_integrity()


def test_a_key_belongs_to_one_block(pool: BlockPool) -> None:
    first = take_keyed(pool, 0, "a")
    second = take(pool, 0, 1)
    assert not pool.set_key(0, second[0], b"a")
    pool.release(0, first)
    assert pool.set_key(0, second[0], b"a")
    assert pool.keys(0) == {b"a": second[0]}
    assert pool.num_cached_blocks(0) == 0
    pool.check_integrity()


def test_integrity_finds_a_lost_block(pool: BlockPool) -> None:
    take(pool, 0, 3)
    next(iter(pool._groups[0].partial.values())).free.pop()
    with pytest.raises(AssertionError, match="lost or doubled"):
        pool.check_integrity()


@pytest.mark.parametrize(
    ("block_bytes", "pool_bytes", "slab_bytes"), [(0, 4096, 1024), (100, 4096, 1024), (2048, 4096, 1024), (64, 64, 65)]
)
def test_sizes_that_cannot_be_cut_are_refused(block_bytes: int, pool_bytes: int, slab_bytes: int) -> None:
    with pytest.raises(ValueError, match=r"block|slab"):
        BlockPool([CacheGroupSpec("full", block_bytes)], pool_bytes, slab_bytes)


def test_a_pool_beyond_the_reach_of_offsets_is_refused() -> None:
    with pytest.raises(ValueError, match="reach"):
        BlockPool(GROUPS, 1 << 39, SLAB_BYTES)


class PoolMachine(RuleBasedStateMachine):
    """The pool against dictionaries: references of every block, keys of every block, and cached ones in order."""

    @initialize(num_slabs=st.integers(1, 6))
    def start(self, num_slabs: int) -> None:
        self.num_slabs = num_slabs
        self.pool = BlockPool(GROUPS, num_slabs * SLAB_BYTES, SLAB_BYTES)
        self.counts: list[dict[int, int]] = [{}, {}]
        self.keys: list[dict[bytes, int]] = [{}, {}]

    @rule(counts=st.tuples(st.integers(0, 6), st.integers(0, 3)), reserve=st.integers(0, 3))
    def allocate(self, counts: tuple[int, int], reserve: int) -> None:
        can = self.pool.can_allocate(counts)
        assert can == self._fits(counts)
        if not can:
            return
        self.pool.reserve_slabs = reserve
        cached = [self._cached(group) for group in (0, 1)]
        for group, offsets in enumerate(self.pool.allocate(counts)):
            assert len(offsets) == counts[group]
            for offset in offsets:
                assert offset not in self.counts[group]
                self.counts[group][offset] = 1
        for group in (0, 1):
            kept = self.pool.keys(group)
            assert all(self.keys[group][key] in cached[group] for key in self.keys[group].keys() - kept.keys())
            self.keys[group] = {key: offset for key, offset in self.keys[group].items() if key in kept}

    def _fits(self, counts: tuple[int, int]) -> bool:
        """Every slab without used blocks may go to any group; the others have room for their own."""
        used = [[offset // 11 for offset in self.counts[group]] for group in (0, 1)]
        idle = self.num_slabs - len(set(used[0])) - len(set(used[1]))
        for group, count in enumerate(counts):
            beside = len(set(used[group])) * BLOCKS_PER_SLAB[group] - len(used[group])
            idle -= max(0, -(-(count - beside) // BLOCKS_PER_SLAB[group]))
        return idle >= 0

    @precondition(lambda self: any(self.counts))
    @rule(data=st.data(), is_release=st.booleans())
    def count(self, data: st.DataObject, is_release: bool) -> None:
        group = data.draw(st.sampled_from([index for index in (0, 1) if self.counts[index]]))
        offset = data.draw(st.sampled_from(sorted(self.counts[group])))
        (self.pool.release if is_release else self.pool.retain)(group, [offset])
        self.counts[group][offset] += -1 if is_release else 1
        if not self.counts[group][offset]:
            del self.counts[group][offset]

    @precondition(lambda self: any(self.counts))
    @rule(data=st.data(), name=st.sampled_from([b"a", b"b", b"c", b"d", b"e"]))
    def key(self, data: st.DataObject, name: bytes) -> None:
        group = data.draw(st.sampled_from([index for index in (0, 1) if self.counts[index]]))
        bare = sorted(set(self.counts[group]) - set(self.keys[group].values()))
        if not bare:
            return
        offset = data.draw(st.sampled_from(bare))
        is_free = self.keys[group].get(name) not in self.counts[group]
        assert self.pool.set_key(group, offset, name) == is_free
        if is_free:
            self.keys[group][name] = offset

    @precondition(lambda self: any(self._cached(group) for group in (0, 1)))
    @rule(data=st.data())
    def find(self, data: st.DataObject) -> None:
        group = data.draw(st.sampled_from([index for index in (0, 1) if self._cached(index)]))
        offset = data.draw(st.sampled_from(self._cached(group)))
        self.pool.retain(group, [offset])
        self.counts[group][offset] = 1

    def _cached(self, group: int) -> list[int]:
        return sorted(set(self.keys[group].values()) - set(self.counts[group]))

    @invariant()
    def agrees(self) -> None:
        self.pool.check_integrity()
        for group in (0, 1):
            assert self.pool.reference_counts(group) == self.counts[group]
            assert self.pool.keys(group) == self.keys[group]
            assert self.pool.num_cached_blocks(group) == len(self._cached(group))


def test_any_order_of_taking_and_giving_back_keeps_the_books(case_count: Callable[[int, int], int]) -> None:
    run_state_machine_as_test(
        PoolMachine,
        settings=settings(
            max_examples=case_count(60, 1000), stateful_step_count=40, deadline=None, derandomize=True, database=None
        ),
    )
