"""What every handler may use: the model, the settings, and a `generate` that is watched. It knows no route."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, cast

import msgspec
from starlette.requests import Request

from pelton.config import ServerSettings
from pelton.server.deadline import Deadline
from pelton.server.errors import ApiError, from_exception
from pelton.server.limits import Traffic
from pelton.server.metrics import Metrics
from pelton.server.request_log import Generation, RequestLog, RequestRecord
from pelton.server.watch import EngineWatch

if TYPE_CHECKING:
    from pelton.async_llm import AsyncLLM
    from pelton.outputs import RequestOutput
    from pelton.sampling_params import SamplingParams
    from pelton.text_model import Prompt


class ServerContext(msgspec.Struct):
    """One per server.

    model_ids:    names that clients may ask for; the first is told in answers.
    metrics, log: None if they are off.
    is_draining:  the server has been told to stop: what runs may end, nothing new is begun.
    """

    llm: AsyncLLM
    settings: ServerSettings
    model_ids: tuple[str, ...]
    metrics: Metrics | None = None
    log: RequestLog | None = None
    traffic: Traffic = msgspec.field(default_factory=Traffic)
    watch: EngineWatch = msgspec.field(default_factory=EngineWatch)
    is_draining: bool = False
    created_s: int = msgspec.field(default_factory=lambda: int(time.time()))
    _deadlines: set[Deadline] = msgspec.field(default_factory=set)
    _is_stopped: bool = False

    @property
    def problem(self) -> str | None:
        """Why the engine would not answer now, None if it would."""
        return self.watch.problem(self.llm)

    def stop(self) -> None:
        """Ends every running `generate` with an error at once."""
        self._is_stopped = True
        for deadline in self._deadlines:
            deadline.pass_now()

    async def generate(
        self,
        request: Request,
        prompt: Prompt,
        sampling_params: SamplingParams | None = None,
        *,
        request_id: str | None = None,
        priority: int = 0,
        cache_salt: str = "",
        timeout_s: float | None = None,
    ) -> AsyncGenerator[RequestOutput, None]:
        """As AsyncLLM.generate, within the time that a request may take, and told to the log and the metrics.

        timeout_s: of this request, if it wants to wait for less than the server allows.
        Raises what that raises, ApiError (408) once that time has passed since the request came, and ApiError (503)
        when the server ends. Closing the iterator aborts the request.
        """
        if self._is_stopped:
            raise self._stopped()
        record = record_of(request)
        generation = Generation()
        if sampling_params is not None:
            generation.num_choices, generation.max_tokens = sampling_params.n, sampling_params.max_tokens
        record.generations.append(generation)
        if self.settings.log_prompts:
            record.prompts.append(self._as_text(prompt))
        # Who has another key learns nothing of this one's prompts from how fast a cached prefix is.
        salt = f"{request.state.tenant}/{cache_salt}" if request.state.tenant else cache_salt
        outputs = self.llm.generate(prompt, sampling_params, request_id=request_id, priority=priority, cache_salt=salt)
        allowed_s = self.settings.request_timeout_s
        if timeout_s is not None:
            allowed_s = min(allowed_s, timeout_s)
        deadline = Deadline(record.arrived_s + allowed_s - time.monotonic())
        self._deadlines.add(deadline)
        try:
            async with aclosing(outputs):
                while (output := await deadline.next_of(outputs)) is not None:
                    self._take(generation, output)
                    yield output
        except TimeoutError:
            error = self._stopped() if self._is_stopped else _too_long(allowed_s)
            record.error_code = error.code
            raise error from None
        except Exception as error:
            record.error_code = from_exception(error).code
            generation.has_failed = True
            raise
        finally:
            deadline.cancel()
            self._deadlines.discard(deadline)
            self._end(generation)

    def _take(self, generation: Generation, output: RequestOutput) -> None:
        """Once per step of a request: what need not be done for each is left to its end."""
        now_s = time.monotonic()
        num_tokens = 0
        for choice in output.outputs:
            num_tokens += len(choice.token_ids)
            if choice.finish_reason is not None:
                generation.end_choice(choice.finish_reason, choice.times)
        if num_tokens:
            generation.num_output_tokens += num_tokens
            if generation.first_token_s is None:
                generation.first_token_s = now_s
            elif self.metrics is not None:
                self.metrics.observe_token_gap(now_s - generation.last_token_s)
            generation.last_token_s = now_s
        if output.finished or not generation.num_prompt_tokens:
            generation.num_prompt_tokens = len(output.prompt_token_ids)
            generation.num_cached_tokens = output.num_cached_tokens

    def _end(self, generation: Generation) -> None:
        generation.finished_s = time.monotonic()
        if generation.has_failed and generation.first_token_s is None:
            return  # refused, or never begun: an error of the request and nothing of the engine's work
        missing = generation.num_choices - len(generation.finish_reasons)
        generation.finish_reasons += ["error" if generation.has_failed else "abort"] * missing
        if self.metrics is not None:
            self.metrics.observe_generation(generation)

    def finish(self, record: RequestRecord, *, is_quiet: bool) -> None:
        """The answer is out, or nobody is left to have it. is_quiet: counted, but not worth a line."""
        if self.metrics is not None:
            self.metrics.observe_request(record)
        if self.log is not None and not is_quiet:
            self.log.write(record)

    def _as_text(self, prompt: Prompt) -> str:
        given = next(iter(cast("Mapping[str, Any]", prompt).values())) if isinstance(prompt, Mapping) else prompt
        return given if isinstance(given, str) else self.llm.text.tokenizer.decode(given, skip_special=False)

    def _stopped(self) -> ApiError:
        return ApiError(503, "the server is shutting down", code="shutting_down")


def _too_long(allowed_s: float) -> ApiError:
    return ApiError(408, f"the request took longer than the {allowed_s:g} s that it may")


def record_of(request: Request) -> RequestRecord:
    """Where a handler notes what the log and the metrics are to say of this request."""
    return cast(RequestRecord, request.state.record)
