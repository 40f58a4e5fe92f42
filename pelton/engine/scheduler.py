"""Who computes how many tokens in the next step. It knows requests, slots and block tables, no tensors and no text.

One idea: a request's computed tokens catch up with its known tokens. A prefill is a request with many to catch up
with, a decode one with a single token, a chunk what the step's budget leaves, a prefix hit a start further on, a
preemption a return to where its cached blocks end. Order is (priority, arrival): the first goes first, the last gives
way.

A step's tokens: every decode has one. Prefills share what is left, and no more than keeps the step within MAX_STRETCH
of the decodes alone: half goes to the first, so that it never starves, the rest to the shortest, so that a short prompt
does not wait for a long one to end.

Why it never stands still: the first running request can take the blocks of all others; alone it fits, as admission
asks; and one that is alone but finds the slabs scattered starts again in an empty pool. Who waits for a prefix waits
for one that runs and goes first.
"""

from __future__ import annotations

import math
from bisect import insort
from collections.abc import Iterable, Sequence
from operator import attrgetter

import msgspec

from pelton.cache.groups import BLOCK_TOKENS, blocks_for
from pelton.cache.manager import CacheManager, Growth, PrefixMatch
from pelton.engine.batch import Batch, NewRequest, SlotWork, StepResult
from pelton.engine.checkpoints import DEFAULT_CHECKPOINT_TOKENS, checkpoint_blocks
from pelton.engine.request import Progress, Request
from pelton.engine.step_costs import StepCosts

_ORDER = attrgetter("order")
# What a request that may start with cached blocks found: all that it may take; as many as any had in common with it;
# fewer, since windows or states are not kept there; nothing.
LOOKUP_OUTCOMES = ("all", "diverged", "not_kept", "none")


class EngineLimits(msgspec.Struct, frozen=True):
    """The sizes that the engine works within; the plan decides them.

    max_model_len:           tokens of prompt and output together, per request.
    max_num_seqs:            slots of the runner.
    max_num_batched_tokens:  tokens computed in one step, >= max_num_seqs so that every decode fits in.
    kv_cache_bytes, slab_bytes:  the pool and what it is cut into.
    vocab_size:              token ids of prompts lie in [0, vocab_size).
    step_costs:              how far prefills may hold up decodes; None lets them take the whole step.
    prefix_cache:            whether computed blocks are kept for requests that start alike.
    checkpoint_tokens, checkpoint_bytes:  of recurrent layers: between two states that are kept for no better reason,
                             and what unused ones may take of the pool; None for no bound of their own.
    """

    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int
    kv_cache_bytes: int
    slab_bytes: int
    vocab_size: int
    step_costs: StepCosts | None = None
    prefix_cache: bool = True
    checkpoint_tokens: int = DEFAULT_CHECKPOINT_TOKENS
    checkpoint_bytes: int | None = None


class _StepDraft:
    """A batch in the making. Work is kept by slot so that a preemption can take it back.

    budget:     tokens that still fit in.
    allowance:  what prefills may cost by StepCosts; None if nothing decodes.
    prefills:   the running requests with more than one token to catch up with, and those that start now.
    """

    def __init__(self, budget: int) -> None:
        self.budget = budget
        self.allowance: float | None = None
        self.prefills: list[Request] = []
        self.work: dict[int, SlotWork] = {}
        self.new: list[NewRequest] = []
        self.has_preempted = False


