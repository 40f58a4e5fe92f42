"""A runner that says what a script says: chosen tokens, delays and faults behind the real engine. It knows no text.

It is for tests of servers and clients: everything but the arithmetic is the real thing, and no weights are needed.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from typing import Literal

import msgspec

from pelton.cache.groups import BLOCK_TOKENS, CacheGroupSpec
from pelton.engine.batch import Batch, NewRequest, SlotResult, SlotWork, StepResult, TokenLogprobs
from pelton.engine.scheduler import EngineLimits

# "crash": the process is killed. "stall": the step never returns. "error": the request's slot fails. "raise": the step
# raises, for all that run in it.
Fault = Literal["crash", "stall", "error", "raise"]

_TOKEN_BYTES = 4 << 10  # of pretended KV cache
_BLOCK_BYTES = BLOCK_TOKENS * _TOKEN_BYTES
_SLAB_BYTES = 32 * _BLOCK_BYTES
_NUM_RANKS = 3
_MAX_NUMBERS = 4096


class ScriptLine(msgspec.Struct, frozen=True):
    """What one request is answered.

    token_ids:    the answer, then an end-of-sequence token. A request that may not end yet hears it again.
    delay_s:      how long each step with this request takes at least.
    fault_after:  how many tokens this process draws for the request before the fault. A request that is continued in
                  a new process starts to count anew: the fault comes again if the answer is long enough.
    """

    token_ids: list[int]
    delay_s: float = 0.0
    fault: Fault | None = None
    fault_after: int = 0


class _Slot:
    def __init__(self, request: NewRequest, line: ScriptLine) -> None:
        self.num_prompt = request.num_prompt
        self.token_ids = list(request.token_ids)
        self.sampling = request.sampling
        self.eos_token_ids = request.eos_token_ids
        self.line = line
        self.num_drawn = 0


class ScriptedRunner:
    """The Runner of a script. choose: the line for a request's prompt and its number, counted from 0.

    Choices share their request's number, and one that comes again after a preemption keeps it.
    """

    def __init__(self, choose: Callable[[Sequence[int], int], ScriptLine], vocab_size: int) -> None:
        self._choose = choose
        self._vocab_size = vocab_size
        self._slots: dict[int, _Slot] = {}
        self._numbers: dict[tuple[int, int], int] = {}  # of the last requests, by prompt and seed
        self._num_requests = 0

    @property
    def cache_groups(self) -> list[CacheGroupSpec]:
        return [CacheGroupSpec("full", _BLOCK_BYTES)]

    def step(self, batch: Batch) -> StepResult:
        for slot in batch.finished_slots:
            self._slots.pop(slot, None)
        for new in batch.new:
            prompt = new.token_ids[: new.num_prompt]
            self._slots[new.slot] = _Slot(new, self._choose(prompt, self._number(prompt, new)))
        delay_s = max(self._slots[work.slot].line.delay_s for work in batch.work)
        if delay_s > 0:
            time.sleep(delay_s)
        return StepResult([self._work(self._slots[work.slot], work) for work in batch.work])

    def close(self) -> None:
        self._slots.clear()

    def _number(self, prompt: list[int], new: NewRequest) -> int:
        key = hash(tuple(prompt)), new.seed
        is_known = new.choice > 0 or len(new.token_ids) > new.num_prompt
        if not is_known or key not in self._numbers:
            self._numbers[key] = self._num_requests
            self._num_requests += 1
            if len(self._numbers) > _MAX_NUMBERS:
                del self._numbers[next(iter(self._numbers))]
        return self._numbers[key]

    def _work(self, slot: _Slot, work: SlotWork) -> SlotResult:
        prompt_logprobs = self._prompt_logprobs(slot, work)
        if not work.sample:
            return SlotResult(work.slot, None, prompt_logprobs=prompt_logprobs)
        if slot.line.fault is not None and slot.num_drawn >= slot.line.fault_after:
            _fail(slot.line.fault)
            return SlotResult(work.slot, None, error="the script says so")
        token_id = _next_token(slot)
        slot.token_ids.append(token_id)
        slot.num_drawn += 1
        wanted = slot.sampling.logprobs
        logprobs = None if wanted is None else self._logprobs(token_id, wanted)
        return SlotResult(work.slot, token_id, logprobs, prompt_logprobs)

    def _prompt_logprobs(self, slot: _Slot, work: SlotWork) -> list[TokenLogprobs] | None:
        first, wanted = work.prompt_logprobs_from, slot.sampling.prompt_logprobs
        if first is None or wanted is None:
            return None
        last = min(work.num_computed + work.num_tokens, slot.num_prompt - 1)
        return [self._logprobs(slot.token_ids[position], wanted) for position in range(first, last + 1)]

    def _logprobs(self, token_id: int, count: int) -> TokenLogprobs:
        """Made up, the same for the same token: its rank is 1 to 3, and the token of rank r has log-probability -r."""
        rank = 1 + token_id % _NUM_RANKS
        best = [(token_id - rank + other) % self._vocab_size for other in range(1, count + 1)]
        return TokenLogprobs([token_id, *best], [-float(rank), *(-float(r) for r in range(1, count + 1))], rank)


def scripted_limits(
    vocab_size: int,
    *,
    max_model_len: int = 4096,
    max_num_seqs: int = 32,
    max_num_batched_tokens: int = 512,
    kv_cache_bytes: int = 256 << 20,
) -> EngineLimits:
    """Sizes of a scripted engine; a token takes 4 KiB of its pretended cache, which has whole slabs of 2 MiB."""
    pool = max(kv_cache_bytes // _SLAB_BYTES, 1) * _SLAB_BYTES
    batched = max(max_num_batched_tokens, max_num_seqs)
    return EngineLimits(max_model_len, max_num_seqs, batched, pool, _SLAB_BYTES, vocab_size)


def _next_token(slot: _Slot) -> int:
    answer = slot.line.token_ids
    index = len(slot.token_ids) - slot.num_prompt
    may_end = not slot.sampling.ignore_eos and index >= slot.sampling.min_tokens and slot.eos_token_ids
    if index < len(answer) or (answer and not may_end):
        return answer[index % len(answer)]
    return slot.eos_token_ids[0] if slot.eos_token_ids else 0


def _fail(fault: Fault) -> None:
    if fault == "crash":
        os.kill(os.getpid(), signal.SIGKILL)
    elif fault == "stall":
        threading.Event().wait()
    elif fault == "raise":
        raise RuntimeError("the script says so")
