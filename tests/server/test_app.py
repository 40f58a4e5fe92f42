"""The frame around handlers: which route, which id, which error, and that nobody works for a client that has left."""

from __future__ import annotations

import asyncio
import logging

import pytest
from starlette.requests import Request
from starlette.responses import Response

from pelton.errors import EngineDeadError, PeltonError, QueueFullError
from pelton.server.app import Route
from pelton.server.context import ServerContext
from pelton.server.errors import ApiError
from tests.server.serving import ROUTES, FakeLLM, request, run, running


def test_what_is_not_there_is_told_in_json_for_every_method() -> None:
    async def test() -> None:
        async with running() as server:
            for method in ("GET", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"):
                [answer] = await server.ask(request(method, "/none", "Connection: close"))
                assert (answer.status, answer.code) == (404, "not_found")
            for method in ("PUT", "DELETE", "PATCH", "OPTIONS"):
                [answer] = await server.ask(request(method, "/models/a/b", "Connection: close"))
                assert (answer.status, answer.code) == (405, "method_not_allowed")
                assert answer.headers["allow"] == "get, head, post"
            for path, status in (("/hello", 200), ("/none", 404), ("/size", 405)):
                async with await server.connect() as client:
                    await client.send(request("HEAD", path, "Connection: close"))
                    head = await client.reader.readuntil(b"\r\n\r\n")
                    assert head.startswith(b"HTTP/1.1 %d " % status)
                    assert b"content-length" in head
                    assert await client.is_closed()

    run(test())


def test_every_answer_has_an_id_and_a_client_may_choose_it() -> None:
    async def test() -> None:
        async with running() as server:
            ids = [(await server.get(path)).headers["x-request-id"] for path in ("/hello", "/hello", "/none")]
            assert len(set(ids)) == 3
            assert (await server.get("/hello", "X-Request-Id: mine-7")).headers["x-request-id"] == "mine-7"
            for foul in ('a"b', "a b", "ä", "a" * 129):
                assert (await server.get("/hello", f"X-Request-Id: {foul}")).headers["x-request-id"].startswith("req_")

    run(test())


def test_a_request_that_needs_the_model_is_put_off_while_there_is_none() -> None:
    async def test() -> None:
        async with running() as server:
            for status, code in (("loading: reading weights", "model_loading"), ("dead: it fell", "engine_dead")):
                server.llm.status = status
                answer = await server.post("/whole")
                assert (answer.status, answer.code) == (503, code)
                assert (await server.get("/open")).status == 200
            server.llm.status = "restarting: starting"
            assert (await server.post("/whole")).status == 200
            server.context.is_draining = True
            answer = await server.post("/whole")
            assert (answer.status, answer.code) == (503, "shutting_down")
            assert int(answer.headers["retry-after"]) > 0

    run(test())


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (ApiError(400, "no", code="invalid_json"), 400, "invalid_json"),
        (QueueFullError("full", retry_after_s=1.2), 429, "rate_limit_exceeded"),
        (EngineDeadError("gone"), 503, "engine_dead"),
        (PeltonError("in /etc/passwd at 0x7f00"), 500, "internal_error"),
        (ValueError("in /etc/passwd at 0x7f00"), 500, "internal_error"),
    ],
)
def test_what_a_handler_raises_is_one_requests_error(
    error: Exception, status: int, code: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def fail(request: Request, context: ServerContext) -> Response:
        raise error

    async def test() -> None:
        routes = [*ROUTES, Route(("GET",), "/fail", fail)]
        async with running(routes) as server, await server.connect() as client:
            await client.send(request("GET", "/fail"))
            answer = await client.answer()
            assert answer is not None
            assert (answer.status, answer.code) == (status, code)
            assert b"passwd" not in answer.body
            if status == 429:
                retry = ("retry-after", "retry-after-ms", "x-should-retry")
                assert [answer.headers[name] for name in retry] == ["2", "1200", "true"]
            await client.send(request("GET", "/hello"))
            answer = await client.answer()
            assert answer is not None
            assert answer.status == 200

    with caplog.at_level(logging.ERROR):
        run(test())
    assert [record.levelname for record in caplog.records] == ["ERROR"] * (status == 500)


@pytest.mark.parametrize("path", ["/whole", "/stream"])
def test_a_request_whose_client_left_is_ended(path: str) -> None:
    async def test() -> None:
        async with running() as server:
            server.llm.gate.clear()
            for _ in range(20):
                client = await server.connect()
                await client.send(request("POST", path))
                await server.llm.until(lambda: server.llm.num_open == 1)
                client.writer.transport.abort()
                await server.llm.until(lambda: server.llm.num_open == 0)
            server.llm.gate.set()
            assert (await server.post("/whole")).body == b"aaa"

    run(test())


def test_a_client_that_leaves_in_its_body_reaches_no_handler() -> None:
    async def test() -> None:
        async with running() as server:
            async with await server.connect() as client:
                await client.send(request("POST", "/whole", "Content-Length: 10") + b"abc")
            await server.context.traffic.is_empty.wait()
            assert server.llm.num_begun == 0

    run(test())


def test_a_request_has_its_time_and_then_an_error() -> None:
    async def test() -> None:
        async with running(request_timeout_s=0.05) as server:
            server.llm.gate.clear()
            answer = await server.post("/whole")
            assert (answer.status, answer.code) == (408, "timeout")
            assert b"error: the request took longer" in (await server.post("/stream")).body

    run(test())


def test_prefixes_are_shared_between_requests_of_one_key_only() -> None:
    async def test() -> None:
        llm = FakeLLM()
        async with running(keys=["key-of-one"], llm=llm) as server:
            await server.post("/whole", b"", "X-Api-Key: key-of-one")
        async with running(keys=["key-of-one", "key-of-two"], llm=llm) as server:
            for key in ("key-of-one", "key-of-two", "key-of-one"):
                await server.post("/whole", b"", f"X-Api-Key: {key}")
        assert llm.salts[0] == ""
        assert llm.salts[1] == llm.salts[3] != llm.salts[2] != ""

    run(test())


def test_handlers_wait_beside_each_other() -> None:
    async def test() -> None:
        async with running() as server:
            server.llm.gate.clear()
            waiting = [asyncio.ensure_future(server.post("/whole")) for _ in range(50)]
            await server.llm.until(lambda: server.llm.num_open == 50)
            server.llm.gate.set()
            assert {answer.body for answer in await asyncio.gather(*waiting)} == {b"aaa"}

    run(test())
