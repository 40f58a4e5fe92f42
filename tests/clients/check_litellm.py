"""litellm: both of its ways to a server like ours, and which of its errors ours become."""

from __future__ import annotations

import asyncio
from typing import Any

import litellm
import pytest

from tests.clients.conftest import TEXT, RunningServer

HELLO = [{"role": "user", "content": "Hi"}]


@pytest.fixture(params=["hosted_vllm/pelton", "openai/pelton"])
def litellm_model(request: pytest.FixtureRequest, scripted: RunningServer) -> dict[str, Any]:
    """Arguments that name the model."""
    return {"model": request.param, "api_base": scripted.api, "api_key": "none"}


def test_litellm_completes(litellm_model: dict[str, Any]) -> None:
    answer = litellm.completion(messages=HELLO, **litellm_model, n=2, logprobs=True, top_logprobs=2, seed=1)
    assert [choice.message.content for choice in answer.choices] == [TEXT] * 2
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
    assert len(answer.choices[0].logprobs.content[0].top_logprobs) == 2


def test_litellm_streams(litellm_model: dict[str, Any]) -> None:
    chunks = list(
        litellm.completion(messages=HELLO, stream=True, stream_options={"include_usage": True}, **litellm_model)
    )
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == TEXT
    rebuilt = litellm.stream_chunk_builder(chunks, messages=HELLO)
    assert rebuilt.choices[0].message.content == TEXT
    assert rebuilt.choices[0].finish_reason == "stop"
    assert rebuilt.usage.completion_tokens > 10


def test_litellm_streams_asynchronously(litellm_model: dict[str, Any]) -> None:
    async def scenario() -> str:
        stream = await litellm.acompletion(messages=HELLO, stream=True, **litellm_model)
        return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])

    assert asyncio.run(scenario()) == TEXT


def test_litellm_completes_text(scripted: RunningServer) -> None:
    answer = litellm.text_completion(
        model="text-completion-openai/pelton", prompt="count", api_base=scripted.api, api_key="none", max_tokens=50
    )
    assert answer.choices[0].text == "one two three four five"


def test_litellm_knows_our_errors(litellm_model: dict[str, Any]) -> None:
    with pytest.raises(litellm.ContextWindowExceededError):
        litellm.completion(messages=HELLO, max_tokens=10_000, **litellm_model)
    with pytest.raises(litellm.BadRequestError):
        litellm.completion(messages=HELLO, temperature=-1, **litellm_model)
    with pytest.raises(litellm.NotFoundError):
        litellm.completion(messages=HELLO, **{**litellm_model, "model": "openai/unknown"})
