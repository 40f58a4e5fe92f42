"""Arrivals, aborts and steps in any order: blocks are conserved, tokens are right, nothing starves."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

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

from pelton.cache.groups import CacheGroupSpec
from pelton.engine.batch import NewRequest
from pelton.errors import RequestError
from pelton.sampling_params import SamplingParams
from tests.fake_runner import EOS, draw, engine_of, runner_of

GROUPS = [
    [CacheGroupSpec("full", 128)],
    [CacheGroupSpec("full", 128), CacheGroupSpec("window", 192, window=20)],
    [CacheGroupSpec("window", 64, window=1), CacheGroupSpec("full", 448)],
]


@dataclass
class Expected:
    """What one choice must say, drawn one token at a time from what it has said."""

    request: NewRequest
    said: list[int] = field(default_factory=list)

    def take(self, token_ids: list[int]) -> None:
        for token_id in token_ids:
            assert token_id == draw(self.request.token_ids + self.said, self.request)
            self.said.append(token_id)


class EngineMachine(RuleBasedStateMachine):
    @initialize(
        groups=st.sampled_from(GROUPS),
        num_slabs=st.integers(4, 20),
        max_num_seqs=st.integers(1, 5),
        spare_tokens=st.integers(0, 40),
        max_model_len=st.integers(20, 150),
    )
    def start(
        self,
        groups: list[CacheGroupSpec],
        num_slabs: int,
        max_num_seqs: int,
        spare_tokens: int,
        max_model_len: int,
    ) -> None:
        self.engine = engine_of(
            groups=groups,
            num_slabs=num_slabs,
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max_num_seqs + spare_tokens,
            max_model_len=max_model_len,
        )
        self.expected: dict[tuple[str, int], Expected] = {}
        self.num_added = 0

    @rule(
        num_prompt=st.integers(1, 120),
        max_tokens=st.none() | st.integers(1, 60),
        n=st.sampled_from([1, 1, 1, 3]),
        priority=st.sampled_from([0, 0, 0, 1, -1]),
        ignore_eos=st.booleans(),
    )
    def add(self, num_prompt: int, max_tokens: int | None, n: int, priority: int, ignore_eos: bool) -> None:
        self.num_added += 1
        request_id = f"r{self.num_added}"
        prompt = [(self.num_added + 3 * index) % 50 for index in range(num_prompt)]
        sampling = SamplingParams(max_tokens=max_tokens, n=n, seed=self.num_added, ignore_eos=ignore_eos)
        try:
            self.engine.add(request_id, prompt, sampling, priority=priority)
        except RequestError:
            limits = self.engine.limits
            output = limits.max_model_len if max_tokens is None else max_tokens
            peak = min(num_prompt + output - 1, limits.max_model_len - 1)
            assert num_prompt >= limits.max_model_len or not self.engine.cache.can_ever_hold(peak)
            return
        for choice in range(n):
            new = NewRequest(0, prompt, num_prompt, sampling, self.num_added, choice, (EOS,))
            self.expected[request_id, choice] = Expected(new)

    @precondition(lambda self: self.expected)
    @rule(data=st.data(), whole=st.booleans())
    def abort(self, data: st.DataObject, whole: bool) -> None:
        request_id, choice = data.draw(st.sampled_from(sorted(self.expected)))
        assert self.engine.abort(request_id, None if whole else choice)
        for key in list(self.expected):
            if key == (request_id, choice) or (whole and key[0] == request_id):
                del self.expected[key]

    @rule(count=st.integers(1, 12))
    def step(self, count: int) -> None:
        for _ in range(count):
            had_work = self.engine.has_work
            num_steps = len(runner_of(self.engine).steps)
            self._step()
            assert (len(runner_of(self.engine).steps) > num_steps) == had_work

    def _step(self) -> None:
        for part in self.engine.step():
            key = (part.request_id, part.choice)
            self.expected[key].take(part.token_ids)
            if part.finish_reason is not None:
                del self.expected[key]
        self.engine.cache.check_integrity()

    @invariant()
    def agrees(self) -> None:
        scheduler = self.engine.scheduler
        live = {(request.request_id, request.choice) for request in scheduler.running + scheduler.waiting}
        assert live == set(self.expected)
        assert len(scheduler.running) <= self.engine.limits.max_num_seqs
        for batch in runner_of(self.engine).steps[-1:]:
            assert sum(work.num_tokens for work in batch.work) <= self.engine.limits.max_num_batched_tokens

    def teardown(self) -> None:
        """All that was accepted ends in a bounded number of steps, and leaves the pool empty."""
        bound = 10_000
        while self.engine.has_work:
            self._step()
            bound -= 1
            assert bound, f"{sorted(self.expected)} never end"
        assert not self.expected
        assert self.engine.cache.pool.num_free_slabs == self.engine.cache.pool.num_slabs


def test_any_order_of_events_keeps_the_engine_whole(case_count: Callable[[int, int], int]) -> None:
    run_state_machine_as_test(
        EngineMachine,
        settings=settings(
            max_examples=case_count(120, 5000), stateful_step_count=30, deadline=None, derandomize=True, database=None
        ),
    )
