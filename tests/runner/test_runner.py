"""The engine on the native runner with a small model: what one request gets does not depend on anything else."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest
from msgspec.structs import replace

from pelton import _native
from pelton.engine.batch import Batch, NewRequest, SlotResult, SlotWork, TokenLogprobs
from pelton.engine.engine import Engine
from pelton.engine.scheduler import EngineLimits
from pelton.errors import PeltonError
from pelton.runner.capture import forward_logits
from pelton.runner.runner import NativeRunner
from pelton.sampling_params import SamplingParams
from tests.graph.tiny_model import VOCABULARY
from tests.runner.tiny_program import MAX_CONTEXT, MAX_TOKENS, open_tiny_program, tiny_program

SLAB_BYTES = 4096  # two blocks: 32 tokens
ROOMY, TIGHT = 64, 6  # slabs


@contextmanager
def open_engine(
    *, num_slabs: int = ROOMY, max_tokens: int = MAX_TOKENS, num_threads: int = 2, prefix_cache: bool = True
) -> Iterator[Engine]:
    program = open_tiny_program(num_threads=num_threads)
    runner = NativeRunner(program, kv_cache_bytes=num_slabs * SLAB_BYTES, max_num_seqs=4)
    pool_bytes = num_slabs * SLAB_BYTES
    limits = EngineLimits(MAX_CONTEXT, 4, max_tokens, pool_bytes, SLAB_BYTES, VOCABULARY, prefix_cache=prefix_cache)
    engine = Engine(runner, limits)
    try:
        yield engine
    finally:
        engine.close()


Answer = tuple[list[int], list[TokenLogprobs], list[TokenLogprobs]]


def answers(engine: Engine, requests: dict[str, tuple[list[int], SamplingParams]]) -> dict[str, Answer]:
    """Tokens, their log-probabilities and those of the prompt, by request."""
    found: dict[str, Answer] = {request_id: ([], [], []) for request_id in requests}
    for request_id, (prompt, sampling) in requests.items():
        engine.add(request_id, prompt, sampling)
    while engine.has_work:
        for progress in engine.step():
            assert progress.error is None
            token_ids, logprobs, prompt_logprobs = found[progress.request_id]
            token_ids += progress.token_ids
            logprobs += progress.logprobs or []
            prompt_logprobs += progress.prompt_logprobs or []
    return found


def requests() -> dict[str, tuple[list[int], SamplingParams]]:
    rng = np.random.default_rng(0)
    kinds: list[dict[str, float]] = [
        {"temperature": 0},
        {"temperature": 0.8, "top_p": 0.9},
        {"top_k": 5, "repetition_penalty": 1.2},
        {"min_p": 0.05, "presence_penalty": 0.5},
        {"temperature": 0, "frequency_penalty": 0.3},
    ]
    return {
        f"request {index}": (
            [int(token_id) for token_id in rng.integers(VOCABULARY, size=size)],
            SamplingParams(**kinds[index % 5], seed=index, max_tokens=36, logprobs=3, prompt_logprobs=1),  # type: ignore[arg-type]
        )
        for index, size in enumerate([3, 60, 17, 90, 33, 1, 70])
    }


@pytest.fixture(scope="module")
def alone() -> dict[str, Answer]:
    with open_engine(num_threads=1) as engine:
        return {
            request_id: answers(engine, {request_id: request})[request_id] for request_id, request in requests().items()
        }


def test_together_is_as_alone(alone: dict[str, Answer]) -> None:
    with open_engine() as engine:
        assert answers(engine, requests()) == alone


def test_small_chunks_are_as_large_ones(alone: dict[str, Answer]) -> None:
    with open_engine(max_tokens=5) as engine:
        assert answers(engine, requests()) == alone


def test_preempted_is_as_undisturbed(alone: dict[str, Answer]) -> None:
    with open_engine(num_slabs=TIGHT) as engine:
        assert answers(engine, requests()) == alone
        assert engine.scheduler.num_preemptions > 0


def test_found_prefixes_are_as_computed_ones() -> None:
    plain = {name: (prompt, replace(sampling, prompt_logprobs=None)) for name, (prompt, sampling) in requests().items()}
    with open_engine(num_threads=1, prefix_cache=False) as engine:
        alone = {name: answers(engine, {name: request})[name] for name, request in plain.items()}
    with open_engine() as engine:
        for least in (0, 200):
            before = engine.stats().prefix_hit_tokens_total
            assert answers(engine, plain) == alone
            assert engine.stats().prefix_hit_tokens_total - before >= least


def test_a_slot_starts_on_blocks_of_another_slot_with_the_same_bits() -> None:
    """Told by hand: the second slot computes only the end of the prompt, and neither writes to what they share."""
    prompt, sampling = requests()["request 3"]
    program = open_tiny_program()
    runner = NativeRunner(program, kv_cache_bytes=64 * SLAB_BYTES, max_num_seqs=2)
    units = [group.block_bytes // 64 for group in runner.cache_groups]
    try:
        tables = [[number * unit + group * 2048 for number in range(6)] for group, unit in enumerate(units)]
        results: list[SlotResult] = []
        enters = [NewRequest(slot, prompt, len(prompt), sampling, 5) for slot in (0, 1)]
        for start in range(0, 90, 18):
            end = start + 18
            new = [table[-(-start // 16) : -(-end // 16)] for table in tables]
            work = SlotWork(0, start, 18, new, reset=start == 0, sample=end == 90)
            results = runner.step(Batch(enters[:1] if start == 0 else [], [work], [])).results
        own = [[*table[:5], 1024 + 2048 * group] for group, table in enumerate(tables)]
        work = SlotWork(1, 80, 10, own, reset=True)
        (again,) = runner.step(Batch(enters[1:], [work], [])).results
    finally:
        runner.close()
    assert (again.token_id, again.logprobs) == (results[0].token_id, results[0].logprobs)


class Interrupting:
    """A native runner whose `enter` or `step` is broken off by Ctrl-C, once."""

    def __init__(self, native: _native.Runner, at: str) -> None:
        self._native = native
        self._at = at

    def __getattr__(self, name: str) -> object:
        if name == self._at:
            self._at = ""
            raise KeyboardInterrupt
        return getattr(self._native, name)


@pytest.mark.parametrize("at", ["release", "enter", "step"])
def test_a_step_that_is_broken_off_loses_nothing(alone: dict[str, Answer], at: str) -> None:
    request = requests()["request 2"]
    with open_engine() as engine:
        answers(engine, {"before": request})
        assert isinstance(engine.runner, NativeRunner)
        engine.runner._native = Interrupting(engine.runner._native, at)  # type: ignore[assignment, arg-type]
        engine.add("request 2", *request)
        with pytest.raises(KeyboardInterrupt):
            engine.step()
        assert engine.abort("request 2")
        assert answers(engine, {"request 2": request}) == {"request 2": alone["request 2"]}


def test_closing_while_an_error_of_a_step_is_on_its_way_gives_the_memory_back() -> None:
    with pytest.raises(ValueError, match="holds no request"), open_engine() as engine:
        engine.runner.step(Batch([], [SlotWork(0, 0, 0, [[], []])], []))


def test_greedy_answers_are_the_likeliest_by_the_logits(alone: dict[str, Answer]) -> None:
    """A forward pass over prompt and answer, in other steps, has the very same logits."""
    prompt, _ = requests()["request 0"]
    token_ids, logprobs, prompt_logprobs = alone["request 0"]
    known = [*prompt, *token_ids]
    with tiny_program() as program:
        rows = {position: np.array(row, np.float64) for position, row in forward_logits(program, known)}
    told = [*prompt_logprobs, *logprobs]
    for position, entry in enumerate(told, 1):
        row = rows[position - 1]
        if position >= len(prompt):
            assert known[position] == int(np.argmax(row))
        assert entry.token_ids[0] == known[position]
        # A sum of 50 masses within 1e-6 of exact, and a result of up to 8 rounded to float32.
        expected = row[known[position]] - row.max() - math.log(np.sum(np.exp(row - row.max())))
        assert entry.logprobs[0] == pytest.approx(expected, abs=2e-6)


def test_closing_gives_all_memory_back() -> None:
    before = _native.memory_ledger()
    runner = NativeRunner(open_tiny_program(), kv_cache_bytes=SLAB_BYTES, max_num_seqs=1)
    assert _native.memory_ledger()["kv cache"] >= SLAB_BYTES
    runner.close()
    runner.close()
    with pytest.raises(PeltonError, match="the runner is closed"):
        runner.step(Batch([], [], []))
    del runner
    left = {owner: nbytes for owner, nbytes in _native.memory_ledger().items() if nbytes != before.get(owner, 0)}
    assert not left
