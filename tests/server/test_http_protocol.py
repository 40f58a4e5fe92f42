"""One connection: what is answered, what is refused with which status, and that the connection then ends."""

from __future__ import annotations

import asyncio

import pytest

from tests.server.serving import Running, request, run, running

CHUNKED = "Transfer-Encoding: chunked"


def test_requests_follow_each_other_on_a_connection() -> None:
    async def test() -> None:
        async with running() as server, await server.connect() as client:
            for size in (0, 1, 70_000):
                await client.send(request("POST", "/size", f"Content-Length: {size}") + bytes(size))
                answer = await client.answer()
                assert answer is not None
                assert (answer.status, answer.body) == (200, str(size).encode())
            await client.send(request("POST", "/size", CHUNKED) + b"3\r\nabc\r\n0\r\n\r\n\r\n")
            answer = await client.answer()
            assert answer is not None
            assert answer.body == b"3"

    run(test())


@pytest.mark.parametrize(
    ("data", "status", "code"),
    [
        (request("GET", "/hello", "X: " + "a" * 70_000), 431, "headers_too_large"),
        (request("GET", "/hello", "X" * 70_000 + ": a"), 431, "headers_too_large"),
        (request("GET", "/hello", *(f"X{i}: a" for i in range(100))), 431, "headers_too_large"),
        (request("GET", "/hello", *(f"X{i}: " + "a" * 1000 for i in range(70))), 431, "headers_too_large"),
        (request("GET", "/" + "a" * 8192), 414, "url_too_long"),
        (request("GET", "/hello?" + "a" * 200_000), 414, "url_too_long"),
        (request("POST", "/size", f"Content-Length: {(32 << 20) + 1}"), 413, "request_too_large"),
        (request("POST", "/small", "Content-Length: 101") + bytes(101), 413, "request_too_large"),
        (request("POST", "/small", CHUNKED) + b"65\r\n" + bytes(101) + b"\r\n", 413, "request_too_large"),
    ],
    ids=["value", "name", "count", "sum", "path", "query", "length", "route", "route-chunked"],
)
def test_what_is_too_large_is_refused(data: bytes, status: int, code: str) -> None:
    async def test() -> None:
        async with running() as server:
            [answer] = await server.ask(data)
            assert (answer.status, answer.code, answer.headers["connection"]) == (status, code, "close")
            assert (await server.get()).status == 200

    run(test())


def test_what_is_just_as_large_as_allowed_is_served() -> None:
    async def test() -> None:
        async with running(max_header_bytes=2000, max_headers=10, max_url_bytes=100, max_body_bytes=5000) as server:
            assert (await server.get("/hello", *(f"X{i}: a" for i in range(8)))).status == 200
            assert (await server.get("/hello", *(f"X{i}: a" for i in range(9)))).status == 431
            assert (await server.get("/hello?" + "a" * 93)).status == 200
            assert (await server.get("/hello?" + "a" * 94)).status == 414
            assert (await server.post("/size", bytes(5000))).body == b"5000"
            assert (await server.post("/size", bytes(5001))).status == 413
            assert (await server.post("/small", bytes(100))).body == b"100"

    run(test())


HEAD = "POST /size HTTP/1.1\r\nHost: localhost\r\n"


