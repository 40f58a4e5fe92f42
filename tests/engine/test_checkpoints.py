"""Where the states of recurrent layers are kept, and what later requests make of them."""

from __future__ import annotations

from pelton.cache.groups import CacheGroupSpec
from pelton.engine.checkpoints import checkpoint_blocks
from pelton.sampling_params import SamplingParams
from tests.fake_runner import EOS, FULL, engine_of, run, runner_of

GROUPS = [FULL, CacheGroupSpec("state", 192, num_states=3)]
PROMPT = [2 + (index * index) % 40 for index in range(100)]
SHORT = SamplingParams(max_tokens=2, ignore_eos=True, seed=1)


def blocks(
    num_tokens: int, *, ends: tuple[int, ...] = (), usable: int = 0, present: int = 0, spacing: int = 16
) -> list[int]:
    token_ids = [EOS if position in ends else 5 for position in range(num_tokens)]
    return checkpoint_blocks(
        token_ids, num_tokens, (EOS,), num_usable=usable, num_present=present or usable, spacing=spacing
    )


def test_a_prompt_is_kept_at_its_end_behind_messages_and_where_another_parted() -> None:
    assert blocks(1000, spacing=4096) == [62]
    assert blocks(1000, ends=(200, 500, 990), spacing=4096) == [12, 61]
    assert blocks(1000, present=30, spacing=4096) == [30, 62]
    assert blocks(1000, usable=30, present=30, spacing=4096) == [62]
    assert blocks(1008, spacing=4096) == [62]  # its last token is computed by whoever asks again


def test_long_prompts_are_kept_every_so_many_tokens() -> None:
    assert blocks(1000, spacing=256) == [16, 32, 48, 62]
    assert blocks(100, spacing=16) == [1, 2, 3, 4, 5, 6]


def test_little_is_not_worth_a_cut() -> None:
    assert blocks(100, spacing=4096) == []
    assert blocks(1000, usable=60, present=60, spacing=4096) == []
    assert blocks(1000, ends=(64, 900), spacing=4096) == [56]  # the end of the prompt is near it


def test_steps_end_at_checkpoints() -> None:
    engine = engine_of(groups=GROUPS, checkpoint_tokens=48, max_num_batched_tokens=32)
    engine.add("a", PROMPT, SHORT)
    run(engine)
    sizes = [work.num_tokens for batch in runner_of(engine).steps for work in batch.work]
    assert sizes == [32, 16, 32, 16, 4, 1]


def test_a_prompt_that_comes_again_starts_at_the_nearest_checkpoint() -> None:
    engine = engine_of(groups=GROUPS, checkpoint_tokens=160, max_model_len=500, num_slabs=100)
    long = PROMPT * 4
    for name, prompt, found in (
        ("first", long, 0),
        ("again", long, 320),
        ("parts", long[:310] + [3] * 20, 160),
        ("other", [7] * 40, 0),
        ("parts there", long[:305] + [4] * 20, 304),  # where the first and the third parted
    ):
        engine.add(name, prompt, SHORT)
        assert run(engine)[name].num_cached_tokens == found
    assert engine.stats().prefix_lookups_total == {"all": 0, "diverged": 1, "not_kept": 2, "none": 2}


def test_choices_and_equal_prompts_wait_for_the_checkpoint_that_is_coming() -> None:
    engine = engine_of(groups=GROUPS, checkpoint_tokens=48)
    engine.add("a", PROMPT, SamplingParams(n=3, max_tokens=1, seed=1))
    engine.add("b", PROMPT, SHORT)
    parts = []
    while engine.has_work:
        parts += engine.step()
    assert sorted(part.num_cached_tokens for part in parts if part.finish_reason) == [0, 96, 96, 96]


def test_an_answer_is_kept_as_it_grows() -> None:
    engine = engine_of(groups=GROUPS, checkpoint_tokens=48)
    engine.add("turn", PROMPT[:40], SamplingParams(max_tokens=30, ignore_eos=True, seed=1))
    said = [token for _ in range(100) for part in engine.step() for token in part.token_ids]
    engine.add("next", PROMPT[:40] + said + [3, 4, 5], SHORT)
    assert run(engine)["next"].num_cached_tokens == 48


def test_without_a_prefix_cache_nothing_is_kept_and_no_step_is_cut() -> None:
    engine = engine_of(groups=GROUPS, prefix_cache=False, max_num_batched_tokens=64)
    for name in ("first", "again"):
        engine.add(name, PROMPT, SHORT)
        assert run(engine)[name].num_cached_tokens == 0
    assert [work.num_tokens for batch in runner_of(engine).steps for work in batch.work] == [64, 36, 1] * 2
    assert engine.cache.pool.num_cached_blocks(1) == 0
