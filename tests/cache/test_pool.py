from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from pelton.cache.groups import CacheGroupSpec
from pelton.cache.pool import BlockPool

GROUPS = [CacheGroupSpec("full", 128), CacheGroupSpec("window", 320, window=32)]
SLAB_BYTES = 704  # five blocks of the first group, two of the second, and a rest for both


@pytest.fixture
def pool() -> BlockPool:
    return BlockPool(GROUPS, 4 * SLAB_BYTES + 100, SLAB_BYTES)


def test_blocks_lie_inside_their_slabs_and_do_not_overlap(pool: BlockPool) -> None:
    spans = []
    for group, count in ((0, 7), (1, 3)):
        block_units = GROUPS[group].block_bytes // 64
        spans += [(offset, offset + block_units) for offset in pool.allocate(group, count)]
    spans.sort()
    assert all(end <= start for (_, end), (start, _) in pairwise(spans))
    assert all(start // 11 == (end - 1) // 11 for start, end in spans)
    pool.check_integrity()


def test_an_empty_slab_serves_the_other_group(pool: BlockPool) -> None:
    blocks = pool.allocate(0, 20)
    assert not pool.can_allocate([0, 1])
    pool.release(0, blocks)
    assert pool.num_free_slabs == 4
    assert pool.can_allocate([0, 8])
    assert not pool.can_allocate([1, 8])


def test_partial_slabs_are_filled_before_another_is_taken(pool: BlockPool) -> None:
    blocks = pool.allocate(0, 10)
    pool.release(0, [blocks[1], blocks[7]])
    pool.allocate(0, 2)
    assert pool.num_free_slabs == 2


def test_a_shared_block_is_free_after_its_last_reference(pool: BlockPool) -> None:
    blocks = pool.allocate(0, 2)
    pool.retain(0, blocks)
    pool.release(0, blocks)
    assert pool.num_used_blocks(0) == 2
    pool.release(0, blocks)
    assert pool.num_used_blocks(0) == 0
    pool.check_integrity()


def test_a_block_is_not_released_twice(pool: BlockPool) -> None:
    blocks = pool.allocate(0, 1)
    pool.release(0, blocks)
    with pytest.raises(KeyError):
        pool.release(0, blocks)


def test_integrity_finds_a_lost_block(pool: BlockPool) -> None:
    pool.allocate(0, 3)
    next(iter(pool._groups[0].partial.values())).pop()
    with pytest.raises(AssertionError, match="free blocks"):
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
    """The pool against a dictionary of reference counts."""

    @initialize(num_slabs=st.integers(1, 6))
    def start(self, num_slabs: int) -> None:
        self.pool = BlockPool(GROUPS, num_slabs * SLAB_BYTES, SLAB_BYTES)
        self.counts: list[dict[int, int]] = [{}, {}]

    @rule(group=st.integers(0, 1), count=st.integers(1, 6))
    def allocate(self, group: int, count: int) -> None:
        wanted = [0, 0]
        wanted[group] = count
        if self.pool.can_allocate(wanted):
            for offset in self.pool.allocate(group, count):
                assert offset not in self.counts[group]
                self.counts[group][offset] = 1

    @precondition(lambda self: any(self.counts))
    @rule(data=st.data(), is_release=st.booleans())
    def count(self, data: st.DataObject, is_release: bool) -> None:
        group = data.draw(st.sampled_from([index for index in (0, 1) if self.counts[index]]))
        offset = data.draw(st.sampled_from(sorted(self.counts[group])))
        (self.pool.release if is_release else self.pool.retain)(group, [offset])
        self.counts[group][offset] += -1 if is_release else 1
        if not self.counts[group][offset]:
            del self.counts[group][offset]

    @invariant()
    def agrees(self) -> None:
        self.pool.check_integrity()
        assert [self.pool.reference_counts(group) for group in (0, 1)] == self.counts


TestPoolMachine = PoolMachine.TestCase
TestPoolMachine.settings = settings(max_examples=60, stateful_step_count=40, deadline=None, derandomize=True)
