from __future__ import annotations

import logging

import pytest
from msgspec.structs import replace

from pelton.cache.groups import CacheGroupSpec, peak_slabs
from pelton.config import load_settings, options
from pelton.engine.step_costs import MAX_STRETCH
from pelton.errors import MemoryPlanError, UsageError
from pelton.plan import ModelFacts, Plan, resolve
from pelton.platforms.cpu.platform import CpuPlatform
from pelton.platforms.platform import PlatformFacts

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30


def cache_groups(value_bytes: int) -> tuple[CacheGroupSpec, ...]:
    """Three full layers and fifteen that see 512 tokens, one KV head of 256."""
    layer = 16 * 256 * 2 * value_bytes
    return CacheGroupSpec("full", 3 * layer), CacheGroupSpec("window", 15 * layer, 512)


MODEL = ModelFacts(
    name="small",
    max_position=32768,
    vocab_size=262144,
    weight_bytes={"q4_k": 150 * MIB, "q8_0": 100 * MIB},
    cache_groups={"bf16": cache_groups(2), "f16": cache_groups(2), "f32": cache_groups(4)},
    step_bytes=40 * MIB,
    step_bytes_per_token=30 * KIB,
    products_per_token=100 * MIB,
    attention_per_position=3 * 2 * 1024,
)
PLATFORM = PlatformFacts(
    name="cpu",
    usable_bytes=16 * GIB,
    usable_reason="available on this machine",
    num_threads=4,
    threads_reason="one per core",
    max_threads=8,
    levels={"best": "the CPU lacks it", "good": None, "plain": None},
    products_per_byte={"best": 20.0, "good": 4.0, "plain": 1.0},
    attention_cost=2.0,
)
FULL_ONLY = replace(MODEL, cache_groups={"bf16": (CacheGroupSpec("full", MIB),)}, max_position=131072)


def plan(model: ModelFacts = MODEL, usable_bytes: int = 16 * GIB, **settings: object) -> Plan:
    return resolve(load_settings(settings), model, replace(PLATFORM, usable_bytes=usable_bytes))


def test_with_room_for_all_nothing_is_reduced() -> None:
    made = plan()
    assert made.limits.max_model_len == 32768
    assert made.limits.max_num_seqs == 32
    assert made.limits.max_num_batched_tokens == 512
    assert made.reductions == ()
    assert (made.threads, made.level, made.kv_dtype) == (4, "good", "bf16")


def test_every_setting_of_the_engine_is_decided_with_a_source_and_a_reason() -> None:
    made = plan(threads=2)
    assert set(made.decisions) == {option.name for option in options("engine")} | {"prefill_beside_decode"}
    assert all(decision.reason for decision in made.decisions.values())
    assert made.decisions["threads"].source == "user"
    assert made.decisions["max_model_len"].source == "derived"
    assert made.decisions["activations"].source == "default"
    assert "best: the CPU lacks it" in made.decisions["level"].reason


@pytest.mark.parametrize(("max_model_len", "angles"), [(None, "long"), (4097, "long"), (4096, "short")])
def test_angles_that_depend_on_the_longest_sequence_are_told(max_model_len: int | None, angles: str) -> None:
    decided = plan(replace(MODEL, trained_position=4096), max_model_len=max_model_len).decisions["rotary"]
    assert (decided.value, decided.source) == (angles, "derived")
    assert "4096" in decided.reason


def test_a_model_that_stretches_is_longer_only_if_that_is_asked_for() -> None:
    model = replace(MODEL, trained_position=32768, stretched_position=65536)
    assert plan(model).limits.max_model_len == 32768
    assert plan(model, max_model_len=50000).limits.max_model_len == 50000
    reduced = plan(model, max_model_len=70000)
    assert reduced.limits.max_model_len == 65536
    assert reduced.reductions == ("max_model_len 70000 -> 65536: the model was made for 65536",)


@pytest.mark.parametrize("usable_bytes", [500 * MIB, 700 * MIB, 2 * GIB, 64 * GIB])
@pytest.mark.parametrize("settings", [{}, {"kv_dtype": "f32"}, {"max_num_seqs": 200}, {"kv_cache_bytes": "100MiB"}])
def test_the_table_adds_up_to_what_is_usable(usable_bytes: int, settings: dict[str, object]) -> None:
    made = plan(usable_bytes=usable_bytes, **settings)
    assert sum(line.nbytes for line in made.memory) == usable_bytes
    assert all(line.nbytes >= 0 for line in made.memory)


@pytest.mark.parametrize("usable_bytes", [500 * MIB, 700 * MIB, GIB, 3 * GIB, 64 * GIB])
@pytest.mark.parametrize("model", [MODEL, FULL_ONLY])
def test_the_pool_holds_a_sequence_of_the_whole_context(usable_bytes: int, model: ModelFacts) -> None:
    limits = plan(model, usable_bytes).limits
    needed = peak_slabs(
        model.cache_groups["bf16"], limits.slab_bytes, limits.max_model_len, limits.max_num_batched_tokens
    )
    assert needed * limits.slab_bytes <= limits.kv_cache_bytes
    assert limits.max_num_batched_tokens >= limits.max_num_seqs


