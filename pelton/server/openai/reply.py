"""One request's reply, whole or as a stream; what the two kinds of completion have in common. It knows no dialect.

A kind says what its document, its first chunks and its log-probabilities look like.
"""

from __future__ import annotations

import logging
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import ClassVar, Generic, TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from pelton.outputs import CompletionOutput, RequestOutput
from pelton.server.context import ServerContext, record_of
from pelton.server.errors import error_body, from_exception
from pelton.server.openai.documents import ChatCompletion, ChatLogprobs, Completion, CompletionLogprobs
from pelton.server.openai.incoming import Incoming
from pelton.server.openai.prompts import ChoiceParts, EncodedPrompt, Prompts
from pelton.server.openai.schemas import GenerationRequest
from pelton.server.openai.stream import ChunkWriter, Kind
from pelton.server.sse import DONE, EventStream, event

logger = logging.getLogger(__name__)


T = TypeVar("T", bound=GenerationRequest)


class Reply(ABC, Generic[T]):
    """Choices are numbered through all prompts: choice c of prompt p is p * n + c."""

    id_prefix: ClassVar[str]
    chunk_kind: ClassVar[Kind]

    def __init__(
        self,
        http_request: Request,
        context: ServerContext,
        incoming: Incoming[T],
        prompts: Sequence[EncodedPrompt],
        *,
        hides_answer: bool = False,
    ) -> None:
        self.id = f"{self.id_prefix}-{uuid.uuid4().hex}"
        self.created = int(time.time())
        self.model = incoming.model
        self.request = incoming.request
        self.encoded = prompts
        self.num_per_prompt = prompts[0].sampling.n
        self.tokenizer = context.llm.text.tokenizer
        self.prompts = Prompts(http_request, context, self.request, self.id, prompts, hides_answer=hides_answer)
        self._record = record_of(http_request)
        self._headers = incoming.headers
        self._settings = context.settings

    async def send(self) -> Response:
        """Raises, while it still can be a status, what the engine refuses a prompt with."""
        if not self.request.stream:
            body = msgspec.json.encode(await self._whole())
            return Response(body, headers=self._headers, media_type="application/json")
        stream = EventStream(
            self._events(),
            ping_interval_s=self._settings.ping_interval_s,
            tell_error=self._tell_error,
            headers=self._headers,
        )
        return await stream.begin()

    @abstractmethod
    def document(self, choices: Sequence[ChoiceParts], outputs: Sequence[RequestOutput]) -> ChatCompletion | Completion:
        """The whole reply. outputs: the first of each prompt, which tells of the prompt."""

    @abstractmethod
    def first_chunks(self, writer: ChunkWriter, prompt: int, output: RequestOutput) -> bytes:
        """What a stream says of a prompt's choices before anything else."""

    @abstractmethod
    def logprobs(self, index: int, part: CompletionOutput) -> ChatLogprobs | CompletionLogprobs | None:
        """Of a choice's new tokens, None if they are not wanted."""

    async def _whole(self) -> ChatCompletion | Completion:
        choices = [ChoiceParts(index) for index in range(len(self.encoded) * self.num_per_prompt)]
        told: dict[int, RequestOutput] = {}
        async with aclosing(self.prompts.outputs()) as outputs:
            async for prompt, output in outputs:
                told.setdefault(prompt, output)
                for part in output.outputs:
                    choices[prompt * self.num_per_prompt + part.index].add(part)
        return self.document(choices, [told[prompt] for prompt in range(len(self.encoded))])

    async def _events(self) -> AsyncGenerator[bytes, None]:
        options = self.request.stream_options
        is_continuous = options is not None and bool(options.continuous_usage_stats)
        tells_usage = (
            is_continuous
            or self._settings.always_include_usage
            or (options is not None and bool(options.include_usage))
        )
        num_choices = len(self.encoded) * self.num_per_prompt
        writer = ChunkWriter(
            self.chunk_kind, self.id, self.created, self.model, num_choices=num_choices, tells_usage=tells_usage
        )
        begun: set[int] = set()
        async with aclosing(self.prompts.outputs()) as outputs:
            async for prompt, output in outputs:
                data = b"" if prompt in begun else self.first_chunks(writer, prompt, output)
                begun.add(prompt)
                usage = self.prompts.usage() if is_continuous else None
                for part in output.outputs:
                    index = prompt * self.num_per_prompt + part.index
                    logprobs = self.logprobs(index, part)
                    token_ids = part.token_ids if self.request.return_token_ids else None
                    if part.text or (part.token_ids and (logprobs is not None or token_ids is not None)):
                        data += writer.text(index, part.text, logprobs=logprobs, token_ids=token_ids, usage=usage)
                    if part.finish_reason is not None:
                        data += writer.finish(index, part.finish_reason, part.stop_reason, usage)
                if data:
                    yield data
        if tells_usage or self.request.timings:
            yield writer.last(
                usage=self.prompts.usage() if tells_usage else None,
                timings=self.prompts.timings() if self.request.timings else None,
            )
        yield DONE

    def _tell_error(self, error: Exception) -> bytes:
        told = from_exception(error)
        self._record.error_code = told.code
        if told.status == 500:
            logger.error("request %s failed in its stream", self._record.request_id, exc_info=error)
        return event(error_body(told))
