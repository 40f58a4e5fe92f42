"""Engines over the fake runner, sized in blocks."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from pelton.cache.groups import CacheGroupSpec
from pelton.engine.engine import Engine
from pelton.engine.scheduler import EngineLimits
from tests.fake_runner import EOS, FULL, VOCAB_SIZE, FakeRunner

MakeEngine = Callable[..., Engine]


@pytest.fixture
def make_engine() -> MakeEngine:
    return engine_of


def engine_of(
    *,
    groups: list[CacheGroupSpec] | None = None,
    num_slabs: int = 64,
    max_model_len: int = 256,
    max_num_seqs: int = 8,
    max_num_batched_tokens: int = 32,
    fail_on: int | None = None,
) -> Engine:
    """A slab is 512 bytes: four blocks of the full group."""
    limits = EngineLimits(max_model_len, max_num_seqs, max_num_batched_tokens, num_slabs * 512, 512, VOCAB_SIZE)
    return Engine(FakeRunner(groups or [FULL], fail_on), limits, (EOS,))
