"""Clients that leave at any byte, before an engine process with a script: nothing of them stays."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from pelton.async_llm import AsyncLLM
from pelton.server import health
from pelton.server.app import Application
from pelton.server.context import ServerContext
from pelton.server.lifecycle import HttpServer, listen
from pelton.server.openai import ROUTES
from tests.scripted import settings_for, write_script
from tests.server.serving import PATIENCE_S, Client, request, run

_AT_ONCE = 24
_ANSWER_TOKENS = 40
_IDLE_AGAIN_S = 1.0  # what is promised; some milliseconds are usual


async def until_idle(llm: AsyncLLM, patience_s: float = PATIENCE_S) -> None:
    """Returns once nothing runs, waits, or holds a block."""
    async with asyncio.timeout(patience_s):
        while (stats := llm.stats).num_running or stats.num_waiting or llm.client.num_open or stats.kv_cache_usage:
            await asyncio.sleep(0.005)  # not every end is a report


@asynccontextmanager
async def scripted(tmp_path: Path) -> AsyncIterator[tuple[int, ServerContext]]:
    """A server with an engine process of 8 sequences that says 40 tokens, each after half a millisecond."""
    answer = {"tokens": list(range(40, 40 + _ANSWER_TOKENS)), "delay_s": 0.0005}
    settings = settings_for(write_script(tmp_path, [answer]), max_queue=1000)
    async with await AsyncLLM.start(settings) as llm:
        await llm.wait_ready()
        context = ServerContext(llm, settings.server, ("model",))
        server = HttpServer(Application([*ROUTES, *health.ROUTES], context))
        listener = listen("127.0.0.1", 0)
        await server.start(listener)
        try:
            yield listener.getsockname()[1], context
        finally:
            await server.close()


def completion(prompt: str, *, is_stream: bool, n: int = 1) -> bytes:
    body = json.dumps(
        {"model": "model", "prompt": prompt, "max_tokens": _ANSWER_TOKENS, "stream": is_stream, "n": n}
    ).encode()
    return request("POST", "/v1/completions", f"Content-Length: {len(body)}", "Content-Type: application/json") + body


async def connect(port: int) -> Client:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    return Client(reader, writer)


def test_clients_that_leave_at_any_byte_leave_nothing(tmp_path: Path, case_count: Callable[[int, int], int]) -> None:
    num_clients = case_count(400, 10_000)
    generator = random.Random(5)

    async def leave(port: int, data: bytes, num_sent: int, num_read: int) -> None:
        async with await connect(port) as client:
            await client.send(data[:num_sent])
            if num_sent == len(data):
                await client.reader.read(num_read)

    async def test() -> None:
        async with scripted(tmp_path) as (port, context):
            for start in range(0, num_clients, _AT_ONCE):
                leaving = []
                for _ in range(min(_AT_ONCE, num_clients - start)):
                    prompt = "word " * generator.randrange(1, 60)
                    data = completion(prompt, is_stream=generator.random() < 0.7, n=generator.choice((1, 1, 3)))
                    num_sent = len(data) if generator.random() < 0.8 else generator.randrange(len(data))
                    leaving.append(leave(port, data, num_sent, generator.choice((0, 1, 200, 1500))))
                await asyncio.gather(*leaving)
            await until_idle(context.llm, _IDLE_AGAIN_S)
            async with await connect(port) as client:
                await client.send(completion("still there", is_stream=False))
                answer = await client.answer()
                assert answer is not None
                assert json.loads(answer.body)["usage"]["completion_tokens"] == _ANSWER_TOKENS
            await until_idle(context.llm)
            await context.traffic.is_empty.wait()

    run(test())


def test_a_client_that_never_reads_its_stream_does_not_slow_another(tmp_path: Path) -> None:
    async def test() -> None:
        async with scripted(tmp_path) as (port, context):
            deaf = [await connect(port) for _ in range(4)]
            for client in deaf:
                client.writer.transport.pause_reading()
                await client.send(completion("never read", is_stream=True))
            async with await connect(port) as client:
                await client.send(completion("read", is_stream=True))
                answer = await client.answer()
                assert answer is not None
                assert answer.body.endswith(b"data: [DONE]\n\n")
            await until_idle(context.llm)
            for client in deaf:
                client.writer.transport.abort()

    run(test())
