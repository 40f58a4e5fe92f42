"""An AsyncLLM without an engine: it says what a test tells it to, token by token, through the real text side."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any

from pelton.answer import Answer
from pelton.engine.batch import TokenLogprobs
from pelton.engine.request import Progress, RequestTimes
from pelton.engine.scheduler import EngineLimits
from pelton.errors import ContextLengthError, PeltonError
from pelton.outputs import RequestOutput
from pelton.sampling_params import SamplingParams
from pelton.text_model import TextModel, text_model_from
from tests.scripted import MODEL

LIMITS = EngineLimits(64, 4, 32, 1 << 20, 1 << 12, 512)
MAX_PROMPT_BYTES = 4096
TIMES = RequestTimes(10.0, 11.0, 13.0, 17.0)


@dataclasses.dataclass
class Said:
    """What one choice says: tokens one by one, of which the last has the finish reason. max_tokens ends it earlier."""

    token_ids: list[int]
    finish_reason: str = "stop"
    error: str | None = None


@dataclasses.dataclass
class Asked:
    prompt: list[int]
    sampling: SamplingParams
    request_id: str | None
    priority: int
    cache_salt: str


class FakeLLM:
    """say: the answer of a choice of a prompt. refuse: raised in place of any answer.

    turn: awaited before each token of a prompt, so that a test can hold the answer there. asked: every request so far.
    num_open: requests that have begun and not ended. prompt_told_at: with which token of the first choice the
    log-probabilities of the prompt come.
    """

    status = "ready"

    def __init__(self, text: TextModel | None = None) -> None:
        self.text = text or text_model_from("org/model", MODEL, None)
        self.limits = LIMITS
        self.say: Callable[[list[int], int], Said] = lambda prompt, choice: self.said("Hello you.")
        self.refuse: PeltonError | None = None
        self.turn: Callable[[list[int]], Awaitable[object]] = lambda prompt: asyncio.sleep(0)
        self.logprobs_of: Callable[[int, int], TokenLogprobs] = made_up_logprobs
        self.num_cached_tokens = 0
        self.prompt_told_at = 0
        self.asked: list[Asked] = []
        self.conversations: list[dict[str, Any]] = []
        self.num_open = 0

    def tokens(self, text: str) -> list[int]:
        return self.text.tokenizer.encode(text, add_special=False)

    def said(self, text: str) -> Said:
        """A text and the token that ends an answer."""
        assert self.text.tokenizer.eos_token_id is not None
        return Said([*self.tokens(text), self.text.tokenizer.eos_token_id])

    async def encode(self, prompt: Any) -> tuple[str | None, list[int]]:
        return self.text.encode(prompt, max_bytes=MAX_PROMPT_BYTES)

    async def encode_chat(self, messages: Any, **arguments: Any) -> tuple[str, list[int]]:
        self.conversations.append({"messages": messages, **arguments})
        return self.text.encode_chat(messages, **arguments, max_bytes=MAX_PROMPT_BYTES)

    async def generate(
        self,
        prompt: list[int],
        sampling: SamplingParams,
        *,
        request_id: str | None = None,
        priority: int = 0,
        cache_salt: str = "",
    ) -> AsyncGenerator[RequestOutput, None]:
        self.asked.append(Asked(prompt, sampling, request_id, priority, cache_salt))
        if self.refuse is not None:
            raise self.refuse
        if len(prompt) >= self.limits.max_model_len:
            raise ContextLengthError(f"the prompt has `{len(prompt)}` tokens")
        self.num_open += 1
        try:
            async for output in self._answer(prompt, sampling, request_id or "request"):
                yield output
        finally:
            self.num_open -= 1

    async def _answer(
        self, prompt: list[int], sampling: SamplingParams, request_id: str
    ) -> AsyncGenerator[RequestOutput, None]:
        answer = Answer(request_id, None, prompt, sampling, self.text.tokenizer)
        said = [self.say(prompt, choice) for choice in range(sampling.n)]
        for position in range(max(len(what.token_ids) for what in said)):
            for choice, what in enumerate(said):
                await self.turn(prompt)
                if position < len(what.token_ids):
                    answer.take(self._progress(request_id, prompt, choice, what, position, sampling))
                news = answer.news()
                if news is not None:
                    yield news

    def _progress(
        self, request_id: str, prompt: list[int], choice: int, said: Said, position: int, sampling: SamplingParams
    ) -> Progress:
        reason: Any = said.finish_reason if position + 1 == len(said.token_ids) else None
        if position + 1 == sampling.max_tokens:
            reason = "length"
        token_ids = [] if reason in ("abort", "error") else [said.token_ids[position]]
        logprobs = None
        if sampling.logprobs is not None:
            logprobs = [self.logprobs_of(token_id, sampling.logprobs) for token_id in token_ids]
        told = None
        if sampling.prompt_logprobs is not None and position == self.prompt_told_at and choice == 0:
            told = [self.logprobs_of(token_id, sampling.prompt_logprobs) for token_id in prompt[1:]]
        times = TIMES if reason else None
        return Progress(
            request_id, choice, token_ids, logprobs, told, reason, None, said.error, times, self.num_cached_tokens
        )


def made_up_logprobs(token_id: int, count: int) -> TokenLogprobs:
    """A token's rank is 1 to 3, and the token of rank r has log-probability -r."""
    rank = 1 + token_id % 3
    best = [(token_id - rank + other) % LIMITS.vocab_size for other in range(1, count + 1)]
    return TokenLogprobs([token_id, *best], [-float(rank), *(-float(r) for r in range(1, count + 1))], rank)
