"""The engine process from its start to its end, however that comes: nothing is left of it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pelton.engine.client import EngineClient
from pelton.engine.messages import AddRequest
from pelton.errors import (
    EngineDeadError,
    PeltonError,
    UsageError,
)
from pelton.sampling_params import SamplingParams
from tests.engine.scripted_client import PROMPT, QUICK, TOKENS, Client, read, read_tokens, say, until
from tests.scripted import END, children, open_files, run, settings_for

ROOT = Path(__file__).resolve().parents[2]


def test_a_process_that_cannot_be_started_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(executable: str | None, message: str) -> None:
        monkeypatch.setattr(sys, "executable", executable)
        client = EngineClient(settings_for(say(tmp_path)).for_engine())
        client.start()
        with pytest.raises(EngineDeadError, match=message):
            await client.wait_ready()
        await client.close()

    before = open_files()
    run(work("/nowhere/python", "can't be started: No such file"))
    run(work(None, "TypeError"))
    assert open_files() == before


@pytest.mark.parametrize(
    ("engine", "kind", "message"),
    [
        ("scripted:nowhere", UsageError, "can't be read"),
        ("native", PeltonError, "no-such-file"),
    ],
)
def test_a_start_that_fails_raises_what_it_was(engine: str, kind: type[PeltonError], message: str) -> None:
    async def work() -> None:
        settings = settings_for(engine, model="./no-such-file.gguf").for_engine()
        client = EngineClient(settings)
        client.start()
        with pytest.raises(kind, match=message) as caught:
            await client.wait_ready()
        assert isinstance(caught.value, PeltonError)
        assert client.state == "dead"
        with pytest.raises(kind):
            client.submit(AddRequest("a", PROMPT, SamplingParams(), 1))
        await client.close()

    run(work())


def test_a_process_that_dies_while_it_loads_is_not_started_again(tmp_path: Path) -> None:
    async def work() -> None:
        client = EngineClient(settings_for(say(tmp_path)).for_engine())
        client.start()
        await until(lambda: client.pid)
        os.kill(client.pid or 0, signal.SIGKILL)
        with pytest.raises(EngineDeadError, match="while it loaded: it was killed by SIGKILL"):
            await client.wait_ready()
        await client.close()

    run(work())


async def _just_started(client: EngineClient) -> None:
    return


async def _loading(client: EngineClient) -> None:
    await until(lambda: client.phase != "starting")


async def _ready(client: EngineClient) -> None:
    await client.wait_ready()


async def _computing(client: EngineClient) -> None:
    await client.wait_ready()
    stream = client.submit(AddRequest("a", PROMPT, SamplingParams(max_tokens=100), 1))
    await read_tokens(stream, 1)


async def _stalled(client: EngineClient) -> None:
    await _computing(client)
    os.kill(client.pid or 0, signal.SIGSTOP)


async def _restarting(client: EngineClient) -> None:
    await client.wait_ready()
    os.kill(client.pid or 0, signal.SIGKILL)
    await until(lambda: client.state == "restarting")


async def _restarted(client: EngineClient) -> None:
    await _restarting(client)
    await until(lambda: client.pid)


@pytest.mark.parametrize(
    "phase", [_just_started, _loading, _ready, _computing, _stalled, _restarting, _restarted], ids=lambda f: f.__name__
)
def test_closing_leaves_nothing(tmp_path: Path, phase: Callable[[EngineClient], Any]) -> None:
    async def work() -> None:
        before = children(), open_files()
        client = EngineClient(
            settings_for(say(tmp_path, delay_s=0.01)).for_engine(), stop_timeout_s=0.2, restarts=QUICK
        )
        client.start()
        await phase(client)
        await client.close()
        await client.close()
        assert client.state == "closed"
        assert (children(), open_files()) == before
        with pytest.raises(EngineDeadError, match="was closed"):
            client.submit(AddRequest("b", PROMPT, SamplingParams(), 1))

    run(work())


def test_closing_ends_open_streams_with_an_error(tmp_path: Path) -> None:
    async def work() -> None:
        async with Client(say(tmp_path, delay_s=0.01)) as client:
            stream = client.ask("a")
            await read_tokens(stream, 1)
        with pytest.raises(EngineDeadError, match="was closed"):
            async for _ in stream:
                pass

    run(work())


_CLIENT_THAT_VANISHES = """
import asyncio, os, sys
from tests.engine.scripted_client import Client, until

async def work():
    client = Client(sys.argv[1])
    await client.__aenter__()
    stream = client.ask("a")
    await until(lambda: stream.has_started)
    print(client.pid, flush=True)
    os._exit(0)

asyncio.run(work())
"""


@pytest.mark.parametrize("fault", [None, "stall"])
def test_the_process_ends_with_its_client(tmp_path: Path, fault: str | None) -> None:
    command = [sys.executable, "-c", _CLIENT_THAT_VANISHES, say(tmp_path, fault=fault, delay_s=0.01)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, cwd=ROOT, timeout=30)
    state = Path(f"/proc/{int(done.stdout)}/stat")

    def is_gone() -> bool:
        try:
            return state.read_text().rpartition(")")[2].split()[0] == "Z"  # dead; whoever inherited it has not looked
        except FileNotFoundError:
            return True

    run(until(is_gone))


def test_ctrl_c_does_not_reach_the_engine(tmp_path: Path) -> None:
    async def work() -> None:
        async with Client(say(tmp_path)) as client:
            for number in (signal.SIGINT, signal.SIGTERM):
                os.kill(client.pid or 0, number)
            assert await read(client.ask("a")) == ([[*TOKENS, END]], ["stop"])
            assert client.num_restarts == 0

    run(work())
