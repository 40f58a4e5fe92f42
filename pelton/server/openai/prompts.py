"""The prompts of one HTTP request, answered side by side: merged as they come, and counted. It knows no JSON."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from itertools import islice
from typing import Literal

import msgspec
from msgspec import UNSET
from msgspec.structs import replace
from starlette.requests import Request

from pelton.async_llm import AsyncLLM
from pelton.outputs import CompletionOutput, RequestOutput
from pelton.sampling_params import SamplingParams
from pelton.server.context import ServerContext, record_of
from pelton.server.errors import ApiError
from pelton.server.openai.documents import PromptTokensDetails, Timings, Usage
from pelton.server.openai.sampling import Wish, sampling_params, truncate
from pelton.server.openai.schemas import GenerationRequest
from pelton.server.request_log import Generation

Outputs = AsyncGenerator[tuple[int, RequestOutput], None]


class EncodedPrompt(msgspec.Struct, frozen=True):
    """One prompt. text: None if it was given as token ids. num_truncated: tokens that its start has lost."""

    text: str | None
    token_ids: list[int]
    sampling: SamplingParams
    num_truncated: int = 0


def encoded_prompt(
    request: GenerationRequest, wish: Wish, text: str | None, token_ids: list[int], llm: AsyncLLM
) -> EncodedPrompt:
    """Raises ApiError (400) if prompt and answer don't fit the context together."""
    max_model_len = llm.limits.max_model_len
    kept = truncate(request, token_ids, wish, max_model_len)
    sampling = sampling_params(
        request, wish, len(kept), max_model_len=max_model_len, defaults=llm.text.sampling_defaults
    )
    return EncodedPrompt(text, kept, sampling, len(token_ids) - len(kept))


class ChoiceParts:
    """One choice, put together from what came of it."""

    def __init__(self, index: int) -> None:
        self.index = index
        self._parts: list[CompletionOutput] = []

    def add(self, part: CompletionOutput) -> None:
        self._parts.append(part)

    @property
    def finish_reason(self) -> Literal["stop", "length"]:
        """Of a choice that has ended."""
        reason = self._parts[-1].finish_reason
        assert reason == "stop" or reason == "length", "other ends are errors of the whole reply"
        return reason

    def joined(self) -> CompletionOutput:
        """As one part. The choice has ended."""
        parts = self._parts
        has_logprobs = parts[-1].logprobs is not None
        return replace(
            parts[-1],
            text="".join(part.text for part in parts),
            token_ids=[token_id for part in parts for token_id in part.token_ids],
            logprobs=[entry for part in parts for entry in part.logprobs or ()] if has_logprobs else None,
        )


