"""Requests that begin alike: what is found, who waits for whom, and who does not."""

from __future__ import annotations

import pytest

from pelton.cache.groups import CacheGroupSpec
from pelton.engine.engine import Engine
from pelton.sampling_params import SamplingParams
from tests.fake_runner import FULL, engine_of, run, runner_of

PROMPT = [(index * index) % 50 for index in range(100)]
WINDOWED = [FULL, CacheGroupSpec("window", 192, window=20)]
SHORT = SamplingParams(max_tokens=2, ignore_eos=True, seed=1)


def num_computed(engine: Engine) -> int:
    return sum(work.num_tokens for batch in runner_of(engine).steps for work in batch.work)


@pytest.mark.parametrize("groups", [[FULL], WINDOWED, WINDOWED[1:]])
def test_a_prompt_that_comes_again_is_found_but_for_its_end(groups: list[CacheGroupSpec]) -> None:
    engine = engine_of(groups=groups)
    engine.add("first", PROMPT, SHORT)
    assert run(engine)["first"].num_cached_tokens == 0
    before = num_computed(engine)
    engine.add("again", PROMPT, SHORT)
    assert run(engine)["again"].num_cached_tokens == 96
    assert num_computed(engine) - before == 4 + 1
    stats = engine.stats()
    assert (stats.prefix_queried_tokens_total, stats.prefix_hit_tokens_total) == (200, 96)


def test_of_a_prompt_of_whole_blocks_the_last_is_computed() -> None:
    engine = engine_of()
    for name, found in (("first", 0), ("again", 80)):
        engine.add(name, PROMPT[:96], SHORT)
        assert run(engine)[name].num_cached_tokens == found


def test_an_answer_is_found_by_the_next_turn() -> None:
    engine = engine_of()
    engine.add("turn", PROMPT[:40], SamplingParams(max_tokens=30, ignore_eos=True, seed=1))
    said = [token for _ in range(100) for part in engine.step() for token in part.token_ids]
    engine.add("next", PROMPT[:40] + said + [1, 2, 3], SHORT)
    assert run(engine)["next"].num_cached_tokens == 64  # 69 tokens were computed, the last one never


@pytest.mark.parametrize("salts", [("", "a"), ("a", "b"), ("a", "")])
def test_nothing_is_found_under_another_salt(salts: tuple[str, str]) -> None:
    engine = engine_of()
    for name, salt in zip(("first", "other"), salts, strict=True):
        engine.add(name, PROMPT, SHORT, cache_salt=salt)
        assert run(engine)[name].num_cached_tokens == 0
    engine.add("again", PROMPT, SHORT, cache_salt=salts[0])
    assert run(engine)["again"].num_cached_tokens == 96


def test_nothing_is_found_without_a_prefix_cache() -> None:
    engine = engine_of(prefix_cache=False)
    for name in ("first", "again"):
        engine.add(name, PROMPT, SHORT)
        assert run(engine)[name].num_cached_tokens == 0
    assert engine.cache.pool.num_cached_blocks(0) == 0
    assert engine.stats().prefix_queried_tokens_total == 0


def test_who_wants_prompt_logprobs_is_found_but_finds_nothing() -> None:
    engine = engine_of()
    wants = SamplingParams(max_tokens=2, ignore_eos=True, seed=1, prompt_logprobs=0)
    for name, sampling, found in (("writes", wants, 0), ("reads", SHORT, 96), ("again", wants, 0)):
        engine.add(name, PROMPT, sampling)
        assert run(engine)[name].num_cached_tokens == found
    assert engine.stats().prefix_queried_tokens_total == 100


def test_choices_share_the_prompt_that_the_first_computes() -> None:
    engine = engine_of()
    engine.add("a", PROMPT, SamplingParams(n=4, max_tokens=1, seed=1))
    parts = []
    while engine.has_work:
        parts += engine.step()
        assert engine.cache.pool.num_used_blocks(0) <= 6 + 4
    assert [(part.choice, part.num_cached_tokens) for part in parts] == [(0, 0), (1, 96), (2, 96), (3, 96)]
    assert num_computed(engine) == 100 + 3 * 4


def test_equal_beginnings_are_computed_once_though_they_come_together() -> None:
    engine = engine_of()
    for name in "abc":
        engine.add(name, PROMPT[:64] + [ord(name) % 50] * 10, SHORT)
    last = run(engine)
    assert [last[name].num_cached_tokens for name in "abc"] == [0, 64, 64]
    assert num_computed(engine) == 64 + 3 * 10 + 3


def test_one_that_waits_for_a_prefix_holds_nobody_up() -> None:
    engine = engine_of(max_num_batched_tokens=32)
    engine.add("long", PROMPT, SHORT)
    engine.add("alike", PROMPT, SHORT)
    engine.add("other", [7] * 5, SHORT)
    assert [part.request_id for part in engine.step() if part.token_ids] == ["other"]
    assert [request.request_id for request in engine.scheduler.waiting] == ["alike"]


def test_a_slot_is_left_for_one_that_waits_for_a_prefix() -> None:
    engine = engine_of(max_num_seqs=2)
    engine.add("long", PROMPT, SHORT)
    engine.add("alike", PROMPT, SHORT)
    engine.add("other", [7] * 5, SHORT)
    engine.step()
    assert [request.request_id for request in engine.scheduler.running] == ["long"]
    assert list(run(engine)) == ["long", "alike", "other"]


def test_nobody_waits_for_one_that_goes_after_it() -> None:
    engine = engine_of(max_num_batched_tokens=32)
    engine.add("later", PROMPT, SHORT, priority=1)
    engine.step()
    engine.add("first", PROMPT, SHORT)
    engine.step()
    assert not engine.scheduler.waiting


def test_when_the_one_that_computes_is_aborted_the_next_goes_on_from_there() -> None:
    engine = engine_of(max_num_batched_tokens=32)
    engine.add("long", PROMPT, SHORT)
    engine.add("alike", PROMPT, SHORT)
    engine.step()
    assert engine.abort("long")
    assert run(engine)["alike"].num_cached_tokens == 32


def test_a_preempted_request_finds_its_blocks_again() -> None:
    engine = engine_of(num_slabs=3)  # 12 blocks
    engine.add("grows", [7] * 16, SamplingParams(max_tokens=100, seed=1, ignore_eos=True))
    engine.add("gives way", PROMPT, SamplingParams(max_tokens=50, seed=1, ignore_eos=True))
    while not engine.scheduler.num_preemptions:
        engine.step()
    (preempted,) = engine.scheduler.waiting
    assert preempted.num_output > 0
    engine.abort("grows")
    engine.step()
    (work,) = runner_of(engine).steps[-1].work
    assert work.reset
    assert work.num_computed >= 96
    run(engine)


def test_a_failing_request_keeps_no_block_of_its_last_step() -> None:
    for token in range(50):
        engine = engine_of(fail_on=token)
        engine.add("a", PROMPT[:32], SamplingParams(max_tokens=1, seed=1))
        if run(engine)["a"].finish_reason == "error":
            assert engine.cache.pool.num_cached_blocks(0) == 0
            return
    raise AssertionError("no token was drawn")


def test_cached_blocks_give_way_to_what_runs() -> None:
    engine = engine_of(num_slabs=6, groups=WINDOWED)
    for number in range(20):
        engine.add(str(number), [number] * 90, SHORT)
        assert run(engine)[str(number)].finish_reason == "length"
    assert engine.scheduler.num_preemptions == 0
