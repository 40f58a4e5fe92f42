"""The loop of the engine process, driven over a real socket pair in a thread of its own."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator

import pytest

from pelton.engine.batch import Batch, CacheGroupSpec, StepResult
from pelton.engine.channel import EngineChannel, FrameReader, frame
from pelton.engine.engine import Engine
from pelton.engine.messages import (
    AbortRequest,
    AddRequest,
    EndTokens,
    Resume,
    StepFailed,
    StepReport,
    Stop,
    ToClient,
    ToEngine,
)
from pelton.engine.service import MAX_FAILED_STEPS, Service
from pelton.sampling_params import SamplingParams
from tests.fake_runner import EOS, FakeRunner, engine_of

PROMPT = [5, 6, 7] * 9
SAMPLING = SamplingParams(max_tokens=12, ignore_eos=True)


class GatedRunner(FakeRunner):
    """Each step waits until the test lets it go, or raises what the test says."""

    def __init__(self, groups: list[CacheGroupSpec]) -> None:
        super().__init__(groups)
        self.may_step = threading.Semaphore(0)
        self.has_begun = threading.Semaphore(0)
        self.failures: list[Exception] = []

    def step(self, batch: Batch) -> StepResult:
        self.has_begun.release()
        self.may_step.acquire()
        if self.failures:
            self.has_failed = True
            raise self.failures.pop()
        return super().step(batch)


class Client:
    """The other end, for tests that wait for what they expect."""

    def __init__(self, connection: socket.socket) -> None:
        connection.settimeout(20)
        self._connection = connection
        self._reader: FrameReader[ToClient] = FrameReader(ToClient)
        self._unread: list[ToClient] = []
        self.tokens: defaultdict[tuple[str, int], list[int]] = defaultdict(list)
        self.ends: dict[tuple[str, int], str | None] = {}
        self.errors: dict[str, str | None] = {}
        self.started: list[str] = []
        self.last: StepReport | None = None

    def send(self, *messages: ToEngine) -> None:
        self._connection.sendall(b"".join(map(frame, messages)))

    def add(self, request_id: str, sampling: SamplingParams = SAMPLING, said: list[list[int]] | None = None) -> None:
        self.send(AddRequest(request_id, PROMPT, sampling, 3, output_token_ids=said or []))

    def receive(self) -> ToClient:
        while not self._unread:
            data = self._connection.recv(1 << 16)
            assert data, "the service has gone"
            self._unread = self._reader.feed(data)
        message = self._unread.pop(0)
        if isinstance(message, StepReport):
            self._note(message)
        return message

    def until(self, is_it: Callable[[], object]) -> None:
        while not is_it():
            self.receive()

    def ended(self, *request_ids: str) -> Callable[[], bool]:
        return lambda: set(request_ids) <= {request_id for request_id, _ in self.ends}

    def _note(self, report: StepReport) -> None:
        self.last = report
        self.started += report.started
        for part in report.progress:
            self.tokens[part.request_id, part.choice] += part.token_ids
            if part.finish_reason is not None:
                self.ends[part.request_id, part.choice] = part.finish_reason
                self.errors[part.request_id] = part.error


@contextlib.contextmanager
def served(engine: Engine) -> Iterator[Client]:
    """A client of a service that runs in a thread; at the end it is stopped and has ended."""
    ours, theirs = socket.socketpair()
    service = Service(engine, EngineChannel(ours))
    outcome: list[BaseException] = []

    def work() -> None:
        try:
            service.run()
        except Exception as error:  # noqa: BLE001 (the test asks for it)
            outcome.append(error)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    with ours, theirs:
        client = Client(theirs)
        yield client
        with contextlib.suppress(BrokenPipeError):
            client.send(Stop())
        thread.join(20)
    assert not thread.is_alive()
    if outcome:
        raise outcome[0]


def gated() -> tuple[Engine, GatedRunner]:
    engine = engine_of()
    runner = GatedRunner(engine.cache.groups)
    engine.runner = runner
    return engine, runner


def tokens_alone(sampling: SamplingParams = SAMPLING) -> list[int]:
    engine = engine_of()
    engine.add("alone", PROMPT, sampling, seed=3)
    said = []
    while engine.has_work:
        said += [token for part in engine.step() for token in part.token_ids]
    return said


def test_requests_are_answered_and_told_of() -> None:
    with served(engine_of()) as client:
        client.add("a")
        client.add("b")
        client.until(client.ended("a", "b"))
        assert client.tokens["a", 0] == client.tokens["b", 0] == tokens_alone()
        assert client.started == ["a", "b"]
        client.until(lambda: client.last is not None and client.last.stats.num_running == 0)


def test_a_request_that_is_refused_ends_with_the_reason_and_nothing_else_does() -> None:
    with served(engine_of(max_model_len=64)) as client:
        client.add("good")
        client.send(AddRequest("bad", [5] * 64, SamplingParams(n=2), 1))
        client.until(client.ended("good", "bad"))
        assert [client.ends["bad", choice] for choice in (0, 1)] == ["error", "error"]
        assert "`64` tokens" in str(client.errors["bad"])
        assert client.ends["good", 0] == "length"


def test_end_tokens_are_those_that_the_client_says() -> None:
    engine = engine_of()
    engine.eos_token_ids = ()
    with served(engine) as client:
        long = SamplingParams(max_tokens=200)
        client.add("endless", long)
        client.until(client.ended("endless"))
        assert client.ends["endless", 0] == "length"
        assert EOS in client.tokens["endless", 0]
        client.send(EndTokens([EOS]))
        client.add("ends", long)
        client.until(client.ended("ends"))
        assert client.ends["ends", 0] == "stop"


def test_messages_are_taken_in_between_any_two_steps() -> None:
    engine, runner = gated()
    with served(engine) as client:
        client.add("a")
        runner.has_begun.acquire()
        client.add("b")  # while a step computes
        client.send(AbortRequest("a"))
        runner.may_step.release()
        runner.has_begun.acquire()  # the next step
        assert [len(batch.work) for batch in runner.steps] == [1]
        assert [request.request_id for request in engine.scheduler.running] == ["b"]
        runner.may_step.release(100)
        client.until(client.ended("b"))
        assert client.tokens["b", 0] == tokens_alone()


def test_who_starts_is_told_before_the_step() -> None:
    engine, runner = gated()
    with served(engine) as client:
        client.add("a")
        client.until(lambda: client.started == ["a"])
        assert not runner.steps
        assert client.last is not None
        assert client.last.progress == []
        runner.may_step.release(100)
        client.until(client.ended("a"))
        assert client.started == ["a"]


def test_an_abort_that_leaves_nothing_is_told() -> None:
    engine, runner = gated()
    with served(engine) as client:
        client.add("a")
        runner.may_step.release()
        client.until(lambda: client.tokens["a", 0])
        client.send(AbortRequest("a"))
        runner.may_step.release(100)
        client.until(lambda: client.last is not None and client.last.stats.num_running == 0)
        engine.cache.check_integrity()
        assert client.last is not None
        assert client.last.stats.kv_cache_usage == 0.0


def test_an_unknown_request_may_be_aborted() -> None:
    with served(engine_of()) as client:
        client.send(AbortRequest("nobody"), AbortRequest("nobody", 3))
        client.add("a")
        client.until(client.ended("a"))


def test_a_step_that_fails_is_told_and_what_comes_before_resume_is_dropped() -> None:
    engine, runner = gated()
    with served(engine) as client:
        client.add("a")
        runner.may_step.release(3)
        client.until(lambda: client.tokens["a", 0])
        runner.failures.append(ValueError("broken"))
        client.add("late")  # given to the engine that will have failed
        runner.may_step.release(100)
        message = client.receive()
        while not isinstance(message, StepFailed):
            message = client.receive()
        assert message.error == "ValueError: broken"
        said = list(client.tokens["a", 0])
        client.add("dropped")
        client.send(Resume())
        client.add("a", said=[said])
        client.add("b")
        client.until(client.ended("a", "b"))
        assert client.tokens["a", 0] == client.tokens["b", 0] == tokens_alone()
        assert not client.tokens["dropped", 0]


def test_a_runner_that_only_fails_ends_the_service() -> None:
    engine, runner = gated()
    runner.failures += [ValueError(f"broken {number}") for number in range(MAX_FAILED_STEPS)]
    runner.may_step.release(MAX_FAILED_STEPS)

    def give_work() -> None:
        with served(engine) as client:
            for number in range(MAX_FAILED_STEPS - 1):
                client.add(str(number))
                while not isinstance(client.receive(), StepFailed):
                    pass
                client.send(Resume())
            client.add("last")
            for _ in range(MAX_FAILED_STEPS):
                runner.has_begun.acquire()

    with pytest.raises(ValueError, match="broken 0"):
        give_work()


@pytest.mark.parametrize("is_running", [False, True])
def test_it_ends_with_its_client(is_running: bool) -> None:
    engine, runner = gated()
    ours, theirs = socket.socketpair()
    thread = threading.Thread(target=Service(engine, EngineChannel(ours)).run, daemon=True)
    thread.start()
    if is_running:
        theirs.sendall(frame(AddRequest("a", PROMPT, SAMPLING, 3)))
        runner.has_begun.acquire()
    theirs.close()
    runner.may_step.release(100)
    thread.join(20)
    assert not thread.is_alive()
    ours.close()


def test_an_idle_service_uses_no_time() -> None:
    with served(engine_of()) as client:
        client.add("a")
        client.until(client.ended("a"))
        clock = time.pthread_getcpuclockid
        threads = [thread for thread in threading.enumerate() if thread is not threading.main_thread()]
        before = [time.clock_gettime(clock(thread.ident)) for thread in threads if thread.ident]
        threading.Event().wait(0.3)
        after = [time.clock_gettime(clock(thread.ident)) for thread in threads if thread.ident]
        assert sum(after) - sum(before) < 0.01
