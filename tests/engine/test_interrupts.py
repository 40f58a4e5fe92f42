"""Ctrl-C between any two lines of a call: nobody is lost, nothing is said twice, and the cache is whole."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from pelton.cache.groups import CacheGroupSpec
from pelton.engine.engine import Engine
from pelton.sampling_params import SamplingParams
from tests.engine.interrupts import interrupted
from tests.fake_runner import engine_of, runner_of

GROUPS = [CacheGroupSpec("full", 128), CacheGroupSpec("window", 192, window=20)]
SAMPLING = SamplingParams(n=2, max_tokens=6, seed=5, ignore_eos=True, prompt_logprobs=0)
Said = dict[tuple[str, int], tuple[list[int], int]]
EVERY = 100_000  # lines: more than any call has


def start() -> Engine:
    engine = engine_of(groups=GROUPS, num_slabs=12, max_num_batched_tokens=24, max_num_seqs=3)
    runner_of(engine).has_failed = True
    engine.add("a", [3, 4, 5] * 9, SAMPLING)
    engine.add("b", [3, 4, 5] * 9, SamplingParams(max_tokens=4, seed=6, ignore_eos=True))
    return engine


def run(engine: Engine, said: Said, at: int, step: int) -> bool:
    """True if step number `step` was interrupted before its at-th line."""
    was_interrupted = False
    for number in range(1000):
        if not engine.has_work:
            break
        parts = interrupted(engine, engine.step, at if number == step else EVERY)
        was_interrupted = was_interrupted or parts is None
        for part in parts or []:
            token_ids, num_prompt_logprobs = said.get((part.request_id, part.choice), ([], 0))
            told = num_prompt_logprobs + len(part.prompt_logprobs or [])
            said[part.request_id, part.choice] = ([*token_ids, *part.token_ids], told)
        if engine._undo is None:
            engine.cache.check_integrity()
    assert not engine.has_work
    return was_interrupted


@pytest.mark.parametrize("step", [0, 1, 2, 6])
def test_a_step_that_is_interrupted_anywhere_loses_nothing(step: int, case_count: Callable[[int, int], int]) -> None:
    """Steps that admit, share, draw and end."""
    expected: Said = {}
    assert not run(start(), expected, EVERY, step)
    at = 1
    while True:
        said: Said = {}
        if not run(start(), said, at, step):
            break
        assert said == expected, f"interrupted before line {at}"
        at += case_count(7, 1)
    assert at > 200


def test_an_abort_that_is_interrupted_can_be_repeated() -> None:
    at = 1
    while True:
        engine = start()
        engine.step()
        engine.step()
        was_interrupted = interrupted(engine, lambda engine=engine: engine.abort("a"), at) is None  # type: ignore[misc]
        engine.abort("a")
        said: Said = {}
        run(engine, said, EVERY, 0)
        assert list(said) == [("b", 0)]
        if not was_interrupted:
            break
        at += 1
    assert at > 20


def test_an_addition_that_is_interrupted_is_there_or_not() -> None:
    at = 1
    while True:
        engine = start()
        add = lambda engine=engine: engine.add("c", [9] * 5, SAMPLING) or True  # noqa: E731
        was_interrupted = interrupted(engine, add, at) is None
        is_there = engine.abort("c")
        said: Said = {}
        run(engine, said, EVERY, 0)
        assert {request_id for request_id, _ in said} == {"a", "b"}
        if not was_interrupted:
            assert is_there
            break
        at += 1
    assert at > 5
