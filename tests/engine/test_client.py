"""Requests of the client to a real engine process, which says what a script says: queues, ends, limits."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import uvloop

from pelton.engine.client import DepartureRate
from pelton.engine.messages import AddRequest, EngineStats
from pelton.engine.request import Progress
from pelton.engine.stream import EngineStream
from pelton.errors import (
    EngineDeadError,
    QueueFullError,
    QueueTimeoutError,
    RequestError,
)
from pelton.sampling_params import SamplingParams
from tests.engine.scripted_client import PROMPT, TOKENS, Client, read, read_tokens, say, until
from tests.scripted import END, run, write_script


@pytest.mark.parametrize("run_on", [asyncio.run, uvloop.run])
def test_a_request_is_answered(tmp_path: Path, run_on: Callable[[Any], Any]) -> None:
    async def work() -> None:
        async with Client(say(tmp_path)) as client:
            assert client.state == "ready"
            assert await read(client.ask("a")) == ([[*TOKENS, END]], ["stop"])
            assert client.num_open == client.num_waiting == 0
            assert client.silence_s == 0.0

    run_on(work())


def test_two_hundred_streams_get_exactly_their_tokens(tmp_path: Path) -> None:
    async def work() -> None:
        async with Client(say(tmp_path), max_queue=200) as client:
            lengths = [1 + number * 7 % len(TOKENS) for number in range(200)]
            streams = [
                client.ask(str(number), SamplingParams(max_tokens=length)) for number, length in enumerate(lengths)
            ]
            answers = await asyncio.gather(*map(read, streams))
            assert [tokens for tokens, _ in answers] == [[TOKENS[:length]] for length in lengths]
            assert {reason for _, reasons in answers for reason in reasons} == {"length"}

    run(work())


def test_closing_a_stream_in_the_middle_frees_what_it_held(tmp_path: Path) -> None:
    async def work() -> None:
        async with Client(say(tmp_path, delay_s=0.005)) as client:
            streams = [client.ask(str(number), SamplingParams(max_tokens=30)) for number in range(20)]
            await read_tokens(streams[0], 3)
            for stream in streams[1:]:
                stream.close()
            await until(lambda: client.stats.num_running == 1 and client.stats.num_waiting == 0)
            streams[0].close()
            await until(lambda: client.stats.num_running == 0)
            assert client.stats.kv_cache_usage == 0.0
            assert await read(client.ask("after")) == ([[*TOKENS, END]], ["stop"])

    run(work())


def test_readers_that_leave_at_random_leave_nothing(tmp_path: Path, case_count: Callable[[int, int], int]) -> None:
    num_readers, draw = case_count(300, 10_000), random.Random(2)

    async def read_some(client: Client, free: asyncio.Semaphore, number: int) -> None:
        async with free:
            sampling = SamplingParams(n=draw.randrange(1, 4), max_tokens=draw.randrange(1, 60), ignore_eos=True)
            stream = client.ask(str(number), sampling)
            for _ in range(draw.randrange(6)):
                await asyncio.sleep(0)
            for _ in range(draw.randrange(10)):
                if await anext(stream, None) is None:
                    break
            stream.close()

    async def work() -> None:
        async with Client(say(tmp_path)) as client:
            free = asyncio.Semaphore(40)
            await asyncio.gather(*(read_some(client, free, number) for number in range(num_readers)))
            assert client.num_open == client.num_waiting == 0
            async with asyncio.timeout(5):
                await until(lambda: client.stats.num_running == client.stats.num_waiting == 0)
            assert client.stats.kv_cache_usage == 0.0
            assert await read(client.ask("after")) == ([[*TOKENS, END]], ["stop"])

    run(work(), timeout_s=case_count(60, 1000))


def test_an_abort_ends_the_stream_with_its_reason(tmp_path: Path) -> None:
    async def work() -> None:
        async with Client(say(tmp_path, delay_s=0.005)) as client:
            stream = client.ask("a", SamplingParams(n=2, max_tokens=30))
            said = await read_tokens(stream, 1)
            assert client.abort("a")
            assert not client.abort("a")
            tokens, reasons = await read(stream)
            assert reasons == ["abort", "abort"]
            assert tokens[0] == TOKENS[len(said) : len(said) + len(tokens[0])]
            await until(lambda: client.stats.num_running == 0)

    run(work())


def test_a_choice_can_be_ended_alone(tmp_path: Path) -> None:
    async def work() -> None:
        async with Client(say(tmp_path, delay_s=0.005)) as client:
            stream = client.ask("a", SamplingParams(n=2, max_tokens=10))
            await anext(stream)
            client.end_choice(stream, 0)
            rest = [progress async for progress in stream]
            assert {progress.choice for progress in rest if progress.finish_reason} == {1}
            await until(lambda: client.stats.num_running == 0)

    run(work())


def test_a_client_that_reads_late_gets_all_in_one_piece(tmp_path: Path) -> None:
    sampling = SamplingParams(max_tokens=20, logprobs=2, prompt_logprobs=0)

    async def work() -> None:
        async with Client(say(tmp_path)) as client:
            stream = client.ask("never read", sampling)
            assert (await read(client.ask("read", sampling)))[0] == [TOKENS[:20]]
            await until(lambda: client.num_open == 0)
            progress = await anext(stream)
            assert progress.token_ids == TOKENS[:20]
            assert progress.finish_reason == "length"
            assert [entry.token_ids[0] for entry in progress.logprobs or []] == TOKENS[:20]
            assert [entry.token_ids[0] for entry in progress.prompt_logprobs or []] == PROMPT[1:]
            assert [rest async for rest in stream] == []

    run(work())


@pytest.mark.parametrize(
    "wrong",
    [
        {"priority": "high"},
        {"priority": 10**30},
        {"cache_salt": 5},
        {"cache_salt": "\ud800"},
        {"request_id": ["a"]},
        {"sampling": SamplingParams(stop_token_ids=(True,))},
        {"sampling": SamplingParams(stop="\ud800")},
    ],
    ids=str,
)
def test_a_request_that_the_engine_could_not_read_is_refused_and_harms_nobody(
    tmp_path: Path, wrong: dict[str, Any]
) -> None:
    async def work() -> None:
        async with Client(say(tmp_path)) as client:
            running = client.ask("running")
            arguments = {"request_id": "wrong", "sampling": SamplingParams(), **wrong}
            with pytest.raises(RequestError, match="can't be told to the engine"):
                client.submit(AddRequest(prompt_token_ids=PROMPT, seed=1, **arguments))
            assert await read(running) == ([[*TOKENS, END]], ["stop"])
            assert (client.num_open, client.num_restarts) == (0, 0)

    run(work())


def test_the_queue_has_a_bound(tmp_path: Path) -> None:
    async def work() -> None:
        async with Client(say(tmp_path, fault="stall"), max_queue=3, stop_timeout_s=0.01) as client:
            for number in range(8 + 3):  # as many slots, and the queue
                client.ask(str(number))
            with pytest.raises(QueueFullError) as caught:
                client.ask("one more")
            assert 1.0 <= caught.value.retry_after_s <= 60.0
            assert client.num_open == 11
            client.abort("10")
            client.ask("one more")

    run(work())


def test_waiting_has_a_deadline(tmp_path: Path) -> None:
    async def work() -> None:
        engine = write_script(tmp_path, [{"tokens": TOKENS, "fault": "stall"}], max_num_seqs=1)
        async with Client(engine, queue_timeout_s=0.05, stop_timeout_s=0.01) as client:
            running = client.ask("running")
            waiting = client.ask("waiting")
            with pytest.raises(QueueTimeoutError, match=r"`0\.05` seconds"):
                await anext(waiting)
            assert client.num_open == 1
            assert running.has_started

    run(work())


def test_departures_tell_when_to_try_again() -> None:
    rate = DepartureRate()
    assert rate.seconds_for(1, 0.0) is None
    for second in range(10):
        rate.note(float(second))
    assert rate.seconds_for(5, 10.0) == 5.0
    assert rate.seconds_for(5, 100.0) == 50.0  # none has left since


def test_an_engine_that_does_not_read_is_not_written_to_without_bound(tmp_path: Path) -> None:
    async def work() -> None:
        async with Client(say(tmp_path), stop_timeout_s=0.01) as client:
            os.kill(client.pid or 0, signal.SIGSTOP)
            for number in range(3000):
                prompt = [5 + number % 400] * 500
                client.submit(AddRequest(str(number), prompt, SamplingParams(), 1)).close()
            process = client._supervisor._process
            assert process is not None
            assert process._transport is not None
            assert process._transport.get_write_buffer_size() < 200_000
            last = client.ask("last")
            os.kill(client.pid or 0, signal.SIGCONT)
            assert await read(last) == ([[*TOKENS, END]], ["stop"])

    run(work())


def test_a_request_too_large_for_a_frame_fails_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def work() -> None:
        async with Client(say(tmp_path)) as client:
            monkeypatch.setattr("pelton.engine.channel.MAX_FRAME_BYTES", 1000)
            large = client.submit(AddRequest("large", [5] * 1000, SamplingParams(), 1))
            assert await read(client.ask("a")) == ([[*TOKENS, END]], ["stop"])
            with pytest.raises(EngineDeadError, match="a frame holds `1000`"):
                await anext(large)
            assert client.num_open == 0

    run(work())


def test_an_id_can_be_used_again_but_not_twice(tmp_path: Path) -> None:
    async def work() -> None:
        async with Client(say(tmp_path)) as client:
            first = client.ask("a")
            with pytest.raises(RequestError, match="`a` already"):
                client.ask("a")
            await read(first)
            await read(client.ask("a"))

    run(work())


def test_every_step_is_told(tmp_path: Path) -> None:
    steps: list[EngineStats] = []

    async def work() -> None:
        async with Client(say(tmp_path), on_stats=steps.append) as client:
            await read(client.ask("a"))

    run(work())
    assert [stats.num_steps_total for stats in steps] == list(range(1, len(TOKENS) + 2))


def test_progress_of_strangers_is_ignored() -> None:
    stream = EngineStream(AddRequest("a", PROMPT, SamplingParams(n=2), 1), lambda _: None)
    stream.take(Progress("a", 0, [1], finish_reason="length"))
    stream.take(Progress("a", 0, [2]))  # of the process before, or from after the end
    assert stream.num_open == 1
    assert run(read_tokens(stream, 1)) == [1]