class Prompts:
    """Outputs of all prompts with what is new, each with the index of its prompt; and what they come to so far."""

    def __init__(
        self,
        http_request: Request,
        context: ServerContext,
        request: GenerationRequest,
        response_id: str,
        prompts: Sequence[EncodedPrompt],
        *,
        hides_answer: bool = False,
    ) -> None:
        """hides_answer: what follows the prompt is drawn, since something always is, but nobody asked for it."""
        self._prompts = prompts
        self._http_request = http_request
        self._context = context
        self._priority = request.priority or 0
        self._cache_salt = request.cache_salt or ""
        self._timeout_s = None if request.deadline_ms is None else request.deadline_ms / 1000
        self._response_id = response_id
        self._hides_answer = hides_answer
        self._generations = record_of(http_request).generations
        self._num_answer_tokens = 0

    async def outputs(self) -> Outputs:
        """Raises what the engine refuses a prompt with, and ApiError if one fails, is ended or takes too long."""
        async with aclosing(self._merged() if len(self._prompts) > 1 else self._answer(0)) as outputs:
            async for index, output in outputs:
                yield index, self._taken(output)

    def usage(self) -> Usage:
        num_prompt_tokens = sum(len(prompt.token_ids) for prompt in self._prompts)
        return Usage(
            prompt_tokens=num_prompt_tokens,
            completion_tokens=self._num_answer_tokens,
            total_tokens=num_prompt_tokens + self._num_answer_tokens,
            prompt_tokens_details=PromptTokensDetails(sum(each.num_cached_tokens for each in self._generations)),
            truncated_tokens=sum(prompt.num_truncated for prompt in self._prompts) or UNSET,
        )

    def timings(self) -> Timings:
        """Of the prompt that ended last."""
        return _timings(max(self._generations, key=lambda each: each.finished_s or 0.0))

    def _taken(self, output: RequestOutput) -> RequestOutput:
        for choice in output.outputs:
            if choice.finish_reason == "abort":
                raise ApiError(503, "the answer was ended: the server shuts down", code="shutting_down")
            if choice.finish_reason == "error":
                raise ApiError(500, f"the answer failed: {choice.error}", code="generation_failed")
        if self._hides_answer:
            return replace(output, outputs=[_hidden(choice) for choice in output.outputs])
        self._num_answer_tokens += sum(len(choice.token_ids) for choice in output.outputs)
        return output

    async def _answer(self, index: int) -> Outputs:
        prompt = self._prompts[index]
        outputs = self._context.generate(
            self._http_request,
            prompt.token_ids,
            prompt.sampling,
            request_id=self._response_id if len(self._prompts) == 1 else f"{self._response_id}-{index}",
            priority=self._priority,
            cache_salt=self._cache_salt,
            timeout_s=self._timeout_s,
        )
        owes_logprobs = prompt.sampling.prompt_logprobs is not None
        held: list[RequestOutput] = []
        async with aclosing(outputs):
            async for output in outputs:
                if not owes_logprobs:
                    yield index, output
                    continue
                # Choices may run ahead of the first one, which tells of the prompt; the prompt goes first all the same.
                held.append(output)
                if output.prompt_logprobs is not None:
                    owes_logprobs = False
                    yield index, replace(held[0], prompt_logprobs=output.prompt_logprobs)
                    for later in held[1:]:
                        yield index, later
        if owes_logprobs:
            for output in held:  # it has failed, and says why
                yield index, output

    async def _merged(self) -> Outputs:
        """Whoever has something next. Nothing is read ahead of the reader, so that a slow one gets more at once.

        No more choices are asked of the engine at a time than it runs, or lets wait: a large batch is no overload.
        """
        num_choices = min(self._context.llm.limits.max_num_seqs, self._context.settings.max_queue)
        waiting = iter([self._answer(index) for index in range(len(self._prompts))])
        pending: dict[asyncio.Task[tuple[int, RequestOutput]], Outputs] = {}

        def read(source: Outputs) -> None:
            pending[asyncio.ensure_future(anext(source))] = source

        try:
            for source in islice(waiting, max(1, num_choices // self._prompts[0].sampling.n)):
                read(source)
            while pending:
                done, _ = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
                for task in [each for each in pending if each in done]:
                    source = pending.pop(task)
                    try:
                        item = task.result()
                    except StopAsyncIteration:
                        for source in islice(waiting, 1):
                            read(source)
                    else:
                        read(source)
                        yield item
        finally:
            for task in pending:
                task.cancel()
            await asyncio.gather(*pending, return_exceptions=True)
            for source in pending.values():
                await source.aclose()


def _hidden(choice: CompletionOutput) -> CompletionOutput:
    return replace(
        choice,
        text="",
        token_ids=[],
        logprobs=None if choice.logprobs is None else [],
        finish_reason=choice.finish_reason and "length",
        stop_reason=None,
    )


def _timings(generation: Generation) -> Timings:
    """Waiting for the engine is no part of them."""
    first_s, end_s = generation.first_token_s, generation.finished_s
    assert first_s is not None, "every answer has a token"
    assert end_s is not None, "it has ended"
    prompt_s = first_s - (generation.started_s or generation.arrived_s)
    answer_s = end_s - first_s
    num_prompt_tokens = generation.num_prompt_tokens - generation.num_cached_tokens
    num_answer_tokens = generation.num_output_tokens
    return Timings(
        cache_n=generation.num_cached_tokens,
        prompt_n=num_prompt_tokens,
        prompt_ms=prompt_s * 1e3,
        prompt_per_token_ms=prompt_s * 1e3 / max(num_prompt_tokens, 1),
        prompt_per_second=num_prompt_tokens / prompt_s if prompt_s else 0.0,
        predicted_n=num_answer_tokens,
        predicted_ms=answer_s * 1e3,
        predicted_per_token_ms=answer_s * 1e3 / max(num_answer_tokens, 1),
        predicted_per_second=num_answer_tokens / answer_s if answer_s else 0.0,
    )
