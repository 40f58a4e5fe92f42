"""The states of recurrent layers: where they are kept, who starts there, and what is given up when room is short."""

from __future__ import annotations

from pelton.cache.groups import CacheGroupSpec
from pelton.cache.manager import CacheManager, Growth, PrefixMatch

FULL = CacheGroupSpec("full", 128)
STATE = CacheGroupSpec("state", 256, num_states=3)
TOKENS = list(range(80))


def manager(num_slabs: int = 16, checkpoint_bytes: int | None = None) -> CacheManager:
    return CacheManager([FULL, STATE], num_slabs * 512, 512, max_chunk=32, checkpoint_bytes=checkpoint_bytes)


def keys(cache: CacheManager) -> list[bytes]:
    return cache.new_chain("").extend(TOKENS, len(TOKENS) // 16)


def grown(cache: CacheManager, slot: int, num_computed: int, num_tokens: int) -> Growth:
    growth = cache.grow(slot, num_computed, num_tokens)
    assert growth is not None
    cache.check_integrity()
    return growth


def computed(cache: CacheManager, slot: int = 0) -> list[int]:
    """The slot computes two blocks and keeps its states behind them. Returns the blocks of these."""
    cache.open(slot, 80)
    written = grown(cache, slot, 0, 32).new_blocks[1]
    cache.keep(slot, keys(cache), 2, is_checkpoint=True)
    return written


def test_a_sequence_starts_behind_a_checkpoint_only() -> None:
    cache = manager()
    computed(cache)
    grown(cache, 0, 32, 20)
    cache.keep(0, keys(cache), 3)
    assert cache.find(keys(cache), 4) == PrefixMatch(2, 3)
    cache.close(0)
    assert cache.find(keys(cache), 4) == PrefixMatch(2, 3)
    assert cache.find(keys(cache), 1) == PrefixMatch(0, 1)


def test_the_step_behind_a_checkpoint_writes_elsewhere_and_those_after_it_in_place() -> None:
    cache = manager()
    kept = computed(cache)
    moved = grown(cache, 0, 32, 1).new_blocks[1]
    assert len(moved) == 3
    assert not set(moved) & set(kept)
    assert cache.pool.num_used_blocks(1) == 6  # what that step reads may not be given to anybody yet
    assert grown(cache, 0, 33, 20).new_blocks[1] == []
    assert cache.pool.num_used_blocks(1) == 3
    assert cache.pool.num_cached_blocks(1) == 3


def test_who_starts_at_a_checkpoint_reads_it_and_writes_to_blocks_of_its_own() -> None:
    cache = manager()
    kept = computed(cache)
    cache.open(1, 80, keys(cache), 2)
    first = grown(cache, 1, 32, 10).new_blocks[1]
    assert first[:3] == kept
    assert not set(first[3:]) & set(kept)
    assert len(grown(cache, 0, 32, 1).new_blocks[1]) == 3  # the other must leave it too
    cache.close(0)
    cache.close(1)
    cache.check_integrity()
    assert cache.find(keys(cache), 4).usable == 2


def test_without_room_the_checkpoint_is_given_up() -> None:
    cache = manager(num_slabs=3)
    computed(cache)  # two slabs of states, one of tokens
    growth = grown(cache, 0, 32, 1)
    assert growth.new_blocks[1] == []
    assert cache.find(keys(cache), 4) == PrefixMatch(0, 2)


def test_what_another_reads_is_not_given_up() -> None:
    cache = manager(num_slabs=5)
    computed(cache)
    cache.open(1, 80, keys(cache), 2)
    grown(cache, 1, 32, 1)  # its states take what there is
    assert cache.grow(0, 32, 1) is None
    assert not cache.has_room([(0, 33)])
    cache.close(1)
    assert cache.has_room([(0, 33)])
    grown(cache, 0, 32, 1)


def test_who_reads_holds_what_it_reads_until_it_has_written() -> None:
    cache = manager(num_slabs=5)
    kept = computed(cache)
    cache.close(0)
    cache.open(1, 80, keys(cache), 2)
    assert set(cache.pool.reference_counts(1)) == set(kept)
    grown(cache, 1, 32, 1)
    grown(cache, 1, 33, 16)
    assert not set(cache.pool.reference_counts(1)) & set(kept)


def test_an_equal_checkpoint_is_not_kept_twice() -> None:
    cache = manager()
    computed(cache, 0)
    kept = computed(cache, 1)
    assert grown(cache, 1, 32, 1).new_blocks[1] == []
    cache.close(1)
    assert not set(kept) & set(cache.pool.reference_counts(1))
    assert cache.pool.num_cached_blocks(1) == 0


def test_behind_what_others_hold_a_slot_goes_on_offering() -> None:
    cache = manager()
    computed(cache, 0)
    cache.open(1, 80)
    grown(cache, 1, 0, 32)
    grown(cache, 1, 32, 32)
    cache.keep(1, keys(cache), 4, is_checkpoint=True)
    assert cache.find(keys(cache), 4) == PrefixMatch(4, 4)


def test_unused_checkpoints_take_no_more_than_they_may_but_the_newest_is_kept() -> None:
    for checkpoint_bytes, expected in ((None, 4), (3 * 256 * 2, 2), (3 * 256, 1), (0, 1)):
        cache = manager(num_slabs=40, checkpoint_bytes=checkpoint_bytes)
        cache.open(0, 80)
        for number in range(4):
            grown(cache, 0, 16 * number, 16)
            cache.keep(0, keys(cache), number + 1, is_checkpoint=True)
        cache.close(0)
        cache.check_integrity()
        assert cache.pool.num_cached_blocks(1) == 3 * expected
        assert cache.find(keys(cache), 4) == PrefixMatch(4, 4)
