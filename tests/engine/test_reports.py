"""What the engine tells of itself: times, counters, which requests have started."""

from __future__ import annotations

import itertools
import logging

import pytest

from pelton.engine.request import RequestTimes
from pelton.sampling_params import SamplingParams
from tests.fake_runner import engine_of, runner_of

TWO = SamplingParams(max_tokens=2, ignore_eos=True)


def test_the_last_progress_has_the_times() -> None:
    ticks = itertools.count()
    engine = engine_of(clock=lambda: float(next(ticks)))
    engine.add("a", [7], TWO)  # at 0
    first, last = (
        engine.step(),
        engine.step(),
    )  # each asks the clock at its start, before and after the runner, at its end
    assert first[0].times is None
    assert last[0].times == RequestTimes(0.0, 2.0, 3.0, 7.0)
    stats = engine.stats()
    assert (stats.schedule_seconds_total, stats.step_seconds, stats.step_seconds_total) == (4.0, 1.0, 2.0)


def test_a_request_that_fails_at_once_has_no_first_token() -> None:
    for token in range(50):
        engine = engine_of(fail_on=token)
        engine.add("a", [7], SamplingParams(max_tokens=1, seed=1))
        (part,) = engine.step()
        assert part.times is not None
        assert (part.times.first_token_s is None) == (part.finish_reason == "error")


def test_requests_are_told_once_when_the_first_choice_starts() -> None:
    engine = engine_of(max_num_seqs=1)
    engine.add("a", [7], SamplingParams(n=3, max_tokens=2, ignore_eos=True))
    engine.add("b", [7], TWO)
    engine.add("c", [7], TWO)
    assert engine.take_started() == []
    engine.step()
    engine.abort("c")
    told = engine.take_started()
    assert told == ["a"]
    while engine.has_work:
        engine.step()
        told += engine.take_started()
    assert told == ["a", "b"]


def test_counters_add_up() -> None:
    engine = engine_of(max_num_seqs=2, num_slabs=2, max_num_batched_tokens=8)
    for name in "abc":
        engine.add(name, [ord(name) % 50] * 20, SamplingParams(max_tokens=60, ignore_eos=True))
    engine.step()
    stats = engine.stats()
    assert (stats.num_running, stats.num_waiting, stats.step_tokens) == (2, 1, 8)
    assert 0 < stats.kv_cache_usage <= 1
    while engine.has_work:
        engine.step()
    stats = engine.stats()
    assert (stats.num_running, stats.num_waiting, stats.kv_cache_usage) == (0, 0, 0.0)
    assert stats.generation_tokens_total == 180
    assert stats.prompt_tokens_total == 60
    assert stats.num_preemptions_total > 0
    assert stats.num_steps_total > 60


def test_books_that_do_not_add_up_are_made_anew_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    sampling = SamplingParams(max_tokens=30, seed=4, ignore_eos=True)
    answers = []
    for is_broken in (False, True):
        engine = engine_of(steps_between_checks=5)
        runner_of(engine).has_failed = is_broken  # what runs is taken from its slots
        engine.add("a", [7] * 40, sampling)
        said = []
        while engine.has_work:
            said += [token for part in engine.step() for token in part.token_ids]
            if is_broken and len(said) in (3, 12):
                (counts,) = (group.reference_counts for group in engine.cache.pool._groups)
                counts[next(iter(counts))] += 1  # a reference that nobody gives back
        engine.cache.check_integrity()
        assert engine.stats().cache_repairs_total == (2 if is_broken else 0)
        answers.append(said)
    assert answers[0] == answers[1]
    assert [record.levelno for record in caplog.records] == [logging.ERROR]
