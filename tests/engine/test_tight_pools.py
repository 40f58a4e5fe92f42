"""Requests as long as the pool allows, among others and over what others left cached: all of them end."""

from __future__ import annotations

import random
from collections.abc import Callable

from pelton.cache.groups import CacheGroupSpec, max_tokens_in
from pelton.sampling_params import SamplingParams
from tests.fake_runner import FULL, engine_of

SLAB_BYTES = 512
GROUPS = [
    [FULL, CacheGroupSpec("window", 192, window=20)],
    [CacheGroupSpec("window", 64, window=1), CacheGroupSpec("full", 448)],
    [FULL, CacheGroupSpec("window", 128, window=40), CacheGroupSpec("window", 256, window=70)],
    [FULL, CacheGroupSpec("state", 192, num_states=3)],
    [CacheGroupSpec("state", 256, num_states=2), CacheGroupSpec("window", 128, window=40), FULL],
]
# In these a request starves if groups open slabs for the sake of what is cached while few are left.
KNOWN = [19, 26]


def test_the_longest_requests_of_a_pool_end(case_count: Callable[[int, int], int]) -> None:
    for seed in [*KNOWN, *range(case_count(8, 300))]:
        run(random.Random(seed))


def run(generator: random.Random) -> None:
    groups = generator.choice(GROUPS)
    chunk = generator.choice([4, 8, 20, 32])
    num_slabs = generator.randint(4, 10)
    longest = max_tokens_in(groups, SLAB_BYTES, num_slabs, chunk)
    if longest < 32:
        return
    engine = engine_of(
        groups=groups,
        num_slabs=num_slabs,
        max_model_len=longest + 1,
        max_num_seqs=4,
        max_num_batched_tokens=chunk,
    )
    for number in range(6):
        num_prompt = generator.randint(1, longest - 1)
        num_common = generator.randint(0, num_prompt)
        prompt = [(index * index) % 50 for index in range(num_common)]
        prompt += [generator.randrange(50) for _ in range(num_prompt - num_common)]
        max_tokens = None if generator.random() < 0.5 else generator.randint(1, 40)
        sampling = SamplingParams(max_tokens=max_tokens, ignore_eos=True, seed=number)
        engine.add(str(number), prompt, sampling, priority=generator.choice([0, 0, 1]))
        for _ in range(generator.randint(0, 40)):
            engine.step()
    for _ in range(6000):
        engine.step()
        if not engine.has_work:
            break
    assert not engine.has_work, "a request starts again and again"
    engine.cache.check_integrity()
