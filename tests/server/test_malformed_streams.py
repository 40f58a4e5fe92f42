"""Streams of bytes that are not quite HTTP, made from requests that are: an error or an answer, never a fault."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable

import pytest

from tests.server.serving import Answer, Running, request, run, running

_AT_ONCE = 64
_PIECES = [
    *(b"\r\n", b"\n", b"\r", b"\x00", b" ", b"\t", b":", b";", b",", b"0", b"-1", b"ffffffff", b"\xff", b"\x80", b"%"),
    *(b"Content-Length: 5\r\n", b"Content-Length: 18446744073709551616\r\n", b"Transfer-Encoding: chunked\r\n"),
    *(b"Transfer-Encoding: x\r\n", b"Host: b\r\n", b"Expect: 100-continue\r\n", b"Connection: close\r\n"),
    *(b"Upgrade: h2c\r\nConnection: Upgrade\r\n", b"HTTP/1.0", b"HTTP/9.9", b"GET ", b"POST /size ", b"../", b"//"),
    *(b"%00", b"%2f", b"?", b"#", b"5\r\nhello\r\n", b"0\r\n\r\n", b"X" * 3000, b"X: y\r\n" * 120),
]


def malformed(generator: random.Random) -> bytes:
    """A request or a few, changed at up to eight places."""
    body = generator.randbytes(generator.choice((0, 1, 30, 400)))
    chunks = b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in (body[:7], body[7:]) if part) + b"0\r\n\r\n"
    stream = bytearray(
        b"".join(
            generator.choice(
                (
                    request("GET", generator.choice(("/hello", "/open", "/models/a%2fb", "/none"))),
                    request("POST", "/size", f"Content-Length: {len(body)}") + body,
                    request("POST", "/small", "Transfer-Encoding: chunked") + chunks,
                    request("POST", "/whole", "Expect: 100-continue", "Content-Length: 0"),
                )
            )
            for _ in range(generator.choice((1, 1, 1, 3)))
        )
    )
    for _ in range(generator.randrange(1, 9)):
        place = generator.randrange(len(stream) + 1)
        match generator.randrange(5):
            case 0:
                stream[place:place] = generator.choice(_PIECES)
            case 1:
                del stream[place : place + generator.choice((1, 1, 5, 50))]
            case 2:
                stream[place : place + 1] = generator.randbytes(1)
            case 3:
                stream[place:place] = stream[generator.randrange(len(stream) + 1) :][:40]
            case 4:
                stream[place:place] = generator.randbytes(generator.choice((1, 4, 300)))
    return bytes(stream)


async def _send(server: Running, stream: bytes, cuts: list[int]) -> list[Answer]:
    """In pieces, then no more: the server is to end what is not at its end."""
    async with await server.connect() as client:
        try:
            for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
                await client.send(stream[start:end])
                await asyncio.sleep(0)
            return await client.answers()
        except ConnectionError:
            return []  # reset, since it sent on after the end


def test_malformed_streams_are_answered_or_ended_and_disturb_nobody(
    case_count: Callable[[int, int], int], caplog: pytest.LogCaptureFixture
) -> None:
    num_streams = case_count(500, 5000)
    generator = random.Random(20)
    statuses: set[int] = set()

    async def one(server: Running) -> None:
        stream = malformed(generator)
        cuts = sorted(generator.randrange(len(stream) + 1) for _ in range(generator.randrange(4)))
        for answer in await _send(server, stream, cuts):
            statuses.add(answer.status)
            assert answer.status < 500 or answer.status in (501, 505), stream
            assert len(answer.body) < 4096

    async def test() -> None:
        limits = {"header_timeout_s": 0.3, "body_timeout_s": 0.3, "keep_alive_timeout_s": 0.1}
        async with running(**limits) as server:
            for start in range(0, num_streams, _AT_ONCE):
                await asyncio.gather(*(one(server) for _ in range(min(_AT_ONCE, num_streams - start))))
                assert (await server.get()).body == b"hello"

    with caplog.at_level(logging.ERROR):
        run(test())
    assert not caplog.records
    assert statuses >= {200, 400, 404, 408, 431}
