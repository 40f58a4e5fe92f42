from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pelton.cache.groups import CacheGroupSpec, invisible_blocks
from pelton.cache.manager import CacheManager
from pelton.cache.prefix import KeyChain

FULL = CacheGroupSpec("full", 64)
WINDOW = CacheGroupSpec("window", 128, window=32)
SECRET = b"s" * 64
TOKENS = list(range(80))


def keys(tokens: list[int], secret: bytes = SECRET, salt: str = "", adapter: str | None = None) -> list[bytes]:
    return KeyChain(secret, salt, adapter).extend(tokens, len(tokens) // 16)


def test_equal_beginnings_have_equal_keys_up_to_the_block_that_differs() -> None:
    other = keys([*TOKENS[:40], 99, *TOKENS[41:]])
    assert [mine == yours for mine, yours in zip(keys(TOKENS), other, strict=True)] == [True, True, False, False, False]


def test_a_block_is_not_the_same_after_another_beginning() -> None:
    assert keys(TOKENS[16:32])[0] != keys(TOKENS[:32])[1]


@pytest.mark.parametrize(
    "other",
    [{"secret": b"t" * 64}, {"salt": "a"}, {"adapter": "a"}, {"adapter": ""}, {"adapter": "b", "salt": "a"}],
)
def test_secret_salt_and_adapter_are_in_every_key(other: dict[str, object]) -> None:
    assert not set(keys(TOKENS)) & set(keys(TOKENS, **other))  # type: ignore[arg-type]


def test_salt_and_adapter_are_not_mixed_up() -> None:
    assert keys(TOKENS, salt="b", adapter="a") != keys(TOKENS, salt="a", adapter="b")
    assert keys(TOKENS, salt="ab", adapter="") != keys(TOKENS, salt="b", adapter="a")


def test_token_ids_are_of_fixed_width() -> None:
    """A low byte that moves to its neighbour makes another key."""
    assert keys([1, 0] * 8) != keys([0, 256] * 8)
    assert len(keys([(1 << 32) - 1] * 16)) == 1


@given(st.lists(st.integers(0, 6), max_size=6))
def test_a_chain_grows_as_if_made_at_once(lengths: list[int]) -> None:
    chain = KeyChain(SECRET, "")
    for num_blocks in lengths:
        chain.extend(TOKENS + TOKENS, num_blocks)
    assert chain.keys == keys(TOKENS + TOKENS)[: max(lengths, default=0)]


def manager(groups: list[CacheGroupSpec], num_slabs: int = 16) -> CacheManager:
    return CacheManager(groups, num_slabs * 512, 512, max_chunk=32)


def compute(cache: CacheManager, slot: int, chain: list[bytes], first: int = 0) -> None:
    """A slot computes the blocks of a chain, 32 tokens at a time."""
    for start, end in pairwise([*range(first * 16, len(chain) * 16, 32), len(chain) * 16]):
        assert cache.grow(slot, start, end - start) is not None
        cache.keep(slot, chain, end // 16)


def test_what_one_computes_another_starts_with() -> None:
    cache = manager([FULL, WINDOW])
    chain = keys(TOKENS)
    cache.open(0, 128)
    compute(cache, 0, chain)
    assert cache.find(chain, 5).usable == 5
    assert cache.find(chain, 3).usable == 3
    assert cache.find(keys(TOKENS, salt="other"), 5).usable == 0
    cache.open(1, 128, chain, 4)
    assert cache.table(1, 0) == cache.table(0, 0)[:4]
    assert cache.table(1, 1)[:2] == [None, None]  # the token at 64 sees 33 onwards
    growth = cache.grow(1, 64, 5)
    assert growth is not None
    assert [len(blocks) for blocks in growth.new_blocks] == [5, 5]
    assert growth.freed_blocks == [0, 2]
    assert growth.new_blocks[0][4] not in cache.table(0, 0)  # written by slot 1 alone
    cache.check_integrity()


def test_blocks_outlive_their_slot() -> None:
    cache = manager([FULL])
    chain = keys(TOKENS)
    cache.open(0, 128)
    compute(cache, 0, chain)
    cache.close(0)
    assert cache.usage == 0
    assert cache.find(chain, 5).usable == 5


def test_the_end_of_a_chain_is_evicted_before_its_beginning() -> None:
    cache = manager([FULL], num_slabs=1)  # 8 blocks
    chain = keys(TOKENS)
    cache.open(0, 128)
    compute(cache, 0, chain)
    cache.close(0)
    cache.open(1, 128)
    found = []
    for start in range(0, 128, 16):
        cache.grow(1, start, 16)
        found.append(cache.find(chain, 5).usable)
    assert found == [5, 5, 5, 4, 3, 2, 1, 0]


@given(st.integers(0, 79), st.integers(1, 70), st.sets(st.integers(0, 4)))
def test_windows_need_only_what_the_next_token_sees(seed: int, window: int, lost: set[int]) -> None:
    """Against the definition, with any of the window's blocks lost."""
    groups = [FULL, CacheGroupSpec("window", 128, window=window)]
    cache = manager(groups)
    chain = keys([seed, *TOKENS[1:]])
    cache.open(0, 128)
    compute(cache, 0, chain)
    cache.close(0)
    kept = cache.pool.keys(1)
    for number in lost:
        if chain[number] in kept:
            cache.pool._evict(cache.pool._groups[1], kept[chain[number]])
    best = max(
        count
        for count in range(6)
        if all(chain[number] in kept for number in range(invisible_blocks(window, 16 * count), count))
    )
    assert cache.find(chain, 5).usable == best


def test_who_computes_what_is_there_already_offers_nothing_behind_it() -> None:
    cache = manager([FULL])
    chain = keys(TOKENS)
    cache.open(0, 128)
    compute(cache, 0, chain[:2])
    cache.open(1, 128)
    compute(cache, 1, chain)  # computes the first two again
    assert cache.find(chain, 5).usable == 2
    cache.check_integrity()


def test_who_computes_again_what_nobody_holds_takes_its_place() -> None:
    cache = manager([FULL])
    chain = keys(TOKENS)
    cache.open(0, 128)
    compute(cache, 0, chain[:2])
    cache.close(0)
    cache.open(1, 128)
    compute(cache, 1, chain)
    assert cache.find(chain, 5).usable == 5
    assert cache.pool.num_cached_blocks(0) == 0
    cache.check_integrity()


def test_it_is_known_who_is_about_to_compute_a_block() -> None:
    cache = manager([FULL])
    chain = keys(TOKENS)
    cache.open(0, 128, chain)
    cache.open(1, 128, chain)
    compute(cache, 0, chain[:3])
    assert [cache.computed_by(key) for key in chain] == [None, None, None, 0, 0]
    cache.close(0)
    assert cache.computed_by(chain[3]) is None
