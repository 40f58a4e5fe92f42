"""Loading takes what was planned, and gives everything back when it fails."""

from __future__ import annotations

import pytest
from msgspec import structs
from msgspec.structs import replace

from pelton import _native
from pelton.config import load_settings
from pelton.errors import CheckpointError
from pelton.graph.program import compile
from pelton.runner import assembly
from pelton.runner.assembly import PreparedModel, prepare, step_memory
from tests.gguf_copies import LLAMA


def prepared(**settings: object) -> PreparedModel:
    return prepare(load_settings({"model": str(LLAMA), "threads": 2, **settings}))


def taken_bytes() -> dict[str, int]:
    """But for the threads' own scratch memory, which goes with the last frame that a traceback holds."""
    return {owner: nbytes for owner, nbytes in _native.memory_ledger().items() if owner != "scratch"}


def fail(*arguments: object, **named: object) -> None:
    raise CheckpointError("broken")


def test_weights_that_cannot_be_read_leave_nothing_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    model, before = prepared(), taken_bytes()
    monkeypatch.setattr(assembly.loading, "load", fail)
    with pytest.raises(CheckpointError, match="broken") as caught:
        model.load()
    assert taken_bytes() == before, caught


def test_a_pool_that_cannot_be_had_leaves_nothing_taken() -> None:
    model, before = prepared(), taken_bytes()
    limits = structs.replace(model.plan.limits, kv_cache_bytes=1 << 60)
    with pytest.raises(MemoryError) as caught:
        replace(model, plan=replace(model.plan, limits=limits)).load()
    assert taken_bytes() == before, caught


@pytest.mark.parametrize("num_tokens", [1, 2, 31, 32, 33, 100, 512])
def test_the_planned_memory_of_a_step_is_enough_and_not_twice_too_much(num_tokens: int) -> None:
    model = prepared(max_num_batched_tokens=512)
    fixed, per_token = step_memory(model.program, model.platform, num_threads=2)
    smaller = compile(model.graph, model.platform, replace(model.program.settings, max_tokens=num_tokens))
    taken = smaller.arena_bytes + model.platform.workspace_bytes(smaller, num_threads=2)
    assert taken <= fixed + num_tokens * per_token < 2 * taken
