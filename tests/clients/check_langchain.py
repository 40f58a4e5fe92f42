"""langchain-openai: messages, streams, events and usage as its chains read them."""

from __future__ import annotations

import asyncio

import openai
import pytest
from langchain_openai import ChatOpenAI, OpenAI

from tests.clients.conftest import TEXT, RunningServer


@pytest.fixture
def chat(scripted: RunningServer) -> ChatOpenAI:
    return ChatOpenAI(model="pelton", base_url=scripted.api, api_key="none", max_retries=0, stream_usage=True)


def test_langchain_invokes_and_batches(chat: ChatOpenAI) -> None:
    message = chat.invoke("Hi")
    assert message.content == TEXT
    assert message.response_metadata["finish_reason"] == "stop"
    assert message.usage_metadata["total_tokens"] > message.usage_metadata["input_tokens"] > 0
    assert [each.content for each in chat.batch(["Hi", "count"])] == [TEXT, "one two three four five"]


def test_langchain_streams_with_usage(chat: ChatOpenAI) -> None:
    chunks = list(chat.stream("Hi"))
    whole = chunks[0]
    for chunk in chunks[1:]:
        whole += chunk
    assert whole.content == TEXT
    assert whole.usage_metadata["output_tokens"] > 10


def test_langchain_streams_events_asynchronously(chat: ChatOpenAI) -> None:
    async def scenario() -> str:
        events = [event async for event in chat.astream_events("Hi", version="v2")]
        return "".join(event["data"]["chunk"].content for event in events if event["event"] == "on_chat_model_stream")

    assert asyncio.run(scenario()) == TEXT


def test_langchain_reads_log_probabilities(chat: ChatOpenAI) -> None:
    message = chat.bind(logprobs=True, top_logprobs=2).invoke("Hi")
    assert len(message.response_metadata["logprobs"]["content"][0]["top_logprobs"]) == 2


def test_langchain_knows_our_errors(chat: ChatOpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        chat.bind(max_tokens=10_000).invoke("Hi")
    assert caught.value.code == "context_length_exceeded"


def test_langchain_completes_text(scripted: RunningServer) -> None:
    llm = OpenAI(model="pelton", base_url=scripted.api, api_key="none", max_tokens=50)
    assert llm.invoke("count") == "one two three four five"
    assert "".join(llm.stream("count")) == "one two three four five"
    assert llm.generate(["count", "count"]).generations[1][0].text == "one two three four five"
