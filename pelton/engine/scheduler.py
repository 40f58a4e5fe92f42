"""Who computes how many tokens in the next step. It knows requests, slots and block tables, no tensors and no text.

One idea: a request's computed tokens catch up with its known tokens. A prefill is a request with many to catch up
with, a decode one with a single token, a chunk what the step's budget leaves, a preemption a return to zero. Order is
(priority, arrival) everywhere: the first goes first, the last gives way.

Why it never stands still: the first running request can take the blocks of all others; alone it fits, as admission
asks; and one that is alone but finds the slabs scattered starts again in an empty pool.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable
from operator import attrgetter

import msgspec

from pelton.cache.manager import CacheManager, Growth
from pelton.engine.batch import Batch, NewRequest, SlotWork, StepResult
from pelton.engine.request import Progress, Request

_ORDER = attrgetter("order")


class EngineLimits(msgspec.Struct, frozen=True):
    """The sizes that the engine works within; the plan decides them.

    max_model_len:           tokens of prompt and output together, per request.
    max_num_seqs:            slots of the runner.
    max_num_batched_tokens:  tokens computed in one step, >= max_num_seqs so that every decode fits in.
    kv_cache_bytes, slab_bytes:  the pool and what it is cut into.
    vocab_size:              token ids of prompts lie in [0, vocab_size).
    """

    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int
    kv_cache_bytes: int
    slab_bytes: int
    vocab_size: int


class _StepDraft:
    """A batch in the making. Work is kept by slot so that a preemption can take it back."""

    def __init__(self, budget: int) -> None:
        self.budget = budget
        self.work: dict[int, SlotWork] = {}
        self.new: list[NewRequest] = []
        self.has_preempted = False


class Scheduler:
    """running and waiting are kept in order; a request holds a slot exactly while it runs."""

    def __init__(self, cache: CacheManager, max_num_seqs: int, max_num_batched_tokens: int) -> None:
        assert max_num_batched_tokens >= max_num_seqs, "a step must have room for a token of every sequence"
        self.cache = cache
        self.max_num_seqs = max_num_seqs
        self.max_num_batched_tokens = max_num_batched_tokens
        self.running: list[Request] = []
        self.waiting: list[Request] = []
        self.num_preemptions = 0
        self._by_slot: dict[int, Request] = {}
        self._free_slots = list(range(max_num_seqs - 1, -1, -1))
        self._finished_slots: list[int] = []  # to be told to the runner with the next batch
        self._started: list[Request] = []

    def add(self, request: Request) -> None:
        """Queues a request. The caller has checked that the cache can hold its peak_tokens."""
        insort(self.waiting, request, key=_ORDER)

    def abort(self, request: Request) -> None:
        """Forgets a request; its blocks are free at once."""
        if request.slot is None:
            self.waiting.remove(request)
        else:
            self._stop_running(request)

    def schedule(self) -> Batch | None:
        """The next step's batch, None if there is nothing to do."""
        draft = _StepDraft(self.max_num_batched_tokens)
        self._continue_running(draft)
        if not draft.has_preempted or not self.running:
            self._admit_waiting(draft)
        if not draft.work:
            assert not self.running, "an empty step while something runs"
            assert not self.waiting, "an empty step while something waits"
            return None
        finished, self._finished_slots = self._finished_slots, []
        return Batch(draft.new, list(draft.work.values()), finished)

    def take_started(self) -> list[Request]:
        """Those that got a slot for the first time since the last call."""
        started, self._started = self._started, []
        return started

    def update(self, batch: Batch, outcome: StepResult, now_s: float) -> list[Progress]:
        """Takes in what a batch came to; finished requests leave."""
        num_tokens = {work.slot: work.num_tokens for work in batch.work}
        progress = []
        for result in outcome.results:
            request = self._by_slot[result.slot]
            progress.append(request.advance(num_tokens.pop(result.slot), result, now_s))
            if request.finish_reason is not None:
                self._stop_running(request)
        assert not num_tokens, f"the runner left out slots {sorted(num_tokens)}"
        return progress

    def restart(self, requests: Iterable[Request]) -> None:
        """After a call that broke off anywhere: these requests start again from their known tokens, in fresh slots.

        It trusts nothing that was kept, and may itself be interrupted and repeated. What the lost step drew is drawn
        again, the same.
        """
        self.cache.clear()
        self.running = []
        self.waiting = sorted(requests, key=_ORDER)
        for request in self.waiting:
            request.slot = None
            request.num_computed = 0
        self._by_slot = {}
        self._free_slots = list(range(self.max_num_seqs - 1, -1, -1))
        self._finished_slots = list(range(self.max_num_seqs))
        self._started = []

    def _continue_running(self, draft: _StepDraft) -> None:
        """Decodes first, so that no prefill delays a running stream by more than one step's budget."""
        prefills = []
        for request in list(self.running):
            if request.remaining > 1:
                prefills.append(request)
            elif request.slot is not None:  # else it was preempted a moment ago
                self._continue(draft, request)
        for request in prefills:
            if request.slot is not None and draft.budget > 0:
                self._continue(draft, request)

    def _continue(self, draft: _StepDraft, request: Request) -> None:
        assert request.slot is not None
        num_tokens = min(request.remaining, draft.budget)
        while True:
            growth = self.cache.grow(request.slot, request.num_computed, num_tokens)
            if growth is not None:
                self._put(draft, request, num_tokens, growth)
                return
            last = self.running[-1]
            if last is request and len(self.running) > 1:
                return  # it keeps what it has and waits in place; those before it go on, or take it
            self._preempt(draft, last)
            if last is request:
                return

    def _admit_waiting(self, draft: _StepDraft) -> None:
        while self.waiting and self._free_slots and draft.budget > 0:
            request = self.waiting[0]
            promised = [(other.slot, len(other.token_ids)) for other in self.running if other.slot is not None]
            if not self.cache.can_hold_too(len(request.token_ids), promised):
                assert self.running, f"`{request.request_id}` was admitted but does not fit an empty pool"
                return  # nobody overtakes it
            del self.waiting[0]
            slot = self._free_slots.pop()
            request.slot = slot
            if request.started_s is None:
                self._started.append(request)
            insort(self.running, request, key=_ORDER)
            self._by_slot[slot] = request
            self.cache.open(slot)
            num_tokens = min(request.remaining, draft.budget)
            growth = self.cache.grow(slot, 0, num_tokens)
            assert growth is not None, "the pool refused what it had just promised"
            draft.new.append(
                NewRequest(
                    slot,
                    request.token_ids.copy(),
                    request.num_prompt,
                    request.sampling,
                    request.seed,
                    request.choice,
                    request.eos_token_ids,
                )
            )
            self._put(draft, request, num_tokens, growth, is_new=True)

    def _put(
        self, draft: _StepDraft, request: Request, num_tokens: int, growth: Growth, *, is_new: bool = False
    ) -> None:
        assert request.slot is not None
        end = request.num_computed + num_tokens
        wanted = request.prompt_logprobs_from
        if wanted is not None and wanted > end:
            wanted = None
        draft.budget -= num_tokens
        draft.work[request.slot] = SlotWork(
            request.slot,
            request.num_computed,
            num_tokens,
            growth.new_blocks,
            is_new,
            growth.freed_blocks,
            end == len(request.token_ids),
            wanted,
        )

    def _preempt(self, draft: _StepDraft, request: Request) -> None:
        """Takes a request's blocks and slot. It keeps its tokens and computes them again when there is room."""
        assert request.slot is not None
        dropped = draft.work.pop(request.slot, None)
        if dropped is not None:
            draft.budget += dropped.num_tokens
        draft.has_preempted = True
        self.num_preemptions += 1
        self._back_to_waiting(request)

    def _back_to_waiting(self, request: Request) -> None:
        self._stop_running(request)
        request.num_computed = 0
        insort(self.waiting, request, key=_ORDER)

    def _stop_running(self, request: Request) -> None:
        slot = request.slot
        assert slot is not None
        self.cache.close(slot)
        self.running.remove(request)
        del self._by_slot[slot]
        self._free_slots.append(slot)
        self._finished_slots.append(slot)
        request.slot = None
