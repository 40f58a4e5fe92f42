"""The loop: schedule, run, update. It knows requests and a runner by protocol; no text, no tensors."""

from __future__ import annotations

import os

from pelton.cache.manager import CacheManager
from pelton.engine.batch import Runner
from pelton.engine.request import Progress, Request
from pelton.engine.scheduler import EngineLimits, Scheduler
from pelton.errors import ContextLengthError, RequestError
from pelton.sampling_params import SamplingParams

_SEED_MASK = (1 << 64) - 1


class Engine:
    """Takes requests in, and gives out their progress step by step.

    engine.add("r1", prompt_token_ids, SamplingParams(max_tokens=8))
    while engine.has_work:
        for progress in engine.step():
            ...
    """

    def __init__(self, runner: Runner, limits: EngineLimits, eos_token_ids: tuple[int, ...] = ()) -> None:
        self.runner = runner
        self.limits = limits
        self.eos_token_ids = eos_token_ids
        self.cache = CacheManager(
            runner.cache_groups, limits.kv_cache_bytes, limits.slab_bytes, limits.max_num_batched_tokens
        )
        self.scheduler = Scheduler(self.cache, limits.max_num_seqs, limits.max_num_batched_tokens)
        self._requests: dict[str, list[Request]] = {}  # the unfinished choices of each
        self._num_arrived = 0

    @property
    def has_work(self) -> bool:
        return bool(self._requests)

    def check(self, prompt_token_ids: list[int], sampling: SamplingParams) -> None:
        """Raises RequestError, with the numbers, for what this engine can never do."""
        limits = self.limits
        num_prompt = len(prompt_token_ids)
        if num_prompt == 0:
            raise RequestError("the prompt has no tokens")
        if min(prompt_token_ids) < 0 or max(prompt_token_ids) >= limits.vocab_size:
            raise RequestError(f"the prompt has token ids outside `[0, {limits.vocab_size})`, the model's vocabulary")
        if num_prompt >= limits.max_model_len:
            raise ContextLengthError(
                f"the prompt has `{num_prompt}` tokens; the context holds `{limits.max_model_len}`, "
                "of which at least one is the answer's",
                f"shorten the prompt to at most {limits.max_model_len - 1} tokens, or raise `max_model_len`",
            )
        for name, named in (("logit_bias", sampling.logit_bias), ("stop_token_ids", sampling.stop_token_ids)):
            for token in named:
                if not isinstance(token, int) or not 0 <= token < limits.vocab_size:
                    raise RequestError(f"`{name}` names token `{token}`; there are `{limits.vocab_size}` tokens")
        max_output = limits.max_model_len - num_prompt
        if sampling.max_tokens is not None:
            max_output = min(max_output, sampling.max_tokens)
        needed = self.cache.slabs_needed(num_prompt + max_output - 1)
        if needed > self.cache.pool.num_slabs:
            slab_bytes = limits.slab_bytes
            raise RequestError(
                f"`{num_prompt}` prompt tokens and up to `{max_output}` more need `{needed * slab_bytes}` bytes of KV "
                f"cache; the pool has `{self.cache.pool.num_slabs * slab_bytes}`",
                "lower `max_tokens`, or raise `kv_cache_bytes`",
            )

    def add(self, request_id: str, prompt_token_ids: list[int], sampling: SamplingParams, *, priority: int = 0) -> None:
        """Queues a request: one sequence per choice. A lower priority goes first, equal ones as they came.

        Raises RequestError or ContextLengthError, before anything is queued, if it can never be served.
        """
        if request_id in self._requests:
            raise RequestError(f"there is a request `{request_id}` already")
        self.check(prompt_token_ids, sampling)
        seed = int.from_bytes(os.urandom(8)) if sampling.seed is None else sampling.seed & _SEED_MASK
        choices = []
        for choice in range(sampling.n):
            order = (priority, self._num_arrived)
            self._num_arrived += 1
            choices.append(
                Request(
                    request_id,
                    prompt_token_ids,
                    sampling,
                    seed=seed,
                    order=order,
                    max_model_len=self.limits.max_model_len,
                    eos_token_ids=self.eos_token_ids,
                    choice=choice,
                )
            )
        self._requests[request_id] = choices
        for request in choices:
            self.scheduler.add(request)

    def abort(self, request_id: str, choice: int | None = None) -> bool:
        """Ends a request, or one choice of it; its blocks are free before the next step. False if it is not there.

        No progress is reported for it: who aborts knows.
        """
        choices = self._requests.get(request_id, [])
        ended = [request for request in choices if choice is None or request.choice == choice]
        for request in ended:
            request.finish_reason = "abort"
            self.scheduler.abort(request)
            self._forget(request)
        return bool(ended)

    def step(self) -> list[Progress]:
        """Runs one step. Empty if there is nothing to do.

        If the runner raises, or Ctrl-C comes while it computes, no request is lost: those that are not aborted go on
        with the next step as if this one had not been.
        """
        batch = self.scheduler.schedule()
        if batch is None:
            return []
        try:
            outcome = self.runner.step(batch)
        except BaseException:
            self.scheduler.requeue_running()
            raise
        progress = self.scheduler.update(batch, outcome)
        for part in progress:
            if part.finish_reason is not None:
                choices = self._requests[part.request_id]
                self._forget(next(request for request in choices if request.choice == part.choice))
        return progress

    def close(self) -> None:
        self.runner.close()

    def _forget(self, request: Request) -> None:
        choices = self._requests[request.request_id]
        choices.remove(request)
        if not choices:
            del self._requests[request.request_id]
