"""The requests of load generators (`vllm bench serve`, guidellm), and how they read the answers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.clients.conftest import RunningServer

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
TEXT_PARTS = [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}]
REQUESTS = {
    "vllm bench serve, openai-chat": (
        CHAT,
        {
            "messages": TEXT_PARTS,
            "temperature": 0.0,
            "max_completion_tokens": 24,
            "stream_options": {"include_usage": True},
            "ignore_eos": True,
        },
    ),
    "vllm bench serve, openai": (
        COMPLETIONS,
        {
            "prompt": "Hi",
            "temperature": 0.0,
            "repetition_penalty": 1.0,
            "max_tokens": 24,
            "logprobs": None,
            "stream_options": {"include_usage": True},
            "ignore_eos": True,
        },
    ),
    "guidellm, chat": (
        CHAT,
        {
            "messages": TEXT_PARTS,
            "stream_options": {"include_usage": True, "continuous_usage_stats": True},
            "max_completion_tokens": 24,
            "stop": None,
            "ignore_eos": True,
        },
    ),
    "guidellm, text": (
        COMPLETIONS,
        {
            "prompt": "Hi",
            "stream_options": {"include_usage": True, "continuous_usage_stats": True},
            "max_tokens": 24,
            "stop": None,
            "ignore_eos": True,
        },
    ),
}


def chunks_of(response: httpx.Response) -> Iterator[Any]:
    """As they read them: lines, comments left out, until the end mark."""
    for line in response.iter_lines():
        if not line or line.startswith(":"):
            continue
        data = line.removeprefix("data:").strip()
        if data == "[DONE]":
            return
        yield json.loads(data)
    raise AssertionError("the stream has no end mark")


@pytest.mark.parametrize("name", list(REQUESTS))
def test_generator_counts_what_it_asked_for(scripted: RunningServer, name: str) -> None:
    path, fields = REQUESTS[name]
    text, counts = "", []
    with httpx.stream("POST", scripted.url + path, json={"model": "pelton", "stream": True, **fields}) as response:
        assert response.status_code == 200
        assert "x-ignored-params" not in response.headers
        for chunk in chunks_of(response):
            if chunk["choices"]:
                choice = chunk["choices"][0]
                text += (choice["delta"].get("content") if path == CHAT else choice["text"]) or ""
            if chunk.get("usage"):
                counts.append(chunk["usage"]["completion_tokens"])
    assert text
    assert counts == sorted(counts)
    assert counts[-1] == 24
