"""OpenAI's own client: what it parses, accumulates, retries and raises."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from openai.types.chat import ChatCompletionMessageParam

from tests.clients.conftest import ANSWERS, SLOW_TEXT, TEXT, RunningServer, run_scripted


def say(content: str) -> list[ChatCompletionMessageParam]:
    return [{"role": "user", "content": content}]


@pytest.fixture
def client(scripted: RunningServer) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=scripted.api, api_key="none", max_retries=0) as client:
        yield client


def test_models_are_found(client: openai.OpenAI) -> None:
    (model,) = client.models.list().data
    assert model.id == "pelton"
    assert client.models.retrieve("pelton").object == "model"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("org/unknown")


def test_chat_is_answered(client: openai.OpenAI) -> None:
    completion = client.chat.completions.create(model="pelton", messages=say("Hi"))
    (choice,) = completion.choices
    assert (choice.message.role, choice.message.content, choice.finish_reason) == ("assistant", TEXT, "stop")
    assert completion.usage is not None
    assert completion.usage.total_tokens == completion.usage.prompt_tokens + completion.usage.completion_tokens
    assert completion.usage.prompt_tokens_details is not None
    assert completion._request_id is not None


def test_every_parameter_is_taken(client: openai.OpenAI) -> None:
    response = client.chat.completions.with_raw_response.create(
        model="pelton",
        messages=[{"role": "developer", "content": "a"}, *say("count")],
        n=3,
        temperature=0.7,
        top_p=0.9,
        presence_penalty=0.1,
        frequency_penalty=0.1,
        logit_bias={"5": 1},
        seed=7,
        stop=["four"],
        max_completion_tokens=50,
        logprobs=True,
        top_logprobs=2,
        user="u",
        metadata={"a": "b"},
        store=False,
        service_tier="auto",
        parallel_tool_calls=True,
        reasoning_effort="low",
        response_format={"type": "text"},
        prompt_cache_key="k",
        safety_identifier="s",
        extra_body={"top_k": 5, "min_p": 0.1, "repetition_penalty": 1.1, "min_tokens": 1, "priority": 1},
    )
    assert "x-ignored-params" not in response.headers
    completion = response.parse()
    assert [choice.message.content for choice in completion.choices] == ["one two three "] * 3
    logprobs = completion.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.content is not None
    assert bytes(byte for token in logprobs.content for byte in token.bytes or ()).decode().startswith("one two three ")
    assert {len(token.top_logprobs) for token in logprobs.content} == {2}


def test_ignored_parameters_are_told(client: openai.OpenAI) -> None:
    response = client.chat.completions.with_raw_response.create(
        model="pelton", messages=say("Hi"), verbosity="low", extra_body={"made_up": 1}
    )
    assert response.headers["x-ignored-params"] == "verbosity,made_up"


@pytest.mark.parametrize("n", [1, 3])
def test_chunks_make_up_the_answer(client: openai.OpenAI, n: int) -> None:
    texts = [""] * n
    stream = client.chat.completions.create(
        model="pelton", messages=say("Hi"), n=n, stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)
    for chunk in chunks:
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
    assert texts == [TEXT] * n
    assert [chunk.usage is not None for chunk in chunks] == [False] * (len(chunks) - 1) + [True]


@pytest.mark.parametrize("n", [1, 3])
def test_stream_helper_accumulates_what_a_document_says(client: openai.OpenAI, n: int) -> None:
    arguments: dict[str, Any] = {
        "model": "pelton",
        "messages": say("Hi"),
        "n": n,
        "logprobs": True,
        "top_logprobs": 1,
        "stream_options": {"include_usage": True},
    }
    with client.chat.completions.stream(**arguments) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_completion()
    del arguments["stream_options"]
    document = client.chat.completions.create(**arguments)
    assert {"content.delta", "content.done", "logprobs.content.delta"} <= set(kinds)
    for one, other in zip(final.choices, document.choices, strict=True):
        assert one.message.content == other.message.content
        assert one.finish_reason == other.finish_reason
        assert one.logprobs is not None
        assert other.logprobs is not None
        assert one.logprobs.content == other.logprobs.content
    assert final.usage == document.usage


def test_parse_helper_reads_text(client: openai.OpenAI) -> None:
    assert client.chat.completions.parse(model="pelton", messages=say("Hi")).choices[0].message.content == TEXT


def test_legacy_completions_are_answered(client: openai.OpenAI) -> None:
    completion = client.completions.create(model="pelton", prompt=["count", "Hi"], max_tokens=100, n=2)
    assert [choice.text for choice in completion.choices] == ["one two three four five"] * 2 + [TEXT] * 2
    streamed = client.completions.create(model="pelton", prompt="count", max_tokens=100, stream=True)
    assert "".join(chunk.choices[0].text for chunk in streamed) == "one two three four five"
    echoed = client.completions.create(model="pelton", prompt="count", max_tokens=1, echo=True, logprobs=2).choices[0]
    assert echoed.text == "counto"
    assert echoed.logprobs is not None
    assert echoed.logprobs.token_logprobs is not None
    assert echoed.logprobs.top_logprobs is not None
    assert echoed.logprobs.token_logprobs[0] is None


def test_refusals_have_their_classes_and_codes(client: openai.OpenAI) -> None:
    create = client.chat.completions.create
    with pytest.raises(openai.BadRequestError) as too_long:
        create(model="pelton", messages=say("Hi"), max_tokens=10_000)
    assert too_long.value.code == "context_length_exceeded"
    assert "This model's maximum context length is 512 tokens." in too_long.value.message
    with pytest.raises(openai.BadRequestError) as wrong:
        create(model="pelton", messages=say("Hi"), temperature=-1)
    assert (wrong.value.param, wrong.value.code) == ("temperature", "invalid_value")
    with pytest.raises(openai.NotFoundError) as unknown:
        create(model="gpt-9", messages=say("Hi"))
    assert unknown.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as tools:
        create(model="pelton", messages=say("Hi"), tools=[{"type": "function", "function": {"name": "f"}}])
    assert tools.value.param == "tools"


def test_failure_in_the_middle_of_a_stream_is_raised(client: openai.OpenAI) -> None:
    stream = client.chat.completions.create(model="pelton", messages=say("fail"), stream=True)
    with pytest.raises(openai.APIError) as failed:
        list(stream)
    assert not isinstance(failed.value, openai.APIStatusError), "the answer had begun"
    assert failed.value.code == "generation_failed"


def test_stream_that_is_closed_ends_its_request(client: openai.OpenAI, scripted: RunningServer) -> None:
    stream = client.chat.completions.create(model="pelton", messages=say("endlessly"), stream=True)
    next(iter(stream))
    assert scripted.metric("vllm:num_requests_running") == 1
    stream.close()
    while scripted.metric("vllm:num_requests_running"):
        pass


def test_many_asynchronous_streams_are_told_apart(scripted: RunningServer) -> None:
    async def scenario() -> list[str]:
        async with openai.AsyncOpenAI(base_url=scripted.api, api_key="none", max_retries=0) as client:

            async def text_of(content: str) -> str:
                stream = await client.chat.completions.create(model="pelton", messages=say(content), stream=True)
                return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])

            return await asyncio.gather(*(text_of(("count", "Hi")[number % 2]) for number in range(24)))

    assert asyncio.run(scenario()) == ["one two three four five", TEXT] * 12


def test_asynchronous_stream_helper_accumulates(scripted: RunningServer) -> None:
    async def scenario() -> str | None:
        async with (
            openai.AsyncOpenAI(base_url=scripted.api, api_key="none", max_retries=0) as client,
            client.chat.completions.stream(model="pelton", messages=say("Hi")) as stream,
        ):
            return (await stream.get_final_completion()).choices[0].message.content

    assert asyncio.run(scenario()) == TEXT


def test_full_queue_is_retried_until_there_is_room(tmp_path: Path) -> None:
    """Four run, one waits: of eight at once some are refused with 429, and the client's own retries get them all in."""

    async def scenario(server: RunningServer, max_retries: int) -> list[Any]:
        async with openai.AsyncOpenAI(base_url=server.api, api_key="none", max_retries=max_retries) as client:
            asked = (client.chat.completions.create(model="pelton", messages=say("slowly")) for _ in range(8))
            return await asyncio.gather(*asked, return_exceptions=True)

    with run_scripted(tmp_path, ANSWERS, "--max-queue", "1") as server:
        hasty = asyncio.run(scenario(server, 0))
        refused = [each for each in hasty if isinstance(each, Exception)]
        assert refused
        for error in refused:
            assert isinstance(error, openai.RateLimitError)
            assert error.code == "rate_limit_exceeded"
            assert error.response.headers["x-should-retry"] == "true"
        patient = asyncio.run(scenario(server, 20))
        assert [each.choices[0].message.content for each in patient] == [SLOW_TEXT] * 8
