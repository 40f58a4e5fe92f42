"""What every handler may use: the model, the settings, and a `generate` that is watched. It knows no route."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, cast

from starlette.requests import Request

from pelton.config import ServerSettings
from pelton.server.errors import ApiError
from pelton.server.request_log import Generation, RequestRecord

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from pelton.async_llm import AsyncLLM
    from pelton.llm import Prompt
    from pelton.outputs import RequestOutput
    from pelton.sampling_params import SamplingParams


@dataclass
class ServerContext:
    """One per server.

    model_ids:    names that clients may ask for; the first is told in answers.
    is_draining:  the server has been told to stop: what runs may end, nothing new is begun.
    """

    llm: AsyncLLM
    settings: ServerSettings
    model_ids: tuple[str, ...]
    is_draining: bool = False
    created_s: int = field(default_factory=lambda: int(time.time()))

    async def generate(
        self,
        request: Request,
        prompt: Prompt,
        sampling_params: SamplingParams | None = None,
        *,
        request_id: str | None = None,
        priority: int = 0,
        cache_salt: str = "",
    ) -> AsyncIterator[RequestOutput]:
        """As AsyncLLM.generate, within the time that a request may take, and told to the log and the metrics.

        Raises what that raises, and ApiError (408) once `request_timeout_s` have passed since the request came.
        Closing the iterator aborts the request.
        """
        record = record_of(request)
        generation = Generation()
        record.generations.append(generation)
        deadline_s = record.arrived_s + self.settings.request_timeout_s
        outputs = self.llm.generate(
            prompt, sampling_params, request_id=request_id, priority=priority, cache_salt=cache_salt
        )
        async with aclosing(cast("AsyncGenerator[RequestOutput, None]", outputs)):
            while True:
                try:
                    # Per output: a timeout that spanned the yield would strike whoever consumes it.
                    async with asyncio.timeout(deadline_s - time.monotonic()):
                        output = await anext(outputs)
                except StopAsyncIteration:
                    return
                except TimeoutError:
                    raise self._too_long() from None
                _take(generation, output)
                yield output

    def _too_long(self) -> ApiError:
        allowed = self.settings.request_timeout_s
        return ApiError(408, f"the request took longer than the {allowed:g} s that this server allows")


def record_of(request: Request) -> RequestRecord:
    """Where a handler notes what the log and the metrics are to say of this request."""
    return cast(RequestRecord, request.state.record)


def _take(generation: Generation, output: RequestOutput) -> None:
    now = time.monotonic()
    generation.num_prompt_tokens = len(output.prompt_token_ids)
    for choice in output.outputs:
        if choice.token_ids:
            generation.num_output_tokens += len(choice.token_ids)
            generation.first_token_s = generation.first_token_s or now
        if choice.finish_reason is not None:
            generation.finish_reasons.append(choice.finish_reason)
    if output.finished:
        generation.finished_s = now
