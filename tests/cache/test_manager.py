from __future__ import annotations

from pelton.cache.groups import CacheGroupSpec
from pelton.cache.manager import CacheManager

FULL = CacheGroupSpec("full", 64)
WINDOW = CacheGroupSpec("window", 128, window=32)


def manager(num_slabs: int = 8, groups: list[CacheGroupSpec] | None = None) -> CacheManager:
    return CacheManager(groups or [FULL, WINDOW], num_slabs * 512, 512, max_chunk=32)


def test_tables_cover_the_tokens_asked_for() -> None:
    cache = manager()
    cache.open(0, 128)
    growth = cache.grow(0, 0, 17)
    assert growth is not None
    assert [len(blocks) for blocks in growth.new_blocks] == [2, 2]
    assert cache.table(0, 0) == growth.new_blocks[0]


def test_a_token_inside_the_last_block_takes_nothing() -> None:
    cache = manager()
    cache.open(0, 128)
    cache.grow(0, 0, 17)
    growth = cache.grow(0, 17, 1)
    assert growth is not None
    assert growth.new_blocks == [[], []]
    assert growth.freed_blocks is None


def test_a_window_gives_back_what_nobody_can_see() -> None:
    cache = manager()
    cache.open(0, 128)
    for start in range(0, 96, 32):
        growth = cache.grow(0, start, 32)
    assert growth is not None
    assert growth.freed_blocks == [0, 2]  # the query at 64 sees 33 onwards
    assert cache.table(0, 1)[:2] == [None, None]
    assert None not in cache.table(0, 0)
    assert cache.pool.num_used_blocks(1) == 4
    cache.check_integrity()


def test_a_refused_growth_takes_nothing_and_may_be_repeated() -> None:
    cache = manager(num_slabs=2)
    for slot in (0, 1):
        cache.open(slot, 128)
    assert cache.grow(0, 0, 64) is not None
    assert cache.grow(1, 0, 16) is None
    cache.check_integrity()
    cache.close(0)
    assert cache.grow(1, 0, 16) is not None


def test_given_back_blocks_are_told_even_after_a_refusal() -> None:
    cache = manager(num_slabs=3)
    for slot in (0, 1):
        cache.open(slot, 128)
    cache.grow(0, 0, 64)
    cache.grow(1, 0, 32)
    assert cache.grow(0, 64, 48) is None
    cache.close(1)
    growth = cache.grow(0, 64, 32)
    assert growth is not None
    assert growth.freed_blocks == [0, 2]


def test_closing_gives_everything_back() -> None:
    cache = manager()
    cache.open(3, 128)
    cache.grow(3, 0, 50)
    cache.close(3)
    assert cache.pool.num_idle_slabs == 8
    cache.check_integrity()


def test_what_is_promised_to_others_is_not_given_away() -> None:
    cache = manager(num_slabs=2, groups=[FULL])  # 16 blocks
    for slot in (0, 1):
        cache.open(slot, 128)
    cache.grow(0, 0, 32)
    assert cache.has_room([(1, 14 * 16)])
    assert cache.has_room([(1, 14 * 16), (0, 32)])
    assert not cache.has_room([(1, 14 * 16), (0, 48)])
    assert cache.has_room([(1, 13 * 16), (0, 48)])
    assert not cache.has_room([(1, 13 * 16), (0, 48)], 1)


def test_a_window_is_promised_no_more_than_it_sees() -> None:
    cache = manager(num_slabs=3, groups=[WINDOW])
    cache.open(0, 100_000)
    assert cache.has_room([(0, 100_000)])


def test_states_are_taken_once_and_given_back_at_the_end() -> None:
    cache = manager(groups=[FULL, CacheGroupSpec("state", 256, num_states=3)])
    cache.open(0, 128)
    first = cache.grow(0, 0, 17)
    second = cache.grow(0, 17, 40)
    assert first is not None
    assert second is not None
    assert [len(blocks) for blocks in first.new_blocks] == [2, 3]
    assert [len(blocks) for blocks in second.new_blocks] == [2, 0]
    cache.check_integrity()
    cache.close(0)
    assert cache.pool.num_used_blocks(1) == 0


def test_a_slot_without_room_for_its_states_is_refused_whole() -> None:
    cache = manager(num_slabs=3, groups=[FULL, CacheGroupSpec("state", 256, num_states=3)])
    for slot in (0, 1):
        cache.open(slot, 16)
    assert cache.has_room([(0, 16)])
    assert not cache.has_room([(0, 16), (1, 16)])
    assert cache.grow(0, 0, 16) is not None
    assert cache.grow(1, 0, 16) is None
    cache.check_integrity()
    cache.close(0)
    assert cache.grow(1, 0, 16) is not None
