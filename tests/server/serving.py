"""A server in this process on a free port of the loopback address, a model without an engine, clients of raw bytes."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import uvloop
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from pelton.async_llm import AsyncLLM
from pelton.config import ServerSettings
from pelton.engine.messages import EngineStats
from pelton.engine.request import RequestTimes
from pelton.errors import PeltonError
from pelton.outputs import CompletionOutput, RequestOutput
from pelton.server.app import Application, Route
from pelton.server.auth import make_guard
from pelton.server.context import ServerContext
from pelton.server.lifecycle import HttpServer, listen
from pelton.server.metrics import Metrics

# Of a loaded machine; nothing that passes waits for it.
PATIENCE_S = 30.0


@dataclass
class FakeLLM:
    """A model that says as many tokens as it is asked for, each when it is let.

    num_open: generations that have begun and not ended. gate: cleared, tokens wait for it. loaded: cleared, so does
    `wait_ready`, which then raises load_error if there is one. death: what `wait_end` waits for.
    """

    status: str = "ready"
    silence_s: float = 0.0
    num_restarts: int = 0
    num_stalls: int = 0
    num_cache_blocks: int | None = 1000
    stats: EngineStats = field(default_factory=EngineStats)
    num_open: int = 0
    num_begun: int = 0
    gate: asyncio.Event = field(default_factory=asyncio.Event)
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    loaded: asyncio.Event = field(default_factory=asyncio.Event)
    failure: Exception | None = None
    load_error: Exception | None = None
    death: asyncio.Future[PeltonError] | None = None
    is_closed: bool = False
    salts: list[str] = field(default_factory=list)
    text: Any = field(default_factory=lambda: SimpleNamespace(tokenizer=SimpleNamespace(decode=_decode)))

    def __post_init__(self) -> None:
        self.gate.set()
        self.loaded.set()

    async def wait_ready(self) -> None:
        await self.loaded.wait()
        if self.load_error is not None:
            raise self.load_error

    async def wait_end(self) -> PeltonError:
        self.death = asyncio.get_running_loop().create_future()
        self.changed.set()
        return await self.death

    async def close(self) -> None:
        self.is_closed = True

    async def generate(
        self, prompt: Any, sampling_params: Any = None, *, cache_salt: str = "", **_: Any
    ) -> AsyncGenerator[RequestOutput, None]:
        self.num_open += 1
        self.num_begun += 1
        self.salts.append(cache_salt)
        self.changed.set()
        try:
            num_tokens = sampling_params.max_tokens if sampling_params is not None else 3
            for index in range(num_tokens):
                await self.gate.wait()
                if self.failure is not None:
                    raise self.failure
                is_last = index == num_tokens - 1
                reason = "length" if is_last else None
                now_s = time.monotonic()
                times = RequestTimes(now_s, now_s, now_s, now_s) if is_last else None
                choice = CompletionOutput(0, "a", [7], finish_reason=cast(Any, reason), times=times)
                yield RequestOutput("r", None, [1, 2], None, [choice], is_last, num_cached_tokens=1)
        finally:
            self.num_open -= 1
            self.changed.set()

    async def until(self, is_so: Callable[[], bool]) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while not is_so():
                self.changed.clear()
                await self.changed.wait()


def _decode(token_ids: Sequence[int], *, skip_special: bool) -> str:
    return f"text of {list(token_ids)}"


async def _size(request: Request, context: ServerContext) -> Response:
    return Response(str(len(await request.body())))


async def _hello(request: Request, context: ServerContext) -> Response:
    return Response("hello")


async def _stream(request: Request, context: ServerContext) -> Response:
    """One line per output of the model; an error is a line too."""

    async def lines() -> AsyncIterator[bytes]:
        outputs = context.generate(request, [1, 2])
        try:
            async for output in outputs:
                yield output.outputs[0].text.encode() + b"\n"
        except Exception as error:  # noqa: BLE001 (the test reads it)
            yield f"error: {error}\n".encode()
        finally:
            await outputs.aclose()

    return StreamingResponse(lines())


async def _whole(request: Request, context: ServerContext) -> Response:
    parts = [output.outputs[0].text async for output in context.generate(request, [1, 2])]
    return Response("".join(parts))


async def _flood(request: Request, context: ServerContext) -> Response:
    """More than any buffer holds."""

    async def blocks() -> AsyncIterator[bytes]:
        for _ in range(4096):
            yield bytes(64 << 10)

    return StreamingResponse(blocks())


ROUTES = [
    Route(("GET",), "/hello", _hello),
    Route(("GET",), "/open", _hello, is_open=True, needs_model=False),
    Route(("POST",), "/size", _size),
    Route(("POST",), "/small", _size, max_body_bytes=100),
    Route(("POST",), "/stream", _stream),
    Route(("POST",), "/whole", _whole),
    Route(("GET",), "/flood", _flood),
    Route(("GET", "POST"), "/models/{name:path}", _hello),
]


@dataclass
class Running:
    server: HttpServer
    context: ServerContext
    llm: FakeLLM
    port: int

    async def connect(self) -> Client:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        return Client(reader, writer)

    async def ask(self, data: bytes) -> list[Answer]:
        """All answers to these bytes, until the server closes the connection."""
        async with await self.connect() as client:
            await client.send(data)
            return await client.answers()

    async def get(self, path: str = "/hello", *headers: str) -> Answer:
        [answer] = await self.ask(request("GET", path, "Connection: close", *headers))
        return answer

    async def post(self, path: str, body: bytes = b"", *headers: str) -> Answer:
        length = f"Content-Length: {len(body)}"
        [answer] = await self.ask(request("POST", path, "Connection: close", length, *headers) + body)
        return answer


@dataclass(frozen=True)
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def code(self) -> str:
        """Of an error, whose shape is checked with it."""
        error = json.loads(self.body)["error"]
        assert set(error) == {"message", "type", "param", "code"}
        assert self.headers["content-type"] == "application/json"
        assert int(self.headers["content-length"]) == len(self.body) < 4096
        return str(error["code"])


class Client:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.writer.transport.abort()

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def answer(self) -> Answer | None:
        """The next one with its whole body; None if the connection ends before it begins."""
        async with asyncio.timeout(PATIENCE_S):
            try:
                head = await self.reader.readuntil(b"\r\n\r\n")
            except asyncio.IncompleteReadError as end:
                if end.partial:
                    raise
                return None
            status_line, *lines = head.decode("latin-1").rstrip("\r\n").split("\r\n")
            headers = dict(line.lower().split(": ", 1) for line in lines)
            return Answer(int(status_line.split()[1]), headers, await self._body(headers))

    async def answers(self) -> list[Answer]:
        found = []
        while (answer := await self.answer()) is not None:
            found.append(answer)
        return found

    async def is_closed(self) -> bool:
        """Waits for the server to end the connection without a word."""
        async with asyncio.timeout(PATIENCE_S):
            return await self.reader.read() == b""

    async def _body(self, headers: dict[str, str]) -> bytes:
        if headers.get("transfer-encoding") == "chunked":
            body = b""
            while (size := int(await self.reader.readline(), 16)) > 0:
                body += await self.reader.readexactly(size)
                await self.reader.readexactly(2)
            await self.reader.readexactly(2)
            return body
        return await self.reader.readexactly(int(headers.get("content-length", "0")))


def request(method: str, path: str, *headers: str, version: str = "1.1") -> bytes:
    lines = [f"{method} {path} HTTP/{version}", "Host: localhost", *headers, "", ""]
    return "\r\n".join(lines).encode("latin-1")


@asynccontextmanager
async def running(
    routes: Sequence[Route] = tuple(ROUTES), *, keys: Sequence[str] = (), llm: FakeLLM | None = None, **settings: Any
) -> AsyncIterator[Running]:
    """settings: of ServerSettings; values of their own types."""
    llm = llm or FakeLLM()
    chosen = ServerSettings(**settings)
    context = ServerContext(cast(AsyncLLM, llm), chosen, ("model",), Metrics("model"))
    server = HttpServer(Application(routes, context, make_guard(chosen, keys)))
    listener = listen("127.0.0.1", 0)
    await server.start(listener)
    try:
        yield Running(server, context, llm, listener.getsockname()[1])
    finally:
        await server.close()
    assert context.traffic.num_connections == 0
    assert context.traffic.num_refusing == 0
    assert context.traffic.body_bytes == 0
    assert llm.num_open == 0


def run(test: Coroutine[Any, Any, None]) -> None:
    """On the event loop that the server has in earnest."""
    uvloop.run(test)
