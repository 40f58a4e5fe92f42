"""`AsyncLLM`: a model in a process of its own, for asyncio programs; the same client that the server uses.

It turns prompts into token ids and tokens into text on this side, in threads of their own so that the event loop stays
free; what computes is engine/client.py's.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

from pelton.config import Settings
from pelton.engine.messages import EngineStats
from pelton.llm import Message, Prompt
from pelton.outputs import RequestOutput
from pelton.sampling_params import SamplingParams


class AsyncLLM:
    """A loaded model that answers many at once. Use it as an async context manager, or close it.

    async with await AsyncLLM.start(settings) as llm:
        async for output in llm.generate("The sky is", SamplingParams(max_tokens=20)):
            print(output.outputs[0].text, end="")
    """

    @classmethod
    async def start(cls, settings: Settings) -> AsyncLLM:
        """Starts the engine process; returns at once, while it loads. `wait_ready` says when it takes requests."""
        raise NotImplementedError

    async def wait_ready(self) -> None:
        """Raises what the engine's start failed with: ModelError, MemoryPlanError, UsageError, EngineDeadError."""

    @property
    def status(self) -> str:
        """ "loading: <phase>", "ready", "draining" or "dead: <why>"."""
        raise NotImplementedError

    @property
    def stats(self) -> EngineStats:
        """Of the last step."""
        raise NotImplementedError

    async def encode(self, prompt: Prompt) -> tuple[str | None, list[int]]:
        """(text if it was one, token ids); not on the event loop. Refuses early what can't fit the context."""
        raise NotImplementedError

    async def encode_chat(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> tuple[str, list[int]]:
        """As `encode` for a conversation. Raises ChatTemplateError."""
        raise NotImplementedError

    def generate(
        self,
        prompt: Prompt,
        sampling_params: SamplingParams | None = None,
        *,
        request_id: str | None = None,
        priority: int = 0,
        cache_salt: str = "",
    ) -> AsyncIterator[RequestOutput]:
        """Outputs with what is new, as `LLM.stream`; the last has `finished`. Closing the iterator aborts the request.

        Nothing is queued before the first `__anext__`. That raises ContextLengthError or RequestError (can never be
        served), QueueFullError (with `retry_after_s`), QueueTimeoutError, or EngineDeadError.
        """
        raise NotImplementedError

    async def abort(self, request_id: str) -> None:
        """Ends a request: its iterator ends with finish_reason "abort"."""

    async def close(self) -> None:
        """Ends the engine process. Idempotent."""
