"""What one client can make the server hold, and whether the others notice."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.server.serving import Running, request, run, running

_MAX_GROWTH_BYTES = 64 << 20
_BOMB_BYTES = 100 << 20
_BLOCK = b"a" * (64 << 10)
_CHUNKED = request("POST", "/size", "Transfer-Encoding: chunked")


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


async def _drop(server: Running, start: bytes, block: bytes) -> int | None:
    """The status that the bomb is answered with, None if the connection is reset before it is read."""
    async with await server.connect() as client:
        answers = asyncio.ensure_future(client.answers())
        try:
            await client.send(start)
            for _ in range(_BOMB_BYTES // len(block)):
                if answers.done():
                    break
                await client.send(block)
            return (await answers)[0].status
        except (ConnectionError, IndexError):
            return None
        finally:
            answers.cancel()
            await asyncio.gather(answers, return_exceptions=True)


@pytest.mark.parametrize(
    ("start", "block", "status"),
    [
        (b"GET /hello HTTP/1.1\r\nX: ", _BLOCK, 431),
        (b"GET /hello HTTP/1.1\r\n", b"X: a\r\n" * 10_000, 431),
        (b"GET /hello HTTP/1.1\r\n", _BLOCK, 431),
        (b"GET /", _BLOCK, 414),
        (b"G", b"E" * 65536, 400),
        (_CHUNKED, b"10000\r\n" + b"a" * 65536 + b"\r\n", 413),
        (_CHUNKED, b"1\r\na\r\n" * 10_000, 400),
        (_CHUNKED + b"1;", _BLOCK, 400),
        (_CHUNKED + b"1", b"0" * 65536, 400),
        (_CHUNKED + b"0\r\nX: ", _BLOCK, 400),
        (_CHUNKED + b"0\r\n", b"X: a\r\n" * 10_000, 431),
        (request("GET", "/hello"), request("GET", "/hello") * 1000, 200),
    ],
    ids=[
        "value",
        "headers",
        "name",
        "url",
        "method",
        "body",
        "chunks",
        "extension",
        "size",
        "trailer",
        "trailers",
        "pipeline",
    ],
)
def test_a_bomb_is_refused_early_and_others_are_served(start: bytes, block: bytes, status: int) -> None:
    async def test() -> None:
        async with running() as server:
            await server.get()
            before = resident_bytes()
            num_bombs = 1 if status == 413 else 3  # a body of 32 MiB is allowed, and its sender is known to hold a key
            bombs = [asyncio.ensure_future(_drop(server, start, block)) for _ in range(num_bombs)]
            while not all(bomb.done() for bomb in bombs):
                assert (await server.get()).status == 200
                assert resident_bytes() - before < _MAX_GROWTH_BYTES
            assert {bomb.result() for bomb in bombs} <= {status, None}

    run(test())


def test_large_bodies_at_once_have_a_bound() -> None:
    """Handlers wait with their bodies in memory; beyond eight bodies of the largest size the next is refused."""

    async def test() -> None:
        async with running(max_body_bytes=1 << 20) as server:
            clients = [await server.connect() for _ in range(12)]
            for client in clients:
                await client.send(request("POST", "/size", f"Content-Length: {1 << 20}") + bytes((1 << 20) - 1))
            answers = [asyncio.ensure_future(client.answer()) for client in clients]
            await asyncio.wait(answers, return_when=asyncio.FIRST_COMPLETED)
            refused = [answer for answer in answers if answer.done()]
            assert {(await answer).code for answer in refused} == {"overloaded"}  # type: ignore[union-attr]
            assert server.context.traffic.body_bytes <= 8 << 20
            for client in clients:
                client.writer.write(b"a")
            told = [answer.status for answer in await asyncio.gather(*answers) if answer is not None]
            assert told.count(200) >= 7
            for client in clients:
                client.writer.transport.abort()

    run(test())


@pytest.mark.parametrize("start", [b"", b"GET /hello HTTP/1.1\r\nX: ", request("POST", "/size", "Content-Length: 100")])
def test_many_slow_clients_are_ended_and_a_normal_one_is_served(start: bytes) -> None:
    """Slow-loris: a byte now and then keeps no connection beyond its time."""

    async def drip(server: Running) -> None:
        async with await server.connect() as client:
            await client.send(start)
            ended = asyncio.ensure_future(client.answers())
            while not ended.done():
                try:
                    await client.send(b"a" if start else b"")
                except ConnectionError:
                    break
                await asyncio.wait((ended,), timeout=0.02)
            await asyncio.gather(ended, return_exceptions=True)

    async def test() -> None:
        async with running(header_timeout_s=1, body_timeout_s=1, max_connections=200) as server:
            slow = [asyncio.ensure_future(drip(server)) for _ in range(150)]
            while not all(one.done() for one in slow):
                assert (await server.get()).status == 200
            await asyncio.gather(*slow)

    run(test())
