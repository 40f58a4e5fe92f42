"""Streams: what accumulators of real clients rely on, pings, errors in the middle, and clients that leave."""

from __future__ import annotations

import asyncio
import json
import logging
from typing import Any

import pytest

from pelton.errors import QueueFullError, QueueTimeoutError
from tests.server.openai.conftest import Answered, Client, Server, serve
from tests.server.openai.fake_llm import FakeLLM, Said


def test_chat_stream_has_openais_shape(client: Client) -> None:
    answered = client.chat(stream=True)
    assert answered.status == 200
    assert answered.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert answered.headers["cache-control"] == "no-cache"
    assert answered.headers["x-accel-buffering"] == "no"
    assert "content-length" not in answered.headers
    events = answered.events
    assert len({(event["id"], event["created"], event["model"], event["object"]) for event in events}) == 1
    assert events[0]["object"] == "chat.completion.chunk"
    assert all(set(event) == {"id", "object", "created", "model", "choices"} for event in events)
    assert events[0]["choices"] == [{"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}]
    assert events[-1]["choices"] == [{"index": 0, "delta": {}, "finish_reason": "stop"}]
    middle = [event["choices"][0] for event in events[1:-1]]
    assert all(set(choice["delta"]) == {"content"} and choice["delta"]["content"] for choice in middle)
    assert {choice["finish_reason"] for choice in middle} == {None}
    assert "".join(choice["delta"]["content"] for choice in middle) == "Hello you."


def test_roles_come_first_in_order(client: Client, llm: FakeLLM) -> None:
    llm.say = lambda prompt, choice: llm.said("x" * (4 - choice))
    events = client.chat(stream=True, n=3).events
    assert [event["choices"][0]["index"] for event in events[:3]] == [0, 1, 2]
    assert [event["choices"][0]["delta"] for event in events[:3]] == [{"role": "assistant", "content": ""}] * 3
    ends = [event["choices"][0]["index"] for event in events if event["choices"][0]["finish_reason"]]
    assert sorted(ends) == [0, 1, 2]
    for index in range(3):
        choices = [event["choices"][0] for event in events if event["choices"][0]["index"] == index]
        assert "".join(choice["delta"].get("content", "") for choice in choices) == "x" * (4 - index)
        assert [choice["finish_reason"] for choice in choices[:-1]] == [None] * (len(choices) - 1)


def test_usage_comes_last_and_is_null_before(client: Client) -> None:
    events = client.chat(stream=True, stream_options={"include_usage": True}).events
    assert [event["usage"] for event in events[:-1]] == [None] * (len(events) - 1)
    assert events[-1]["choices"] == []
    assert events[-1]["usage"] == {
        "prompt_tokens": 18,
        "completion_tokens": 8,
        "total_tokens": 26,
        "prompt_tokens_details": {"cached_tokens": 0},
    }


def test_usage_may_come_with_every_chunk(client: Client) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    events = client.complete(stream=True, stream_options=options).events
    counts = [event["usage"]["completion_tokens"] for event in events]
    assert counts == sorted(counts)
    assert counts[-1] == 8
    assert events[-1]["choices"] == []


def test_server_may_tell_usage_without_being_asked() -> None:
    events = serve(always_include_usage=True).client.chat(stream=True).events
    assert events[-1]["usage"]["completion_tokens"] == 8


def test_timings_come_with_the_last_chunk(client: Client) -> None:
    events = client.chat(stream=True, timings=True).events
    assert events[-1]["choices"] == []
    assert events[-1]["timings"]["predicted_n"] == 8
    assert "usage" not in events[-1]


@pytest.mark.parametrize("kind", ["chat", "complete"])
def test_stream_says_what_the_document_says(client: Client, llm: FakeLLM, kind: str) -> None:
    llm.say = lambda prompt, choice: llm.said("aä🙂 b" + "c" * choice)
    fields: dict[str, Any] = {"n": 2, "return_token_ids": True, "stop": ["zz"], "max_tokens": 30}
    fields |= {"logprobs": True, "top_logprobs": 2} if kind == "chat" else {"logprobs": 2, "echo": True}
    send = getattr(client, kind)
    document, events = send(**fields).json, send(**fields, stream=True).events
    for choice in document["choices"]:
        parts = [event["choices"][0] for event in events if event["choices"][0]["index"] == choice["index"]]
        assert [token for part in parts for token in part.get("token_ids", [])] == choice["token_ids"]
        assert parts[-1]["finish_reason"] == choice["finish_reason"]
        told = [part["logprobs"] for part in parts if "logprobs" in part]
        if kind == "chat":
            assert "".join(part["delta"].get("content", "") for part in parts) == choice["message"]["content"]
            assert [each for part in told for each in part["content"]] == choice["logprobs"]["content"]
        else:
            assert "".join(part["text"] for part in parts) == choice["text"]
            joined = {name: [each for part in told for each in part[name]] for name in choice["logprobs"]}
            assert joined == choice["logprobs"]
    prompts = [event.get("prompt_token_ids") or event["choices"][0].get("prompt_token_ids") for event in events[:1]]
    assert prompts == [llm.asked[0].prompt]


def test_batches_stream_side_by_side(client: Client, llm: FakeLLM) -> None:
    llm.say = lambda prompt, choice: llm.said(f"answer to {prompt[0]}")
    events = client.complete([[5], [6], [7]], stream=True).events
    for index, token in enumerate((5, 6, 7)):
        choices = [event["choices"][0] for event in events if event["choices"][0]["index"] == index]
        assert "".join(choice["text"] for choice in choices) == f"answer to {token}"
        assert choices[-1]["finish_reason"] == "stop"


def test_text_that_is_held_back_makes_no_empty_chunks(client: Client, llm: FakeLLM) -> None:
    llm.say = lambda prompt, choice: llm.said("🙂🙂")
    deltas = [event["choices"][0]["delta"] for event in client.chat(stream=True).events]
    assert [delta["content"] for delta in deltas[1:-1]] == ["🙂", "🙂"]


def test_failure_in_the_middle_is_an_event_and_then_the_end(
    client: Client, llm: FakeLLM, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL)
    llm.say = lambda prompt, choice: Said([*llm.tokens("Hello"), 5], "error", "logits are not numbers")
    answered = client.chat(stream=True)
    assert answered.status == 200
    assert answered.is_complete
    last = json.loads(answered.body.decode().split("data: ")[-1])
    assert last["error"]["code"] == "generation_failed"
    assert b"[DONE]" not in answered.body


def test_fault_of_the_server_in_the_middle_says_nothing_of_itself(
    client: Client, llm: FakeLLM, caplog: pytest.LogCaptureFixture
) -> None:
    def say(token_id: int, count: int) -> Any:
        if token_id == llm.tokens("Hello you.")[3]:
            raise RuntimeError("secret")
        return made_up(token_id, count)

    made_up, llm.logprobs_of = llm.logprobs_of, say
    answered = client.chat(stream=True, logprobs=True)
    assert b'"code":"internal_error"' in answered.body
    assert b"secret" not in answered.body
    assert "secret" in caplog.text


class Gate:
    """Lets the answer go on one token at a time."""

    def __init__(self, llm: FakeLLM) -> None:
        self._steps = asyncio.Semaphore(0)
        llm.turn = lambda prompt: self._steps.acquire()

    async def let(self, count: int) -> None:
        for _ in range(count):
            self._steps.release()
        await settle()


async def settle() -> None:
    """Lets every task that can run do so: none of them waits for a clock."""
    for _ in range(50):
        await asyncio.sleep(0)


def post(server: Server, into: Answered, leave: asyncio.Event | None = None, **fields: Any) -> asyncio.Task[Answered]:
    body = json.dumps({"messages": [{"role": "user", "content": "Hi"}], **fields}).encode()
    return asyncio.create_task(server.client.send("POST", "/v1/chat/completions", body, leave=leave, into=into))


def test_tokens_are_sent_as_they_come(server: Server) -> None:
    async def scenario() -> None:
        gate, answered = Gate(server.llm), Answered()
        task = post(server, answered, stream=True)
        await gate.let(0)
        assert answered.status == 0, "nothing is promised before something has come"
        await gate.let(1)
        assert answered.status == 200
        assert b'"content":"H"' in answered.body
        num_writes = len(answered.writes)
        await gate.let(1)
        assert len(answered.writes) == num_writes + 1
        await gate.let(20)
        await task

    asyncio.run(scenario())


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("num_tokens", [0, 2])
def test_client_that_leaves_ends_its_request(server: Server, stream: bool, num_tokens: int) -> None:
    async def scenario() -> None:
        gate, answered, leave = Gate(server.llm), Answered(), asyncio.Event()
        task = post(server, answered, leave, stream=stream, n=2)
        await gate.let(num_tokens)
        assert server.llm.num_open == 1
        leave.set()
        await task
        assert server.llm.num_open == 0
        assert not answered.is_complete

    asyncio.run(scenario())


def test_batch_ends_whole_when_its_client_leaves(server: Server) -> None:
    async def scenario() -> None:
        gate, leave = Gate(server.llm), asyncio.Event()
        body = json.dumps({"prompt": [[5], [6], [7]], "stream": True}).encode()
        task = asyncio.create_task(server.client.send("POST", "/v1/completions", body, leave=leave))
        await gate.let(2)
        assert server.llm.num_open == 3
        leave.set()
        await task
        assert server.llm.num_open == 0

    asyncio.run(scenario())


def test_batch_ends_whole_when_one_fails(client: Client, llm: FakeLLM, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL)
    llm.say = lambda prompt, choice: Said([5, 6], "error", "no") if prompt == [6] else llm.said("Hello")
    assert client.complete([[5], [6], [7]]).status == 500
    assert llm.num_open == 0


def test_silent_stream_is_pinged() -> None:
    async def scenario() -> None:
        server = serve(ping_interval_s=0.01)
        gate, answered = Gate(server.llm), Answered()
        task = post(server, answered, stream=True)
        while answered.body.count(b": ping\n\n") < 3:
            await asyncio.sleep(0.001)
        assert answered.status == 200
        assert not answered.body.replace(b": ping\n\n", b"")
        await gate.let(20)
        await task
        assert answered.events[0]["choices"][0]["delta"]["role"] == "assistant"

    asyncio.run(scenario())


LATE = QueueTimeoutError("the request has waited `60.0` seconds for its turn", retry_after_s=7.0)


@pytest.mark.parametrize("is_pinged", [False, True])
def test_refusal_is_a_status_as_long_as_none_is_sent_and_then_an_event(is_pinged: bool) -> None:
    async def scenario() -> None:
        server = serve(ping_interval_s=0.01 if is_pinged else 60.0)
        refused, answered = asyncio.Event(), Answered()

        async def wait(prompt: list[int]) -> None:
            await refused.wait()
            raise LATE

        server.llm.turn = wait
        task = post(server, answered, stream=True)
        if is_pinged:
            while not answered.body:
                await asyncio.sleep(0.001)
        refused.set()
        await task
        assert answered.is_complete
        assert server.llm.num_open == 0
        if is_pinged:
            assert (answered.status, answered.headers.get("retry-after")) == (200, None)
            *pings, last = answered.body.decode().removesuffix("\n\n").split("\n\n")
            assert set(pings) == {": ping"}
            error = json.loads(last.removeprefix("data: "))["error"]
        else:
            assert (answered.status, answered.headers["retry-after"]) == (503, "7")
            error = answered.error
        assert (error["type"], error["code"], error["message"]) == ("server_error", "overloaded", str(LATE))

    asyncio.run(scenario())


@pytest.mark.parametrize("stream", [False, True])
def test_full_queue_is_a_status_with_a_time_to_try_again(stream: bool) -> None:
    server = serve()
    server.llm.refuse = QueueFullError("`64` requests are waiting, which is all that may", retry_after_s=2.5)
    answered = server.client.chat(stream=stream)
    assert (answered.status, answered.error["code"]) == (429, "rate_limit_exceeded")
    assert (answered.headers["retry-after"], answered.headers["retry-after-ms"]) == ("3", "2500")


@pytest.mark.parametrize("stream", [False, True])
def test_deadline_of_a_request_ends_it(server: Server, stream: bool) -> None:
    async def scenario() -> None:
        Gate(server.llm)
        answered = await post(server, Answered(), stream=stream, deadline_ms=1)
        assert (answered.status, answered.error["code"]) == (408, "timeout")
        assert server.llm.num_open == 0

    asyncio.run(scenario())


def test_server_that_ends_tells_its_streams(server: Server) -> None:
    async def scenario() -> None:
        gate, answered = Gate(server.llm), Answered()
        task = post(server, answered, stream=True)
        await gate.let(2)
        server.context.stop()
        await task
        assert answered.status == 200
        assert answered.is_complete
        assert json.loads(answered.body.decode().split("data: ")[-1])["error"]["code"] == "shutting_down"
        assert server.llm.num_open == 0

    asyncio.run(scenario())


def test_nothing_is_read_from_the_engine_while_the_client_does_not_read(server: Server) -> None:
    """What comes meanwhile is merged on the engine's side, so that a slow client gets more at once."""

    async def scenario() -> None:
        num_drawn = 0

        async def turn(prompt: list[int]) -> None:
            nonlocal num_drawn
            num_drawn += 1

        server.llm.turn = turn
        answered = Answered(may_go_on=asyncio.Event())
        task = post(server, answered, stream=True)
        await settle()
        assert answered.status == 200
        assert num_drawn == 1
        assert answered.may_go_on is not None
        answered.may_go_on.set()
        await task
        assert len(answered.events) > 3

    asyncio.run(scenario())