@pytest.mark.parametrize(
    "text",
    [
        HEAD + "Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        HEAD + "Transfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n0\r\n\r\n",
        HEAD + "Content-Length: 3\r\nContent-Length: 3\r\n\r\nabc",
        HEAD + "Content-Length: 3\r\nContent-Length: 4\r\n\r\nabc",
        HEAD + "Content-Length: 3, 3\r\n\r\nabc",
        HEAD + "Content-Length: +3\r\n\r\nabc",
        HEAD + "Content-Length: -3\r\n\r\nabc",
        HEAD + "Content-Length: 0x3\r\n\r\nabc",
        HEAD + "Content-Length:\r\n\r\nabc",
        HEAD + "Content-Length: 99999999999999999999\r\n\r\nabc",
        HEAD + "Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n",
        HEAD + "Transfer-Encoding: identity\r\n\r\n0\r\n\r\n",
        HEAD + "Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
        HEAD + "Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
        HEAD + "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        HEAD + "Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n",
        HEAD + " Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        HEAD + "X: a\r\n Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        HEAD + "X: a\rTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        HEAD + "X: a\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        HEAD + "X: a\x00\r\n\r\n",
        HEAD + "Transfer-Encoding: chunked\r\n\r\n-1\r\n\r\n",
        HEAD + "Transfer-Encoding: chunked\r\n\r\n1\na\n0\n\n",
        HEAD + "Transfer-Encoding: chunked\r\n\r\n0x1\r\na\r\n0\r\n\r\n",
        HEAD + "Transfer-Encoding: chunked\r\n\r\nfffffffffffffffff\r\n",
        HEAD + "Transfer-Encoding: chunked\r\n\r\n1\r\nab\r\n0\r\n\r\n",
        "POST /size HTTP/1.0\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        "GET /hello HTTP/1.1\r\n\r\n",
        "GET /hello HTTP/1.1\r\nHost: localhost\r\nHost: other\r\n\r\n",
        "GET /hello HTTP/1.1\r\nHost: localhost\r\nHost: localhost\r\n\r\n",
        "GET http://other/hello HTTP/1.1\r\nHost: localhost\r\n\r\n",
        "GET /hello HTTP/1.1\nHost: localhost\n\n",
        "GET /hello HTTP/1.2\r\nHost: localhost\r\n\r\n",
        "GET /hello HTTP/2.0\r\nHost: localhost\r\n\r\n",
        "GET /hello\r\n\r\n",
        "GET hello HTTP/1.1\r\nHost: localhost\r\n\r\n",
        "CONNECT localhost:1 HTTP/1.1\r\nHost: localhost\r\n\r\n",
        "CONNECT localhost HTTP/1.1\r\nHost: localhost\r\n\r\n",
        "CONNECT /hello HTTP/1.1\r\nHost: localhost\r\n\r\n",
        "CONNECT * HTTP/1.1\r\nHost: localhost\r\n\r\n",
        "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        "BREW /hello HTTP/1.1\r\nHost: localhost\r\n\r\n",
        "GET /\xe4 HTTP/1.1\r\nHost: localhost\r\n\r\n",
        "POST /size HTTP/1.1\r\nHost: localhost\r\nExpect: a miracle\r\nContent-Length: 1\r\n\r\na",
        "POST /size HTTP/1.1\r\nHost: localhost\r\nContent-Encoding: gzip\r\nContent-Length: 1\r\n\r\na",
        "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    ],
)
def test_what_two_readers_could_understand_differently_is_refused(text: str) -> None:
    async def test() -> None:
        async with running() as server:
            [answer] = await server.ask(text.encode("latin-1"))
            assert answer.status in (400, 415, 417, 501, 505)
            assert answer.code == "invalid_http"
            assert answer.headers["connection"] == "close"

    run(test())


def test_a_trailer_does_not_pass_as_a_header() -> None:
    async def test() -> None:
        async with running(keys=["secret-key"]) as server:
            trailer = b"1\r\na\r\n0\r\nX-Api-Key: secret-key\r\n\r\n"
            [answer] = await server.ask(request("POST", "/size", CHUNKED, "Connection: close") + trailer)
            assert answer.status == 401

    run(test())


def test_an_absolute_url_of_this_host_is_served() -> None:
    async def test() -> None:
        async with running() as server:
            assert (await server.get("http://localhost/hello")).status == 200

    run(test())


def test_a_body_is_asked_for_only_if_it_is_wanted() -> None:
    async def test() -> None:
        expects = "Expect: 100-continue"
        async with running(keys=["secret-key"]) as server:
            async with await server.connect() as client:
                await client.send(request("POST", "/size", "X-Api-Key: secret-key", "Content-Length: 3", expects))
                going_on = await client.answer()
                assert going_on is not None
                assert going_on.status == 100
                await client.send(b"abc")
                answer = await client.answer()
                assert answer is not None
                assert answer.body == b"3"
            [answer] = await server.ask(request("POST", "/size", "Content-Length: 3", expects))
            assert answer.status == 401

    run(test())


@pytest.mark.parametrize("upgrade", ["websocket", "h2c"])
@pytest.mark.parametrize("body", [b"", b"abc"])
def test_an_upgrade_is_not_taken_up_and_the_request_is_answered(upgrade: str, body: bytes) -> None:
    async def test() -> None:
        async with running() as server:
            head = request(
                "POST", "/size", "Connection: Upgrade", f"Upgrade: {upgrade}", f"Content-Length: {len(body)}"
            )
            for parts in ([head + body], [head, body], [head[:30], head[30:] + body[:1], body[1:]]):
                async with await server.connect() as client:
                    for part in parts:
                        await client.send(part)
                    answer = await client.answer()
                    assert answer is not None
                    assert (answer.status, answer.body) == (200, str(len(body)).encode())

    run(test())


def test_what_comes_before_the_answer_ends_the_connection_after_it() -> None:
    async def test() -> None:
        async with running() as server:
            server.llm.gate.clear()
            async with await server.connect() as client:
                await client.send(request("POST", "/whole") + request("GET", "/hello") * 5000)
                server.llm.gate.set()
                [answer] = await client.answers()
                assert (answer.status, answer.body) == (200, b"aaa")

    run(test())


def test_an_answer_that_comes_early_reaches_a_client_that_is_still_sending() -> None:
    async def test() -> None:
        async with running(keys=["secret-key"]) as server, await server.connect() as client:
            await client.send(request("POST", "/size", f"Content-Length: {16 << 20}"))
            for _ in range(256):
                await client.send(bytes(64 << 10))
            [answer] = await client.answers()
            assert answer.code == "invalid_api_key"

    run(test())


@pytest.mark.parametrize("chunk", [b"1\r\na\r\n", b"1;" + b"x" * 1000 + b"\r\na\r\n"])
def test_a_body_of_tiny_chunks_is_refused(chunk: bytes) -> None:
    async def test() -> None:
        async with running() as server:
            data = request("POST", "/size", CHUNKED) + chunk * (400_000 // len(chunk))
            [answer] = await server.ask(data)
            assert (answer.status, answer.code) == (400, "invalid_http")

    run(test())


def test_trailers_count_as_headers() -> None:
    async def test() -> None:
        async with running() as server:
            head = request("POST", "/size", CHUNKED) + b"1\r\na\r\n0\r\n"
            [answer] = await server.ask(head + b"".join(b"X%d: a\r\n" % i for i in range(200)))
            assert answer.status == 431

    run(test())


async def _silent(server: Running, data: bytes) -> list[int]:
    async with await server.connect() as client:
        await client.send(data)
        return [answer.status for answer in await client.answers()]


def test_each_phase_has_its_time() -> None:
    async def test() -> None:
        async with running(header_timeout_s=0.05) as server:
            assert await _silent(server, b"") == []
            assert await _silent(server, b"GET /hel") == [408]
            assert await _silent(server, b"\r\n\r\n") == [408]
            assert await _silent(server, request("GET", "/hello")[:-2]) == [408]
            assert server.context.traffic.num_refused["timeout"] == 3
        async with running(body_timeout_s=0.05) as server:
            assert await _silent(server, request("POST", "/size", "Content-Length: 3") + b"ab") == [408]
            assert await _silent(server, request("POST", "/size", CHUNKED) + b"1\r\na") == [408]
        async with running(keep_alive_timeout_s=0.05) as server:
            assert await _silent(server, request("GET", "/hello")) == [200]
            assert await _silent(server, request("GET", "/hello") + b"\r\n") == [200]

    run(test())


def test_a_connection_has_a_number_of_requests() -> None:
    async def test() -> None:
        async with running(max_connection_requests=3) as server, await server.connect() as client:
            for _ in range(3):
                await client.send(request("GET", "/hello"))
                answer = await client.answer()
                assert answer is not None
            assert answer.headers["connection"] == "close"
            assert await client.is_closed()

    run(test())


def test_connections_beyond_the_limit_are_told_so_and_the_others_are_served() -> None:
    async def test() -> None:
        async with running(max_connections=20) as server:
            clients = [await server.connect() for _ in range(20)]
            for client in clients:
                await client.send(request("GET", "/hello"))
                answer = await client.answer()
                assert answer is not None
            beyond = await asyncio.gather(*(_try(server) for _ in range(200)))
            told = [answer for answer in beyond if answer is not None]
            assert len(told) == 200
            assert {answer.status for answer in told} == {503}
            assert {answer.code for answer in told} == {"too_many_connections"}
            assert all(answer.headers["retry-after"] == "1" for answer in told)
            for client in clients:
                await client.send(request("GET", "/hello"))
                answer = await client.answer()
                assert answer is not None
                assert answer.status == 200
                client.writer.transport.abort()
            assert server.context.traffic.num_refused["too_many_connections"] == 200

    async def _try(server: Running):  # type: ignore[no-untyped-def]
        async with await server.connect() as client:
            try:
                return await client.answer()
            except ConnectionError:
                return None  # cut off: more were being told at once than may

    run(test())


def test_a_client_that_never_reads_is_cut_off() -> None:
    async def test() -> None:
        async with running(write_timeout_s=0.1) as server, await server.connect() as client:
            client.writer.transport.pause_reading()
            await client.send(request("GET", "/flood"))
            assert (await server.get()).status == 200
            async with asyncio.timeout(30):
                while server.context.traffic.num_connections:
                    await server.context.traffic.is_empty.wait()

    run(test())
