"""Arrivals, ends, replays, interrupts and steps in any order, against what each request must say when it is alone.

The fake runner checks that every token sees exactly its own prefix; the machine, that blocks are conserved, that what
comes first goes first, that every step brings somebody on, and that everything ends.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from pelton.cache.groups import CacheGroupSpec, peak_slabs
from pelton.engine.batch import NewRequest
from pelton.engine.request import Progress
from pelton.engine.step_costs import StepCosts
from pelton.errors import RequestError
from pelton.sampling_params import SamplingParams
from tests.engine.interrupts import interrupted
from tests.fake_runner import EOS, draw, engine_of, logprobs_of, runner_of

GROUPS = [
    [CacheGroupSpec("full", 128)],
    [CacheGroupSpec("full", 128), CacheGroupSpec("window", 192, window=20)],
    [CacheGroupSpec("window", 64, window=1), CacheGroupSpec("full", 448)],
    [CacheGroupSpec("window", 128, window=40)],
    [CacheGroupSpec("state", 192, num_states=3), CacheGroupSpec("full", 128)],
    [CacheGroupSpec("full", 192), CacheGroupSpec("window", 64, window=20), CacheGroupSpec("state", 64, num_states=2)],
]
COSTS = st.none() | st.builds(StepCosts, st.floats(0, 20), st.floats(1, 500))


@dataclass
class Expected:
    """What one choice must say, drawn one token at a time from what it has said."""

    request: NewRequest
    said: list[int] = field(default_factory=list)
    num_prompt_logprobs: int = 0

    def take(self, part: Progress) -> None:
        for entry in part.prompt_logprobs or []:
            self.num_prompt_logprobs += 1
            assert entry == logprobs_of(self.request.token_ids[self.num_prompt_logprobs])
        for token_id in part.token_ids:
            assert token_id == draw(self.request.token_ids + self.said, self.request)
            self.said.append(token_id)
        if part.token_ids and self.request.sampling.prompt_logprobs is not None and self.request.choice == 0:
            assert self.num_prompt_logprobs == self.request.num_prompt - 1


def salt_of(request: NewRequest) -> str:
    return "" if request.seed % 3 else "other"


class EngineMachine(RuleBasedStateMachine):
    @initialize(
        groups=st.sampled_from(GROUPS),
        num_slabs=st.integers(4, 20),
        max_num_seqs=st.integers(1, 5),
        spare_tokens=st.integers(0, 40),
        max_model_len=st.integers(20, 150),
        step_costs=COSTS,
        prefix_cache=st.sampled_from([True, True, True, False]),
        checkpoint_tokens=st.sampled_from([16, 48]),
        checkpoint_bytes=st.sampled_from([None, 0, 1200]),
    )
    def start(
        self,
        groups: list[CacheGroupSpec],
        num_slabs: int,
        max_num_seqs: int,
        spare_tokens: int,
        max_model_len: int,
        step_costs: StepCosts | None,
        prefix_cache: bool,
        checkpoint_tokens: int,
        checkpoint_bytes: int | None,
    ) -> None:
        self.engine = engine_of(
            groups=groups,
            num_slabs=num_slabs,
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max_num_seqs + spare_tokens,
            max_model_len=max_model_len,
            step_costs=step_costs,
            prefix_cache=prefix_cache,
            checkpoint_tokens=checkpoint_tokens,
            checkpoint_bytes=checkpoint_bytes,
        )
        self.runner = runner_of(self.engine)
        self.runner.salt_of = salt_of
        self.expected: dict[tuple[str, int], Expected] = {}
        self.ended: dict[tuple[str, int], Expected] = {}
        self.num_added = 0

    @rule(
        family=st.integers(0, 2),
        num_common=st.integers(0, 120),
        num_own=st.integers(1, 40),
        max_tokens=st.none() | st.integers(1, 60),
        n=st.sampled_from([1, 1, 1, 3]),
        priority=st.sampled_from([0, 0, 0, 1, -1]),
        ignore_eos=st.booleans(),
        prompt_logprobs=st.sampled_from([None, None, None, 0]),
    )
    def add(
        self,
        family: int,
        num_common: int,
        num_own: int,
        max_tokens: int | None,
        n: int,
        priority: int,
        ignore_eos: bool,
        prompt_logprobs: int | None,
    ) -> None:
        self.num_added += 1
        request_id = f"r{self.num_added}"
        prompt = [(family + index * index) % 50 for index in range(num_common)]
        prompt += [(self.num_added + 3 * index) % 50 for index in range(num_own)]
        sampling = SamplingParams(
            max_tokens=max_tokens, n=n, seed=self.num_added, ignore_eos=ignore_eos, prompt_logprobs=prompt_logprobs
        )
        requests = [NewRequest(0, prompt, len(prompt), sampling, self.num_added, choice, (EOS,)) for choice in range(n)]
        try:
            self.engine.add(request_id, prompt, sampling, priority=priority, cache_salt=salt_of(requests[0]))
        except RequestError:
            limits = self.engine.limits
            output = limits.max_model_len if max_tokens is None else max_tokens
            peak = min(len(prompt) + output - 1, limits.max_model_len - 1)
            needed = peak_slabs(self.engine.cache.groups, 512, peak, limits.max_num_batched_tokens)
            assert len(prompt) >= limits.max_model_len or needed * 512 > limits.kv_cache_bytes
            return
        self.expected |= {(request_id, choice): Expected(request) for choice, request in enumerate(requests)}

    @precondition(lambda self: self.expected)
    @rule(data=st.data(), whole=st.booleans())
    def abort(self, data: st.DataObject, whole: bool) -> None:
        request_id, choice = data.draw(st.sampled_from(sorted(self.expected)))
        assert self.engine.abort(request_id, None if whole else choice)
        for key in list(self.expected):
            if key == (request_id, choice) or (whole and key[0] == request_id):
                self.ended[key] = self.expected.pop(key)

    @precondition(lambda self: self.expected)
    @rule(data=st.data())
    def replay(self, data: st.DataObject) -> None:
        """As after a restart of the engine: the request enters anew with what its choices have said."""
        request_id, _ = data.draw(st.sampled_from(sorted(self.expected)))
        choices = sorted(key for key in self.expected.keys() | self.ended.keys() if key[0] == request_id)
        request = next(self.expected[key].request for key in choices if key in self.expected)
        said = [(self.expected.get(key) or self.ended[key]).said for key in choices]
        self.engine.abort(request_id)
        self.engine.add(
            request_id,
            request.token_ids,
            request.sampling,
            seed=request.seed,
            cache_salt=salt_of(request),
            output_token_ids=said,
        )
        for key in choices:
            if key not in self.expected:
                self.engine.abort(*key)
            elif not self.expected[key].said:
                self.expected[key].num_prompt_logprobs = 0

    @rule(count=st.integers(1, 12))
    def step(self, count: int) -> None:
        for _ in range(count):
            had_work = bool(self.expected)
            num_steps = len(self.runner.steps)
            self._step()
            assert (len(self.runner.steps) > num_steps) == had_work

    @rule(at=st.integers(1, 1000))
    def interrupt(self, at: int) -> None:
        self.runner.has_failed = True
        self._take(interrupted(self.engine, self.engine.step, at) or [])

    def _step(self) -> None:
        scheduler = self.engine.scheduler
        waiting, running = list(scheduler.waiting), list(scheduler.running)
        was_interrupted = self.engine._undo is not None
        self._take(self.engine.step())
        self.engine.cache.check_integrity()
        if was_interrupted:
            return  # all of them started again
        for request in set(scheduler.running) - set(running):
            for other in set(waiting) & set(scheduler.waiting):
                assert other.awaited_key is not None or request.order < other.order, "somebody was overtaken"

    def _take(self, parts: list[Progress]) -> None:
        for part in parts:
            key = (part.request_id, part.choice)
            self.expected[key].take(part)
            if part.finish_reason is not None:
                self.ended[key] = self.expected.pop(key)

    @invariant()
    def agrees(self) -> None:
        scheduler = self.engine.scheduler
        if self.engine._undo is not None:
            return  # interrupted: to be recovered by the next call
        live = {(request.request_id, request.choice) for request in scheduler.running + scheduler.waiting}
        assert live == set(self.expected)
        assert len(scheduler.running) <= self.engine.limits.max_num_seqs
        for batch in self.runner.steps[-1:]:
            assert sum(work.num_tokens for work in batch.work) <= self.engine.limits.max_num_batched_tokens

    def teardown(self) -> None:
        """All that was accepted ends in a bounded number of steps, and leaves no block in use."""
        bound = 10_000
        while self.engine.has_work:
            self._step()
            bound -= 1
            assert bound, f"{sorted(self.expected)} never end"
        assert not self.expected
        assert self.engine.cache.pool.num_idle_slabs == self.engine.cache.pool.num_slabs


@pytest.mark.timeout(1200)
def test_any_order_of_events_keeps_the_engine_whole(case_count: Callable[[int, int], int]) -> None:
    """Of 30 events each, and most events are several steps."""
    run_state_machine_as_test(
        EngineMachine,
        settings=settings(
            max_examples=case_count(170, 1700), stateful_step_count=30, deadline=None, derandomize=True, database=None
        ),
    )
