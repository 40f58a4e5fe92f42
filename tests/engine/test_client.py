"""The client and a real engine process behind it, which says what a script says, and dies when it is told to."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import uvloop

from pelton.engine.client import DepartureRate, EngineClient
from pelton.engine.messages import AddRequest, EngineStats, Resume, StepFailed, StepReport, ToEngine
from pelton.engine.request import Progress
from pelton.engine.stream import EngineStream
from pelton.engine.supervisor import RestartPolicy
from pelton.errors import (
    EngineDeadError,
    PeltonError,
    QuarantineError,
    QueueFullError,
    QueueTimeoutError,
    RequestError,
    UsageError,
)
from pelton.sampling_params import SamplingParams
from tests.scripted import END, children, open_files, run, settings_for, write_script

TOKENS = list(range(100, 140))
PROMPT = [50, 51, 52]
ROOT = Path(__file__).resolve().parents[2]
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


def test_a_stall_can_be_seen(tmp_path: Path) -> None:
    async def work() -> None:
        async with Client(say(tmp_path, fault="stall", fault_after=2), stop_timeout_s=0.01) as client:
            stream = client.ask("a")
            await read_tokens(stream, 2)
            await until(lambda: client.silence_s > 0.1)
            stream.close()
            assert client.silence_s == 0.0

    run(work())


@pytest.mark.parametrize("sampling", [SamplingParams(max_tokens=40), SamplingParams(n=3, max_tokens=9, logprobs=1)])
def test_streams_go_on_after_a_crash_at_any_token(
    tmp_path: Path, sampling: SamplingParams, case_count: Callable[[int, int], int]
) -> None:
    async def work() -> None:
        policy = RestartPolicy(max_deaths=case_count(4, 40), first_delay_s=0.001, max_delay_s=0.001)
        async with Client(say(tmp_path, delay_s=0.001), restarts=policy) as client:
            for number in range(case_count(4, 40)):
                stream = client.ask(str(number), sampling)
                pieces = [await anext(stream) for _ in range(number % 7)]
                await until(lambda: client.pid is not None)
                os.kill(client.pid or 0, signal.SIGKILL)
                pieces += [progress async for progress in stream]
                for choice in range(sampling.n):
                    said = [token for piece in pieces if piece.choice == choice for token in piece.token_ids]
                    assert said == TOKENS[: sampling.max_tokens]
                told = sum(len(piece.logprobs or []) for piece in pieces)
                assert told == (0 if sampling.logprobs is None else sampling.n * len(TOKENS[: sampling.max_tokens]))
            assert client.num_restarts == case_count(4, 40)

    run(work())


def test_a_choice_that_had_ended_stays_ended_after_a_crash(tmp_path: Path) -> None:
    async def work() -> None:
        async with Client(say(tmp_path, delay_s=0.003)) as client:
            stream = client.ask("a", SamplingParams(n=2, max_tokens=30))
            pieces = [await anext(stream) for _ in range(4)]
            client.end_choice(stream, 1)
            os.kill(client.pid or 0, signal.SIGKILL)
            rest = [progress async for progress in stream]
            assert {piece.choice for piece in rest if piece.token_ids and piece not in pieces} == {0}
            assert rest[-1].finish_reason == "length"

    run(work())


def test_prompt_log_probabilities_are_told_once_across_a_crash(tmp_path: Path) -> None:
    prompt = [3 + number % 500 for number in range(400)]

    async def work() -> None:
        engine = write_script(
            tmp_path, [{"tokens": TOKENS, "delay_s": 0.02}], max_num_batched_tokens=64, max_num_seqs=8
        )
        async with Client(engine) as client:
            sampling = SamplingParams(max_tokens=5, prompt_logprobs=1)
            stream = client.submit(AddRequest("a", prompt, sampling, 1))
            pieces = [await anext(stream), await anext(stream)]
            assert not any(piece.token_ids for piece in pieces)
            os.kill(client.pid or 0, signal.SIGKILL)
            pieces += [progress async for progress in stream]
            told = [entry.token_ids[0] for piece in pieces for entry in piece.prompt_logprobs or []]
            assert told == prompt[1:]
            assert [token for piece in pieces for token in piece.token_ids] == TOKENS[:5]

    run(work())


@pytest.mark.parametrize(("fault", "what"), [("crash", "the engine process ended"), ("raise", "a step failed")])
def test_a_request_that_breaks_the_engine_is_failed_and_nobody_else_is(tmp_path: Path, fault: str, what: str) -> None:
    poison = [60, 61, 62]  # the bytes "Z[\\"

    async def work() -> None:
        lines = [{"tokens": TOKENS, "prompt": "[\\", "fault": fault}, {"tokens": TOKENS, "delay_s": 0.001}]
        async with Client(write_script(tmp_path, lines)) as client:
            good = [client.ask(str(number)) for number in range(5)]
            bad = client.submit(AddRequest("bad", poison, SamplingParams(max_tokens=100), 1))
            good += [client.ask(str(number)) for number in range(5, 12)]
            answers = await asyncio.gather(*map(read, good))
            assert answers == [([[*TOKENS, END]], ["stop"])] * 12
            with pytest.raises(QuarantineError, match=f"{what} again and again while this request ran"):
                await anext(bad)
            with pytest.raises(QuarantineError, match=r"has broken the engine; it is refused for `\d+` seconds"):
                client.submit(AddRequest("again", poison, SamplingParams(max_tokens=100), 2))
            assert client.num_restarts == (3 if fault == "crash" else 0)
            assert await read(client.ask("after")) == ([[*TOKENS, END]], ["stop"])

    run(work())


def test_streams_survive_kills_at_random(tmp_path: Path, case_count: Callable[[int, int], int]) -> None:
    num_kills, draw = case_count(5, 200), random.Random(1)
    lines = [{"tokens": TOKENS, "delay_s": 0.002}]

    async def kill(client: Client) -> None:
        for _ in range(num_kills):
            await until(lambda: client.state == "ready")
            num_steps = draw.randrange(20, 60)  # a request of 80 tokens sees four deaths at most
            await until(lambda: client.stats.num_steps_total > num_steps)  # noqa: B023 (it is awaited here)
            os.kill(client.pid or 0, signal.SIGKILL)
            await until(lambda: client.state != "ready")

    async def ask_on(client: Client, killer: asyncio.Task[None], name: int) -> int:
        num_answers = 0
        while not killer.done():
            sampling = SamplingParams(n=draw.randrange(1, 3), max_tokens=draw.randrange(1, 80), ignore_eos=True)
            tokens, reasons = await read(client.ask(f"{name}-{num_answers}", sampling))
            expected = (TOKENS * 2)[: sampling.max_tokens]
            assert tokens == [expected] * sampling.n
            assert set(reasons) == {"length"}
            num_answers += 1
        return num_answers

    async def work() -> None:
        policy = RestartPolicy(max_deaths=num_kills, first_delay_s=0.001, max_delay_s=0.001)
        async with Client(write_script(tmp_path, lines), restarts=policy) as client:
            killer = asyncio.create_task(kill(client))
            num_answers = await asyncio.gather(*(ask_on(client, killer, name) for name in range(12)))
            await killer
            assert min(num_answers) > 0
            assert client.num_replayed > 0

    run(work(), timeout_s=case_count(60, 3000))


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


class FakeSupervisor:
    """An engine that hears everything and says what the test makes it say."""

    is_writable = True
    ready = None
    state = "ready"

    def __init__(self) -> None:
        self.heard: list[ToEngine] = []

    def send(self, message: ToEngine) -> None:
        self.heard.append(message)

    def check_alive(self) -> None:
        return

    def take_added(self) -> list[str]:
        heard, self.heard = self.heard, []
        return [message.request_id for message in heard if isinstance(message, AddRequest)]


@pytest.mark.parametrize("end", ["advance", "finish", "close", "break"])
def test_suspects_are_tried_one_by_one_and_the_others_wait_for_them(end: str) -> None:
    async def work() -> None:
        client = EngineClient({})
        engine = FakeSupervisor()
        client._supervisor = engine  # type: ignore[assignment]
        streams = {name: client.submit(AddRequest(name, PROMPT, SamplingParams(), 1)) for name in "abc"}
        assert engine.take_added() == ["a", "b", "c"]

        def say(*progress: Progress, started: list[str] | None = None) -> None:
            client.on_message(StepReport(list(progress), EngineStats(), started or []))

        say(started=["a", "b"])
        client.on_message(StepFailed("one"))
        assert engine.take_added() == ["a", "b", "c"]
        say(started=["a", "b"])
        client.on_message(StepFailed("two"))
        assert engine.heard[0] == Resume()
        assert engine.take_added() == ["a"]
        client.submit(AddRequest("d", PROMPT, SamplingParams(), 1))
        assert engine.take_added() == []
        say(started=["a"])
        if end == "advance":
            say(Progress("a", 0, [5]))
        elif end == "finish":
            say(Progress("a", 0, [], finish_reason="error"))
        elif end == "close":
            streams["a"].close()
        else:
            client.on_message(StepFailed("three"))
            with pytest.raises(QuarantineError, match="at last: three"):
                await anext(streams["a"])
        await asyncio.sleep(0)
        assert engine.take_added() == ["b"]
        say(Progress("b", 0, [5]), started=["b"])
        assert engine.take_added() == ["c", "d"]
        client.on_end(EngineDeadError("over"))

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


def test_a_slot_that_fails_ends_its_choice_alone(tmp_path: Path) -> None:
    async def work() -> None:
        lines = [{"tokens": TOKENS, "fault": "error", "fault_after": 3}, {"tokens": TOKENS}]
        async with Client(write_script(tmp_path, lines)) as client:
            bad, good = await asyncio.gather(read(client.ask("bad")), read(client.ask("good")))
            assert bad == ([TOKENS[:3]], ["error"])
            assert good == ([[*TOKENS, END]], ["stop"])

    run(work())


def test_an_engine_that_dies_again_and_again_stays_dead(tmp_path: Path) -> None:
    async def work() -> None:
        policy = RestartPolicy(max_deaths=2, first_delay_s=0.001)
        async with Client(say(tmp_path), restarts=policy) as client:
            for _ in range(3):
                await until(lambda: client.state == "ready" and client.pid)
                os.kill(client.pid or 0, signal.SIGKILL)
                await until(lambda: client.state != "ready")
            await until(lambda: client.state == "dead")
            with pytest.raises(EngineDeadError, match=r"died `3` times in .* at last: it was killed by SIGKILL"):
                client.ask("a")

    run(work())


def test_delays_between_restarts_grow_to_a_bound() -> None:
    policy = RestartPolicy(first_delay_s=0.1, max_delay_s=5.0)
    assert [policy.delay_s(count) for count in (1, 2, 3, 10, 2000)] == [0.1, 0.2, 0.4, 5.0, 5.0]


def test_requests_given_while_it_restarts_are_served(tmp_path: Path) -> None:
    async def work() -> None:
        async with Client(say(tmp_path)) as client:
            os.kill(client.pid or 0, signal.SIGKILL)
            await until(lambda: client.state == "restarting")
            assert await read(client.ask("a")) == ([[*TOKENS, END]], ["stop"])
            assert (client.num_restarts, client.num_replayed) == (1, 0)

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
from tests.engine.test_client import Client, until

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


def test_progress_of_strangers_is_ignored() -> None:
    stream = EngineStream(AddRequest("a", PROMPT, SamplingParams(n=2), 1), lambda _: None)
    stream.take(Progress("a", 0, [1], finish_reason="length"))
    stream.take(Progress("a", 0, [2]))  # of the process before, or from after the end
    assert stream.num_open == 1
    assert run(read_tokens(stream, 1)) == [1]
