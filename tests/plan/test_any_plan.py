"""Models of any shape in any memory under any settings: a plan that holds, or an error that says what would."""

from __future__ import annotations

import random
from collections.abc import Callable

from pelton.cache.groups import BLOCK_TOKENS, CacheGroupSpec, max_tokens_in, peak_slabs
from pelton.config import load_settings
from pelton.errors import MemoryPlanError
from pelton.plan import ModelFacts, Plan, resolve
from pelton.platforms.platform import PlatformFacts

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30


def random_groups(generator: random.Random) -> tuple[CacheGroupSpec, ...]:
    """Some layers that see all, and perhaps windows and recurrent layers, of heads from tiny to large."""
    groups = [CacheGroupSpec("full", 64 * generator.randint(1, 40_000))]
    if generator.random() < 0.4:
        groups.append(CacheGroupSpec("window", 64 * generator.randint(1, 40_000), generator.choice((1, 16, 512, 4096))))
    if generator.random() < 0.6:
        groups.append(CacheGroupSpec("state", 64 * generator.randint(1, 60_000), num_states=generator.randint(1, 60)))
    generator.shuffle(groups)
    return tuple(groups)


def random_model(generator: random.Random) -> ModelFacts:
    groups = random_groups(generator)
    return ModelFacts(
        name="any",
        max_position=generator.choice((64, 2048, 32768, 262144, 1 << 20)),
        vocab_size=generator.choice((100, 50_000, 262_144)),
        weight_bytes={"q4_k": generator.randint(1, 40 * KIB) * MIB // 2},
        cache_groups=dict.fromkeys(("bf16", "f16", "f32"), groups),
        step_bytes=generator.randint(0, 64) * MIB,
        step_bytes_per_token=generator.randint(1, 2048) * KIB,
        products_per_token=generator.randint(1, 40_000) * MIB,
        attention_per_position=generator.randint(0, 1 << 20),
    )


def random_settings(generator: random.Random) -> dict[str, object]:
    choices: dict[str, list[object]] = {
        "max_model_len": [2, 100, 5000, 1 << 20],
        "max_num_seqs": [1, 7, 64, 1000],
        "max_num_batched_tokens": [1, 33, 2048],
        "kv_cache_bytes": ["1MiB", "300MiB", "20GiB"],
        "kv_dtype": ["f32", "bf16"],
        "threads": [1, 64],
        "prefix_cache": [False],
        "checkpoint_tokens": [1, 100, 4096],
        "checkpoint_bytes": ["1KiB", "1GiB"],
        "strict": [True],
    }
    return {name: generator.choice(values) for name, values in choices.items() if generator.random() < 0.25}


def platform(generator: random.Random) -> PlatformFacts:
    return PlatformFacts(
        name="cpu",
        usable_bytes=int(2 ** generator.uniform(26, 37)),
        usable_reason="allowed",
        num_threads=4,
        threads_reason="one per core",
        max_threads=8,
        levels={"plain": None},
        products_per_byte={"plain": 4.0},
        attention_cost=2.0,
    )


def check(plan: Plan, model: ModelFacts, usable_bytes: int) -> None:
    limits, groups = plan.limits, model.cache_groups[plan.kv_dtype]
    assert sum(line.nbytes for line in plan.memory) == usable_bytes
    assert all(line.nbytes >= 0 for line in plan.memory)
    assert 1 <= limits.max_num_seqs <= limits.max_num_batched_tokens
    assert 1 <= limits.max_model_len <= model.max_position
    num_slabs = limits.kv_cache_bytes // limits.slab_bytes
    longest = max_tokens_in(groups, limits.slab_bytes, num_slabs, limits.max_num_batched_tokens)
    assert limits.max_model_len <= longest
    assert peak_slabs(groups, limits.slab_bytes, 1, limits.max_num_batched_tokens) <= num_slabs
    assert limits.checkpoint_tokens % BLOCK_TOKENS == 0
    states = sum(group.block_bytes * group.num_states for group in groups)
    assert limits.max_num_seqs * states <= limits.kv_cache_bytes, "more sequences than states"


def test_any_model_in_any_memory_is_planned_or_refused(case_count: Callable[[int, int], int]) -> None:
    num_planned = 0
    refusals = []
    num_cases = case_count(600, 20_000)
    for seed in range(num_cases):
        generator = random.Random(seed)
        model, facts, settings = random_model(generator), platform(generator), random_settings(generator)
        try:
            plan = resolve(load_settings(settings), model, facts)
        except MemoryPlanError as error:
            refusals.append(error)
            continue
        check(plan, model, facts.usable_bytes)
        num_planned += 1
    assert all(error.hint for error in refusals), "an error without what would fit"
    assert num_cases // 4 < num_planned < num_cases