def test_a_context_that_does_not_fit_is_reduced_and_told(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        made = plan(FULL_ONLY, 2 * GIB, max_model_len=65536)
    fits = made.limits.max_model_len
    assert fits < 65536
    assert any(line.startswith(f"max_model_len 65536 -> {fits}: ") for line in made.reductions)
    assert caplog.messages == list(made.reductions)


def test_strict_says_what_would_fit_and_that_does_fit() -> None:
    with pytest.raises(MemoryPlanError) as caught:
        plan(FULL_ONLY, 2 * GIB, max_model_len=65536, strict=True)
    assert caught.value.hint is not None
    fits = int(caught.value.hint.split("`")[1].split()[1])
    assert plan(FULL_ONLY, 2 * GIB, max_model_len=fits, strict=True).limits.max_model_len == fits
    assert caught.value.exit_code == 4


def test_a_context_beyond_the_model_is_reduced_to_it() -> None:
    made = plan(max_model_len=100_000)
    assert made.limits.max_model_len == 32768
    assert made.reductions == ("max_model_len 100000 -> 32768: the model was made for 32768",)


def test_an_automatic_context_shrinks_to_memory_even_when_strict() -> None:
    made = plan(FULL_ONLY, 2 * GIB, strict=True)
    assert made.limits.max_model_len < 131072
    assert "131072" in made.decisions["max_model_len"].reason


def test_windows_cost_only_what_they_see() -> None:
    all_full = replace(MODEL, cache_groups={"bf16": (CacheGroupSpec("full", 18 * 16 * KIB),)})
    with_windows, without = plan(usable_bytes=500 * MIB), plan(all_full, usable_bytes=500 * MIB)
    assert with_windows.limits.max_model_len > 3 * without.limits.max_model_len


def test_a_model_larger_than_memory_is_refused_with_what_would_fit() -> None:
    with pytest.raises(MemoryPlanError, match=r"`small` needs .*: 250\.0 MiB of weights") as caught:
        plan(usable_bytes=300 * MIB)
    assert "300.0 MiB are available on this machine" in caught.value.message
    assert caught.value.hint is not None
    assert "at most" in caught.value.hint


def test_with_the_named_shortage_freed_it_fits() -> None:
    with pytest.raises(MemoryPlanError) as caught:
        plan(usable_bytes=300 * MIB)
    assert caught.value.hint is not None
    missing = float(caught.value.hint.split()[1]) * MIB
    assert plan(usable_bytes=300 * MIB + int(missing + 0.1 * MIB)).limits.max_model_len >= 256
    with pytest.raises(MemoryPlanError):
        plan(usable_bytes=300 * MIB + int(missing - 0.1 * MIB))


def test_more_threads_than_can_run_are_reduced() -> None:
    made = plan(threads=100)
    assert made.threads == 8
    assert made.reductions == ("threads 100 -> 8: only 8 can run at once",)
    with pytest.raises(MemoryPlanError, match="`threads` is `100`"):
        plan(threads=100, strict=True)


def test_more_sequences_than_a_step_has_tokens_are_reduced() -> None:
    made = plan(max_num_seqs=64, max_num_batched_tokens=16)
    assert made.limits.max_num_seqs == 16
    assert made.reductions == ("max_num_seqs 64 -> 16: a step computes 16 tokens",)


def test_many_sequences_widen_the_step() -> None:
    assert plan(max_num_seqs=700).limits.max_num_batched_tokens == 700


def test_more_sequences_than_the_cache_has_blocks_are_reduced() -> None:
    made = plan(FULL_ONLY, 900 * MIB, max_num_seqs=512)
    assert made.limits.max_num_seqs < 512
    assert "blocks of tokens" in made.reductions[-1]


def test_a_pool_larger_than_memory_is_reduced() -> None:
    made = plan(usable_bytes=GIB, kv_cache_bytes="8GiB")
    assert made.limits.kv_cache_bytes < GIB
    assert made.reductions[0].startswith(f"kv_cache_bytes {8 * GIB} -> {made.limits.kv_cache_bytes}: ")


def test_a_small_pool_shortens_the_context() -> None:
    made = plan(FULL_ONLY, kv_cache_bytes="64MiB")
    assert made.limits.kv_cache_bytes == 64 * MIB
    assert made.limits.max_model_len == 64 * 16


def test_a_pool_too_small_for_anything_is_raised_and_told() -> None:
    made = plan(kv_cache_bytes="1KiB")
    assert made.limits.kv_cache_bytes == 2 * made.limits.slab_bytes
    assert "the least that holds one sequence" in made.reductions[-1]


def test_an_automatic_pool_leaves_half_to_the_neighbours() -> None:
    made = plan(FULL_ONLY, 64 * GIB, max_model_len=8192, max_num_seqs=1000)
    assert 0.4 < made.limits.kv_cache_bytes / (64 * GIB) < 0.5


@pytest.mark.parametrize(("level", "message"), [("best", "the CPU lacks it"), ("other", "does not have")])
def test_a_level_that_cannot_be_used_is_named(level: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        plan(level=level)


def test_a_level_can_be_asked_for() -> None:
    assert plan(level="plain").level == "plain"


def test_prefills_beside_decodes_are_bounded_and_the_bound_is_told() -> None:
    made = plan()
    costs = made.limits.step_costs
    assert costs is not None
    read_rows = 250 * 4 / 100  # a row takes 100 MiB of products, in each of which 4 take as long as a byte
    assert costs.read_rows == pytest.approx(read_rows)
    assert costs.row(0) == 1
    assert costs.row(int(100 * MIB / (3 * 2 * 1024 * 2.0))) == pytest.approx(2, rel=1e-3)
    decision = made.decisions["prefill_beside_decode"]
    assert decision.value == int((MAX_STRETCH - 1) * (read_rows + 1))
    assert f"at most {MAX_STRETCH:g}x one stream's decode" in decision.reason


def test_a_slower_level_computes_fewer_beside_decodes() -> None:
    values = [plan(level=level).decisions["prefill_beside_decode"].value for level in ("good", "plain")]
    assert values[0] > values[1] >= 1


def test_every_level_of_this_machine_says_how_fast_it_is() -> None:
    facts = CpuPlatform().plan_facts()
    assert facts.levels.keys() <= facts.products_per_byte.keys()
