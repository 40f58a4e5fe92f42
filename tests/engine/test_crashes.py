"""An engine process that dies, stalls or breaks: its streams go on, and whose fault it was is found out."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from pelton.engine.client import EngineClient
from pelton.engine.messages import AddRequest, EngineStats, Resume, StepFailed, StepReport, ToEngine
from pelton.engine.request import Progress
from pelton.engine.supervisor import RestartPolicy
from pelton.errors import EngineDeadError, QuarantineError, UsageError
from pelton.sampling_params import SamplingParams
from tests.engine.scripted_client import PROMPT, TOKENS, Client, read, read_tokens, say, until
from tests.scripted import END, run, write_script


def test_a_stall_can_be_seen(tmp_path: Path) -> None:
    async def work() -> None:
        async with Client(say(tmp_path, fault="stall", fault_after=2), stop_timeout_s=0.01) as client:
            stream = client.ask("a")
            await read_tokens(stream, 2)
            await until(lambda: client.silence_s > 0.1)
            stream.close()
            assert client.silence_s == 0.0

    run(work())


def test_a_stalled_engine_is_started_again_and_its_streams_go_on(tmp_path: Path) -> None:
    async def work() -> None:
        engine = say(tmp_path, fault="stall", fault_after=25)  # of 40 tokens, so a second process does not get there
        async with Client(engine, stall_timeout_s=0.3, stop_timeout_s=0.01) as client:
            first = client.pid
            assert await read(client.ask("a")) == ([[*TOKENS, END]], ["stop"])
            assert (client.num_stalls, client.num_restarts) == (1, 1)
            assert client.pid != first

    run(work())


def test_a_request_that_stalls_the_engine_again_and_again_is_failed(tmp_path: Path) -> None:
    async def work() -> None:
        engine = say(tmp_path, fault="stall", fault_after=0)
        async with Client(engine, stall_timeout_s=0.2, stop_timeout_s=0.01) as client:
            with pytest.raises(QuarantineError, match=r"made no step for `[\d.]+` seconds, so it was killed"):
                await read(client.ask("a"))
            assert client.num_stalls == 2

    run(work())


def test_loading_again_is_no_stall(tmp_path: Path) -> None:
    """The clock of a process starts with what it is given."""

    async def work() -> None:
        policy = RestartPolicy(first_delay_s=0.5, max_delay_s=0.5)
        async with Client(say(tmp_path, delay_s=0.001), restarts=policy, stall_timeout_s=0.4) as client:
            stream = client.ask("a")
            await read_tokens(stream, 2)
            os.kill(client.pid or 0, signal.SIGKILL)
            assert (await read(stream))[1] == ["stop"]
            assert (client.num_stalls, client.num_restarts) == (0, 1)

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


class FakeSupervisor:
    """An engine that hears everything and says what the test makes it say."""

    is_writable = True
    ready = None
    state = "ready"

    def __init__(self) -> None:
        self.heard: list[ToEngine] = []
        self.killed: list[str] = []

    def kill(self, why: str) -> None:
        self.killed.append(why)

    def send(self, message: ToEngine) -> None:
        self.heard.append(message)

    def check_alive(self) -> None:
        return

    def take_added(self) -> list[str]:
        heard, self.heard = self.heard, []
        return [message.request_id for message in heard if isinstance(message, AddRequest)]


def test_reports_without_a_step_do_not_hide_a_stall(monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine that goes round in circles tells of its state all the time."""

    async def work() -> None:
        client = EngineClient({}, stall_timeout_s=100.0)
        engine = FakeSupervisor()
        client._supervisor = engine  # type: ignore[assignment]
        client.submit(AddRequest("a", PROMPT, SamplingParams(), 1))
        start_s = float(int(client._loop.time()))
        monkeypatch.setattr(client._loop, "time", lambda: start_s + 100.0)
        client.on_message(StepReport([], EngineStats(num_running=1, num_steps_total=1)))
        assert client.silence_s == 0.0
        monkeypatch.setattr(client._loop, "time", lambda: start_s + 200.0)
        client.on_message(StepReport([], EngineStats(num_running=1, num_steps_total=1)))
        assert client.silence_s == 100.0
        client._check_stall()
        assert client.num_stalls == len(engine.killed) == 1
        monkeypatch.undo()
        client.on_end(EngineDeadError("over"))

    run(work())


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


def test_a_model_that_can_not_be_loaded_again_ends_it_at_once(tmp_path: Path) -> None:
    async def work() -> None:
        engine = say(tmp_path, delay_s=0.01)
        async with Client(engine) as client:
            stream = client.ask("a")
            await read_tokens(stream, 1)
            Path(engine.removeprefix("scripted:")).write_text("{")
            os.kill(client.pid or 0, signal.SIGKILL)
            with pytest.raises(UsageError):
                await read(stream)
            assert isinstance(await client.wait_end(), UsageError)
            assert client.num_restarts == 1

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
