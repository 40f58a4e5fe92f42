"""An EngineClient with a real engine process behind it, which says what a script says."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pelton.engine.client import EngineClient
from pelton.engine.messages import AddRequest
from pelton.engine.stream import EngineStream
from pelton.engine.supervisor import RestartPolicy
from pelton.sampling_params import SamplingParams
from tests.scripted import END, settings_for, write_script

TOKENS = list(range(100, 140))

PROMPT = [50, 51, 52]

QUICK = RestartPolicy(first_delay_s=0.001)


class Client(EngineClient):
    """An EngineClient that is ready at the start of a `with` and gone at its end."""

    def __init__(self, engine: str, **arguments: Any) -> None:
        super().__init__(settings_for(engine).for_engine(), **{"restarts": QUICK, **arguments})

    async def __aenter__(self) -> Client:
        self.start()
        await self.wait_ready()
        self.set_end_tokens([END])
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def ask(self, request_id: str, sampling: SamplingParams | None = None) -> EngineStream:
        sampling = sampling or SamplingParams(max_tokens=100)
        return self.submit(AddRequest(request_id, PROMPT, sampling, 1))


async def read(stream: EngineStream) -> tuple[list[list[int]], list[str | None]]:
    """(tokens, finish reason) of each choice."""
    tokens: list[list[int]] = [[] for _ in range(stream.request.sampling.n)]
    reasons: list[str | None] = [None] * len(tokens)
    async for progress in stream:
        assert reasons[progress.choice] is None, "something came after the end"
        tokens[progress.choice] += progress.token_ids
        reasons[progress.choice] = progress.finish_reason
    stream.close()
    return tokens, reasons


async def read_tokens(stream: EngineStream, count: int) -> list[int]:
    """The first tokens, at least `count` of them."""
    said: list[int] = []
    while len(said) < count:
        said += (await anext(stream)).token_ids
    return said


async def until(is_it: Callable[[], object]) -> None:
    while not is_it():
        await asyncio.sleep(0.002)


def say(tmp_path: Path, **line: Any) -> str:
    return write_script(tmp_path, [{"tokens": TOKENS, **line}])
