"""From the first signal to the end: what still runs, what is no longer begun, and who is told."""

from __future__ import annotations

import asyncio
import resource
import signal
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from pelton.async_llm import AsyncLLM
from pelton.config import ServerSettings
from pelton.errors import CheckpointError, EngineDeadError, UsageError
from pelton.server.app import Application
from pelton.server.context import ServerContext
from pelton.server.lifecycle import HttpServer, listen, serve
from tests.server.serving import PATIENCE_S, ROUTES, Client, FakeLLM, request, run


@dataclass
class Served:
    """A server under `serve`, which is `running` until it is told to stop."""

    llm: FakeLLM
    context: ServerContext
    port: int
    running: asyncio.Future[None]
    clients: list[Client] = field(default_factory=list)

    async def connect(self) -> Client:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        self.clients.append(Client(reader, writer))
        return self.clients[-1]

    async def begin(self, path: str) -> Client:
        """A request that the model has taken and that waits for its tokens."""
        client = await self.connect()
        num_begun = self.llm.num_begun
        await client.send(request("POST", path))
        await self.llm.until(lambda: self.llm.num_begun > num_begun)
        return client

    async def is_refusing(self) -> None:
        """Returns once connections are no longer taken."""
        async with asyncio.timeout(PATIENCE_S):
            while True:
                try:
                    (await self.connect()).writer.transport.abort()
                except ConnectionRefusedError:
                    return
                except ConnectionResetError:
                    continue  # it was waiting to be taken when the listening ended

    async def end(self) -> None:
        async with asyncio.timeout(PATIENCE_S):
            await self.running
        assert self.llm.is_closed
        assert self.llm.num_open == 0
        assert self.context.traffic.num_connections == 0


@asynccontextmanager
async def served(llm: FakeLLM | None = None, **settings: Any) -> AsyncIterator[Served]:
    llm = llm or FakeLLM()
    context = ServerContext(cast(AsyncLLM, llm), ServerSettings(**settings), ("model",))
    listener = listen("127.0.0.1", 0)
    port = listener.getsockname()[1]

    async def announce() -> None:
        await asyncio.Event().wait()

    server = HttpServer(Application(ROUTES, context))
    running = asyncio.ensure_future(serve(server, listener, cast(AsyncLLM, llm), announce))
    one = Served(llm, context, port, running)
    async with await one.connect() as client:
        await client.send(request("GET", "/open"))
        assert (await client.answer()) is not None
    try:
        yield one
    finally:
        for client in one.clients:
            client.writer.transport.abort()
        await asyncio.gather(running, return_exceptions=True)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_what_runs_comes_to_its_end_and_nothing_new_is_begun(number: signal.Signals) -> None:
    async def test() -> None:
        async with served() as server:
            server.llm.gate.clear()
            streaming, waiting, idle = (
                await server.begin("/stream"),
                await server.begin("/whole"),
                await server.connect(),
            )
            signal.raise_signal(number)
            await server.is_refusing()
            assert await idle.is_closed()
            assert not server.running.done()
            server.llm.gate.set()
            answers = await asyncio.gather(streaming.answers(), waiting.answers())
            assert [[answer.body for answer in one] for one in answers] == [[b"a\na\na\n"], [b"aaa"]]
            await server.end()

    run(test())


def test_what_is_not_done_in_time_is_ended_with_an_error() -> None:
    async def test() -> None:
        async with served(drain_timeout_s=0.05) as server:
            server.llm.gate.clear()
            streaming, waiting = await server.begin("/stream"), await server.begin("/whole")
            signal.raise_signal(signal.SIGTERM)
            [streamed] = await streaming.answers()
            assert streamed.body == b"error: the server is shutting down\n"
            [whole] = await waiting.answers()
            assert (whole.status, whole.code) == (503, "shutting_down")
            await server.end()

    run(test())


def test_a_second_signal_ends_at_once() -> None:
    async def test() -> None:
        async with served(drain_timeout_s=3600) as server:
            server.llm.gate.clear()
            streaming = await server.begin("/stream")
            signal.raise_signal(signal.SIGTERM)
            await server.is_refusing()
            signal.raise_signal(signal.SIGINT)
            [streamed] = await streaming.answers()
            assert streamed.body == b"error: the server is shutting down\n"
            await server.end()

    run(test())


def test_a_client_that_does_not_read_delays_the_end_no_more_than_a_farewell() -> None:
    async def test() -> None:
        async with served(drain_timeout_s=0.05) as server:
            client = await server.connect()
            await client.send(request("GET", "/flood"))
            assert await client.reader.read(1)
            client.writer.transport.pause_reading()  # of 256 MiB
            signal.raise_signal(signal.SIGTERM)
            await server.is_refusing()
            signal.raise_signal(signal.SIGTERM)
            await server.end()

    run(test())


def test_a_model_that_can_not_be_loaded_ends_the_server() -> None:
    async def test() -> None:
        llm = FakeLLM("loading: reading weights", load_error=CheckpointError("`x.gguf` is truncated"))
        llm.loaded.clear()
        async with served(llm) as server:
            llm.loaded.set()
            with pytest.raises(CheckpointError):
                await server.running
            assert llm.is_closed
            with pytest.raises(ConnectionRefusedError):
                await server.connect()

    run(test())


def test_an_engine_that_has_died_for_good_ends_the_server() -> None:
    async def test() -> None:
        llm = FakeLLM()
        async with served(llm) as server:
            await llm.until(lambda: llm.death is not None)
            assert llm.death is not None
            llm.death.set_result(EngineDeadError("it has died `11` times"))
            with pytest.raises(EngineDeadError, match="`11` times"):
                await server.running
            assert llm.is_closed
            with pytest.raises(ConnectionRefusedError):
                await server.connect()

    run(test())


def test_a_signal_while_the_model_loads_ends_the_server() -> None:
    async def test() -> None:
        llm = FakeLLM("loading: reading weights")
        llm.loaded.clear()
        async with served(llm) as server:
            signal.raise_signal(signal.SIGINT)
            await server.end()

    run(test())


def test_answers_tell_the_date() -> None:
    async def test() -> None:
        async with served() as server:
            async with await server.connect() as client:
                await client.send(request("GET", "/hello"))
                answer = await client.answer()
                assert answer is not None
                assert answer.headers["date"].endswith("gmt")
            signal.raise_signal(signal.SIGTERM)

    run(test())


def test_as_many_files_are_allowed_as_connections_could_need(caplog: pytest.LogCaptureFixture) -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    soft, hard = 256, before[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

    async def test(max_connections: int) -> None:
        async with served(max_connections=max_connections):
            signal.raise_signal(signal.SIGTERM)

    try:
        run(test(300))
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] > 300
        assert not caplog.records
        if hard != resource.RLIM_INFINITY:
            run(test(hard))
            assert "lower it" in caplog.text
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_an_address_that_can_not_be_listened_on_is_told() -> None:
    with listen("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(UsageError, match=rf"`127.0.0.1:{port}` can't be listened on: address already in use"):
            listen("127.0.0.1", port)
    with pytest.raises(UsageError, match="is not an address"):
        listen("no such host", 0)
    with pytest.raises(UsageError, match="can't be listened on"):
        listen("192.0.2.1", 0)
    if socket.has_ipv6:
        listen("::1", 0).close()
