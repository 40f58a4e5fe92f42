"""The loop: schedule, run, update. It knows requests and a runner by protocol; no text, no tensors."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Sequence
from operator import attrgetter

from pelton.cache.manager import CacheManager
from pelton.engine.admission import check_request, max_output
from pelton.engine.batch import Batch, Runner
from pelton.engine.messages import EngineStats
from pelton.engine.request import Progress, Request
from pelton.engine.scheduler import EngineLimits, Scheduler
from pelton.errors import RequestError
from pelton.sampling_params import SamplingParams

logger = logging.getLogger(__name__)

_SEED_MASK = (1 << 64) - 1
STEPS_BETWEEN_CHECKS = 1000  # of the cache's books, which takes milliseconds for thousands of blocks


class Engine:
    """Takes requests in, and gives out their progress step by step.

    engine.add("r1", prompt_token_ids, SamplingParams(max_tokens=8))
    while engine.has_work:
        for progress in engine.step():
            ...

    Whatever interrupts a call, a runner that raises or Ctrl-C between any two operations, no request is lost: the next
    call starts all of them again from what the caller was told, as if the interrupted one had not been.
    """

    def __init__(
        self,
        runner: Runner,
        limits: EngineLimits,
        eos_token_ids: tuple[int, ...] = (),
        *,
        clock: Callable[[], float] = time.monotonic,
        steps_between_checks: int = STEPS_BETWEEN_CHECKS,
    ) -> None:
        """clock: seconds, for the times and durations that are reported; nothing is decided by it."""
        self.runner = runner
        self.limits = limits
        self.eos_token_ids = eos_token_ids
        self.cache = CacheManager(
            runner.cache_groups,
            limits.kv_cache_bytes,
            limits.slab_bytes,
            limits.max_num_batched_tokens,
            limits.checkpoint_bytes,
        )
        self.scheduler = Scheduler(self.cache, limits)
        self._clock = clock
        self._steps_between_checks = steps_between_checks
        self._requests: dict[str, list[Request]] = {}  # the unfinished choices of each
        self._not_started: set[str] = set()  # requests of which no choice has had a slot
        self._started: list[str] = []
        self._num_arrived = 0
        self._num_steps = 0
        self._num_prompt_tokens = 0
        self._num_generated_tokens = 0
        self._num_repairs = 0
        self._step_tokens = 0
        self._step_seconds = 0.0
        self._step_seconds_total = 0.0
        self._schedule_seconds_total = 0.0
        # None between calls. Within one, and after one that was interrupted: what to undo, as (request, its known
        # tokens, its told prompt log-probabilities). Set and cleared by single assignments, so no interrupt can come
        # in between.
        self._undo: list[tuple[Request, int, int]] | None = None

    @property
    def has_work(self) -> bool:
        return bool(self._requests) or self._undo is not None

    def check(self, prompt_token_ids: Sequence[int], sampling: SamplingParams) -> None:
        """Raises RequestError, with the numbers, for what this engine can never do."""
        check_request(self.limits, self.cache.groups, prompt_token_ids, sampling)

    def add(
        self,
        request_id: str,
        prompt_token_ids: list[int],
        sampling: SamplingParams,
        *,
        priority: int = 0,
        seed: int | None = None,
        cache_salt: str = "",
        output_token_ids: Sequence[list[int]] = (),
    ) -> None:
        """Queues a request: one sequence per choice. A lower priority goes first, equal ones as they came.

        seed:              None takes the one of `sampling`, and draws one if that has none either.
        cache_salt:        the request shares cached prefixes only with those of equal salt.
        output_token_ids:  per choice, what was already said: with the same seed it goes on bitwise as if it had never
                           been interrupted. A choice that had ended with its last token is not run again and reports
                           nothing; prompt log-probabilities are told again by a choice that had said nothing yet.
        Raises RequestError or ContextLengthError, before anything is queued, if it can never be served.
        """
        self._settle()
        if request_id in self._requests:
            raise RequestError(f"there is a request `{request_id}` already")
        self.check(prompt_token_ids, sampling)
        if seed is None:
            seed = sampling.seed
        self._check_replay(prompt_token_ids, sampling, seed, output_token_ids)
        seed = int.from_bytes(os.urandom(8)) if seed is None else seed & _SEED_MASK
        choices = []
        for choice in range(sampling.n):
            request = Request(
                request_id,
                prompt_token_ids,
                sampling,
                seed=seed,
                order=(priority, self._num_arrived + choice),
                max_output=max_output(self.limits, len(prompt_token_ids), sampling),
                eos_token_ids=self.eos_token_ids,
                choice=choice,
                cache_salt=cache_salt,
                arrived_s=self._clock(),
            )
            request.replay(output_token_ids[choice] if output_token_ids else ())
            if request.finish_reason is None:
                choices.append(request)
        if not choices:
            return
        self._undo = []
        self._num_arrived += sampling.n
        self._requests[request_id] = choices
        self._not_started.add(request_id)
        for request in choices:
            self.scheduler.add(request)
        self._undo = None

    def abort(self, request_id: str, choice: int | None = None) -> bool:
        """Ends a request, or one choice of it; its blocks are free before the next step. False if it is not there.

        No progress is reported for it: who aborts knows.
        """
        self._settle()
        choices = self._requests.get(request_id, [])
        ended = [request for request in choices if choice is None or request.choice == choice]
        self._undo = []
        self._forget(request_id, ended)
        for request in ended:
            request.finish_reason = "abort"
            self.scheduler.abort(request)
        self._undo = None
        return bool(ended)

    def abort_all(self) -> None:
        """Ends every request, as `abort` does each."""
        self._settle()
        for request_id in list(self._requests):
            self.abort(request_id)

    def step(self) -> list[Progress]:
        """Runs one step. Empty if there is nothing to do, or if no request is as far as to get anything."""
        self._settle()
        if self._num_steps % self._steps_between_checks == 0:
            self._check_cache()
        self._undo = []
        began_s = self._clock()
        batch = self.scheduler.schedule()
        if batch is None:
            self._undo = None
            return []
        scheduled_s = self._clock()
        self._note_started(scheduled_s)
        outcome = self.runner.step(batch)
        computed_s = self._clock()
        self._undo = [
            (request, len(request.token_ids), request.num_prompt_logprobs) for request in self.scheduler.running
        ]
        progress = self.scheduler.update(batch, outcome, computed_s)
        self._count(batch, progress)
        self._step_seconds = computed_s - scheduled_s
        self._step_seconds_total += self._step_seconds
        self._schedule_seconds_total += scheduled_s - began_s + self._clock() - computed_s
        self._undo = None
        return progress

    def take_started(self) -> list[str]:
        """Requests of which a choice got its slot for the first time since the last call."""
        started, self._started = self._started, []
        return started

    def stats(self) -> EngineStats:
        """Since the start, and of the last step."""
        scheduler = self.scheduler
        return EngineStats(
            num_running=len(scheduler.running),
            num_waiting=len(scheduler.waiting),
            kv_cache_usage=self.cache.usage,
            num_steps_total=self._num_steps,
            num_preemptions_total=scheduler.num_preemptions,
            prefix_queried_tokens_total=scheduler.num_queried_tokens,
            prefix_hit_tokens_total=scheduler.num_hit_tokens,
            prefix_lookups_total=dict(scheduler.num_lookups),
            prompt_tokens_total=self._num_prompt_tokens,
            generation_tokens_total=self._num_generated_tokens,
            cache_repairs_total=self._num_repairs,
            step_tokens=self._step_tokens,
            step_seconds=self._step_seconds,
            step_seconds_total=self._step_seconds_total,
            schedule_seconds_total=self._schedule_seconds_total,
        )

    def close(self) -> None:
        self.runner.close()

    def _check_replay(
        self,
        prompt_token_ids: list[int],
        sampling: SamplingParams,
        seed: int | None,
        output_token_ids: Sequence[list[int]],
    ) -> None:
        if not output_token_ids:
            return
        if len(output_token_ids) != sampling.n:
            raise RequestError(f"`{len(output_token_ids)}` outputs are to be continued of `{sampling.n}` choices")
        if seed is None:
            raise RequestError("an output can be continued only with the seed that it was drawn with")
        most = max_output(self.limits, len(prompt_token_ids), sampling)
        for said in output_token_ids:
            if len(said) > most:
                raise RequestError(f"an output of `{len(said)}` tokens is to be continued; it ends after `{most}`")
            if said and (min(said) < 0 or max(said) >= self.limits.vocab_size):
                raise RequestError(f"an output to be continued has token ids outside `[0, {self.limits.vocab_size})`")

    def _settle(self) -> None:
        """After a call that was interrupted: everything starts again from what the caller knows. May be repeated."""
        if self._undo is None:
            return
        for request, num_known, num_prompt_logprobs in self._undo:
            request.roll_back(num_known, num_prompt_logprobs)
            choices = self._requests.setdefault(request.request_id, [])
            if request not in choices:
                choices.append(request)
                choices.sort(key=attrgetter("choice"))
        self.scheduler.restart(request for choices in self._requests.values() for request in choices)
        self._undo = None

    def _check_cache(self) -> None:
        """Books that do not add up mean that a block may have been given to two. Then nothing in the cache is trusted:
        everybody computes again what they know, and says the same as if it had never happened."""
        try:
            self.cache.check_integrity()
        except (AssertionError, LookupError) as error:
            if not self._num_repairs:
                logger.error("the KV cache's books did not add up and are made anew: %s", error)
            self._num_repairs += 1
            self._undo = []
            self._settle()

    def _note_started(self, now_s: float) -> None:
        """The first of a request's choices is told; each is timed."""
        for request in self.scheduler.take_started():
            request.started_s = now_s
            self._num_prompt_tokens += request.num_prompt
            if request.request_id in self._not_started:
                self._not_started.remove(request.request_id)
                self._started.append(request.request_id)

    def _count(self, batch: Batch, progress: list[Progress]) -> None:
        self._num_steps += 1
        self._step_tokens = sum(work.num_tokens for work in batch.work)
        for part in progress:
            self._num_generated_tokens += len(part.token_ids)
            if part.finish_reason is not None:
                choices = self._requests[part.request_id]
                self._forget(part.request_id, [request for request in choices if request.choice == part.choice])

    def _forget(self, request_id: str, ended: list[Request]) -> None:
        left = [request for request in self._requests.get(request_id, []) if request not in ended]
        if left:
            self._requests[request_id] = left
        else:
            self._requests.pop(request_id, None)
            self._not_started.discard(request_id)