class Scheduler:
    """running and waiting are kept in order; a request holds a slot exactly while it runs."""

    def __init__(self, cache: CacheManager, limits: EngineLimits) -> None:
        assert limits.max_num_batched_tokens >= limits.max_num_seqs, "a step must have room for a token of everyone"
        self.cache = cache
        self.limits = limits
        self.running: list[Request] = []
        self.waiting: list[Request] = []
        self.num_preemptions = 0
        self.num_queried_tokens = 0  # prompt tokens looked up in the prefix cache, and those found there
        self.num_hit_tokens = 0
        self.num_lookups = dict.fromkeys(LOOKUP_OUTCOMES, 0)
        self._by_slot: dict[int, Request] = {}
        self._free_slots = list(range(limits.max_num_seqs - 1, -1, -1))
        self._unentered: set[int] = set()  # slots whose request the runner does not know yet
        self._finished_slots: list[int] = []  # to be told to the runner with the next batch
        self._started: list[Request] = []

    def add(self, request: Request) -> None:
        """Queues a request. The caller has checked that the cache can hold its peak_tokens."""
        self._start_chain(request)
        insort(self.waiting, request, key=_ORDER)

    def abort(self, request: Request) -> None:
        """Forgets a request; its blocks are free at once."""
        if request.slot is None:
            self.waiting.remove(request)
        else:
            self._stop_running(request)

    def schedule(self) -> Batch | None:
        """The next step's batch, None if there is nothing to do."""
        draft = _StepDraft(self.limits.max_num_batched_tokens)
        self._continue_decodes(draft)
        if not draft.has_preempted:
            self._admit_waiting(draft)
        self._share_among_prefills(draft)
        if not draft.work and not self.running:  # nothing ran, or the last one gave up its scattered blocks
            self._admit_waiting(draft)
            self._share_among_prefills(draft)
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
        """Takes in what a batch came to; finished requests leave. A chunk of a prompt alone is not told."""
        num_tokens = {work.slot: work.num_tokens for work in batch.work}
        progress = []
        for result in outcome.results:
            request = self._by_slot[result.slot]
            num_full = request.num_computed // BLOCK_TOKENS
            part = request.advance(num_tokens.pop(result.slot), result, now_s)
            if part.token_ids or part.prompt_logprobs is not None or part.finish_reason is not None:
                progress.append(part)
            if request.num_computed // BLOCK_TOKENS > num_full:
                self._keep_computed(request)
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
            self._start_chain(request)
        self._by_slot = {}
        self._free_slots = list(range(self.limits.max_num_seqs - 1, -1, -1))
        self._unentered = set()
        self._finished_slots = list(range(self.limits.max_num_seqs))
        self._started = []

    # What runs.

    def _continue_decodes(self, draft: _StepDraft) -> None:
        """One token for each. What prefills may take beside them follows from what they cost."""
        costs = self.limits.step_costs
        decode_rows = 0.0
        for request in list(self.running):
            if request.remaining > 1:
                draft.prefills.append(request)
            elif request.slot is not None:  # else it was preempted a moment ago
                self._continue(draft, request, 1)
                if costs is not None:
                    decode_rows += costs.row(request.num_computed)
        if costs is not None and draft.work:
            draft.allowance = costs.prefill_allowance(decode_rows)

    def _share_among_prefills(self, draft: _StepDraft) -> None:
        prefills = sorted((request for request in draft.prefills if request.slot is not None), key=_ORDER)
        draft.prefills = []
        if not prefills or not draft.budget:
            return
        shares = self._shares(draft, prefills)
        for request in prefills:  # in order: the first takes blocks of the last, never the other way
            if request.slot is not None and shares.get(request):
                self._continue(draft, request, shares[request])

    def _shares(self, draft: _StepDraft, prefills: list[Request]) -> dict[Request, int]:
        """How many tokens each computes in this step; the first of them at least one."""
        costs, budget = self.limits.step_costs, draft.budget
        allowance = 0.0 if draft.allowance is None else draft.allowance
        shares: dict[Request, int] = {}

        def give(request: Request, part: float) -> None:
            nonlocal budget, allowance
            has = shares.get(request, 0)
            num_tokens = min(request.chunk_limit - has, math.ceil(budget * part))
            if costs is not None and draft.allowance is not None:
                each = costs.row(request.num_computed + has)
                num_tokens = min(num_tokens, max(int(allowance * part / each), 0 if shares else 1))
                allowance -= num_tokens * each
            shares[request] = has + num_tokens
            budget -= num_tokens

        first, *others = prefills
        give(first, 0.5 if others else 1.0)
        for request in sorted(others, key=lambda request: (request.order[0], request.remaining, request.order)):
            give(request, 1.0)
        give(first, 1.0)
        return shares

    def _continue(self, draft: _StepDraft, request: Request, num_tokens: int) -> None:
        assert request.slot is not None
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

    def _put(self, draft: _StepDraft, request: Request, num_tokens: int, growth: Growth) -> None:
        slot = request.slot
        assert slot is not None
        is_new = slot in self._unentered
        if is_new:
            self._unentered.remove(slot)
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
        end = request.num_computed + num_tokens
        wanted = request.prompt_logprobs_from
        if wanted is not None and wanted > end:
            wanted = None
        draft.budget -= num_tokens
        draft.work[slot] = SlotWork(
            slot,
            request.num_computed,
            num_tokens,
            growth.new_blocks,
            is_new,
            growth.freed_blocks,
            end == len(request.token_ids),
            wanted,
        )

    def _preempt(self, draft: _StepDraft, request: Request) -> None:
        """Takes a request's blocks and slot. It keeps its tokens, and may find its blocks again."""
        assert request.slot is not None
        dropped = draft.work.pop(request.slot, None)
        if dropped is not None:
            draft.budget += dropped.num_tokens
        draft.has_preempted = True
        self.num_preemptions += 1
        request.num_preemptions += 1
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
        if slot in self._unentered:
            self._unentered.remove(slot)
        else:
            self._finished_slots.append(slot)
        request.slot = None

    # What waits.

    def _admit_waiting(self, draft: _StepDraft) -> None:
        """In order, as long as there are slots and room. Only one that waits for a prefix is passed over, and a slot is
        left for it."""
        num_passed = 0
        while num_passed < min(len(self.waiting), len(self._free_slots)):
            request = self.waiting[num_passed]
            if self._waits_for_prefix(request):
                num_passed += 1
                continue
            if not self._open(request):
                return  # nobody overtakes it
            del self.waiting[num_passed]
            draft.prefills.append(request)

    def _waits_for_prefix(self, request: Request) -> bool:
        """Whether one that runs and goes first is computing what this one could start with."""
        if request.awaited_key is None:
            request.awaited_key = self._awaited_key(request)
        elif self.cache.computed_by(request.awaited_key) is None:
            request.awaited_key = self._awaited_key(request)  # it is there now, or will not come
        return request.awaited_key is not None

    def _awaited_key(self, request: Request) -> bytes | None:
        """The last of the keys that it lacks and another will bring."""
        keys, match = self._find_prefix(request)
        awaited = None
        for key in keys[match.usable : request.max_prefix_blocks]:
            slot = self.cache.computed_by(key)
            if slot is None and self.cache.has_states:
                continue  # no state will be kept there, but one may be further on
            if slot is None or self._by_slot[slot].order > request.order:
                break
            awaited = key
        return awaited

    def _find_prefix(self, request: Request) -> tuple[Sequence[bytes], PrefixMatch]:
        """(its known keys, what the cache has of them)."""
        if request.chain is None:
            return (), PrefixMatch(0, 0)
        keys = request.chain.extend(request.token_ids, len(request.token_ids) // BLOCK_TOKENS)
        return keys, self.cache.find(keys, request.max_prefix_blocks)

    def _open(self, request: Request) -> bool:
        """Gives it a slot and what is cached of it, if there is room for its known tokens beside what others were
        promised: their known tokens and one more block to grow into."""
        keys, match = self._find_prefix(request)
        num_found = match.usable
        num_known = len(request.token_ids)
        promised = [
            (other.slot, len(other.token_ids) + BLOCK_TOKENS) for other in self.running if other.slot is not None
        ]
        if self.running and not self.cache.has_room(promised, blocks_for(num_known) - num_found):
            return False
        slot = self._free_slots[-1]
        coming = self._plan_checkpoints(request, keys, match)
        self.cache.open(slot, request.peak_tokens, keys, num_found, coming)
        if not self.cache.has_room([*promised, (slot, num_known)]):
            self.cache.close(slot)
            if self.running:
                return False
            num_found = 0  # what it finds lies scattered; in an empty pool it fits
            request.checkpoints = []
            self.cache.open(slot, request.peak_tokens, keys, coming=() if self.cache.has_states else None)
            assert self.cache.has_room([(slot, num_known)]), f"`{request.request_id}` was admitted but does not fit"
        self._free_slots.pop()
        request.slot = slot
        request.num_computed = num_found * BLOCK_TOKENS
        if request.started_s is None:
            self._note_first_start(request, match)
        self._by_slot[slot] = request
        self._unentered.add(slot)
        insort(self.running, request, key=_ORDER)
        return True

    def _plan_checkpoints(self, request: Request, keys: Sequence[bytes], match: PrefixMatch) -> list[bytes] | None:
        """Decides where states are kept, and returns the keys of these places; None without recurrent layers.

        One that was preempted keeps none: in a tight pool they may be in its own way, again and again.
        """
        request.checkpoints = []
        if not self.cache.has_states:
            return None
        if request.chain is not None and not request.num_preemptions:
            request.checkpoints = checkpoint_blocks(
                request.token_ids,
                request.num_prompt,
                request.eos_token_ids,
                num_usable=match.usable,
                num_present=match.present,
                spacing=self.limits.checkpoint_tokens,
            )
        return [keys[number - 1] for number in request.checkpoints]

    def _note_first_start(self, request: Request, match: PrefixMatch) -> None:
        self._started.append(request)
        request.num_cached_tokens = min(request.num_computed, request.num_prompt)
        if request.max_prefix_blocks and request.chain is not None:
            self.num_queried_tokens += request.num_prompt
            self.num_hit_tokens += request.num_cached_tokens
            self.num_lookups[_outcome(request, match)] += 1

    # The prefix cache.

    def _start_chain(self, request: Request) -> None:
        request.awaited_key = None
        request.chain = self.cache.new_chain(request.cache_salt) if self.limits.prefix_cache else None

    def _keep_computed(self, request: Request) -> None:
        """Others may start with its full blocks, unless its step failed."""
        if request.chain is None or request.finish_reason == "error":
            return
        assert request.slot is not None
        num_full = request.num_computed // BLOCK_TOKENS
        keys = request.chain.extend(request.token_ids, num_full)
        self.cache.keep(request.slot, keys, num_full, is_checkpoint=self._is_checkpoint(request, num_full))

    def _is_checkpoint(self, request: Request, num_full: int) -> bool:
        """Whether states are kept behind this block. Those of an answer are, now and then, as it grows."""
        if request.num_computed != num_full * BLOCK_TOKENS or not self.cache.has_states:
            return False
        is_answer = request.num_computed >= request.num_prompt and not request.num_preemptions
        return num_full in request.checkpoints or (
            is_answer and request.num_computed % self.limits.checkpoint_tokens == 0
        )


def _outcome(request: Request, match: PrefixMatch) -> str:
    if match.usable == request.max_prefix_blocks:
        return "all"
    if match.usable < match.present:
        return "not_kept"
    return "diverged" if match.usable else "none"
