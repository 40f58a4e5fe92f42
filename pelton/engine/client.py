"""The engine, from asyncio: requests go to its process and come back as streams, and a crash is not the end of them.

It bounds what waits, starts the process again when it dies, and gives it the open requests anew with what was said
already, so that each stream goes on where it stopped. It knows no text.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pelton import errors
from pelton.engine.messages import (
    AbortRequest,
    AddRequest,
    EndTokens,
    EngineStats,
    Failed,
    Loading,
    Ready,
    Resume,
    Start,
    StepFailed,
    StepReport,
    ToClient,
)
from pelton.engine.process import EngineProcess
from pelton.engine.stream import EngineStream
from pelton.engine.suspects import Suspects
from pelton.errors import EngineDeadError, PeltonError, QueueFullError, QueueTimeoutError, RequestError

logger = logging.getLogger(__name__)

State = Literal["loading", "ready", "restarting", "dead", "closed"]

_MAX_RETRY_AFTER_S = 60.0


@dataclass(frozen=True)
class RestartPolicy:
    """When a process that died is started again: after a delay that doubles with each death of the last `window_s`
    seconds, but not after more than max_deaths of them."""

    max_deaths: int = 10
    window_s: float = 60.0
    first_delay_s: float = 0.1
    max_delay_s: float = 5.0

    def delay_s(self, num_deaths: int) -> float:
        return min(self.max_delay_s, self.first_delay_s * 2.0 ** min(num_deaths - 1, 60))


class DepartureRate:
    """How fast requests have been leaving, from the last of them."""

    def __init__(self, num_kept: int = 64) -> None:
        self._times: deque[float] = deque(maxlen=num_kept)

    def note(self, now_s: float) -> None:
        self._times.append(now_s)

    def seconds_for(self, count: float, now_s: float) -> float | None:
        """How long as many take to leave; None while nothing is known. A pause counts as slowness."""
        if len(self._times) < 2:
            return None
        return count * (now_s - self._times[0]) / len(self._times)


class EngineClient:
    """One engine process after another, and the requests that outlive them. For one event loop."""

    def __init__(
        self,
        settings: Mapping[str, Any],
        *,
        max_queue: int = 64,
        queue_timeout_s: float = 60.0,
        stop_timeout_s: float = 5.0,
        restarts: RestartPolicy | None = None,
        on_stats: Callable[[EngineStats], None] | None = None,
    ) -> None:
        """settings: as `Settings.for_engine` gives them. max_queue: requests that may wait for more than a free slot.

        queue_timeout_s: how long a request may wait for its slot. stop_timeout_s: how long `close` waits for the step
        that runs. on_stats: is told of every step.
        """
        self._settings = dict(settings)
        self._max_queue = max_queue
        self._queue_timeout_s = queue_timeout_s
        self._stop_timeout_s = stop_timeout_s
        self._restarts = restarts or RestartPolicy()
        self._on_stats = on_stats
        self._loop = asyncio.get_running_loop()
        self._ready: asyncio.Future[Ready] = self._loop.create_future()
        self._process: EngineProcess | None = None
        self._supervisor: asyncio.Task[None] | None = None
        self._end_token_ids: list[int] = []
        self._streams: dict[str, EngineStream] = {}  # the open ones, in the order in which they came
        self._deadlines: dict[str, asyncio.TimerHandle] = {}  # of those that have never started
        self._suspects = Suspects()
        self._departures = DepartureRate()
        self._failure: PeltonError | None = None  # why the process ended, if it could tell
        self._last_message_s = 0.0
        self.state: State = "loading"
        self.phase = "starting"  # of loading
        self.facts: list[str] = []  # what is loaded, for people
        self.stats = EngineStats()
        self.num_restarts = 0
        self.num_replayed = 0

    # The process.

    def start(self) -> None:
        """Starts the process and keeps it alive; returns at once. `wait_ready` tells how it went."""
        self._supervisor = self._loop.create_task(self._supervise())

    async def wait_ready(self) -> Ready:
        """Raises what the start failed with, as the class of pelton.errors that it was in the process."""
        return await asyncio.shield(self._ready)

    @property
    def pid(self) -> int | None:
        """Of the process that lives now."""
        return None if self._process is None else self._process.pid

    @property
    def why_dead(self) -> str | None:
        """None while it lives."""
        return self._failure.message if self.state in ("dead", "closed") and self._failure is not None else None

    @property
    def num_waiting(self) -> int:
        """Requests that have never had a slot."""
        return len(self._deadlines)

    @property
    def num_open(self) -> int:
        """Requests that have not ended."""
        return len(self._streams)

    @property
    def silence_s(self) -> float:
        """How long the engine has said nothing although it has work; 0.0 if it has none."""
        if not any(stream.is_sent for stream in self._streams.values()):
            return 0.0
        return self._loop.time() - self._last_message_s

    def set_end_tokens(self, token_ids: Sequence[int]) -> None:
        """The tokens that end an answer. To be called before the first request."""
        self._end_token_ids = list(token_ids)
        if self._process is not None:
            self._process.send(EndTokens(self._end_token_ids))

    async def close(self) -> None:
        """Ends the process, and every open stream with EngineDeadError. Idempotent."""
        if self.state != "closed":
            self._end_all(EngineDeadError("the engine was closed"), "closed")
        if self._supervisor is not None:
            self._supervisor.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._supervisor

    # Requests.

    def submit(self, request: AddRequest) -> EngineStream:
        """Queues a request that has been checked (engine/admission.py).

        Raises QueueFullError, EngineDeadError, or RequestError if there is one of that id; the stream raises
        QueueTimeoutError, or EngineDeadError if it can't be continued.
        """
        if self.state in ("dead", "closed"):
            raise self._failure or EngineDeadError("the engine was closed")
        if request.request_id in self._streams:
            raise RequestError(f"there is a request `{request.request_id}` already")
        if self.num_waiting >= self._max_queue + self._num_free_slots():
            raise QueueFullError(
                f"`{self.num_waiting}` requests are waiting, which is all that may",
                "try again later",
                retry_after_s=self.retry_after_s(),
            )
        stream = EngineStream(request, self._on_close)
        if not self._streams:
            self._last_message_s = self._loop.time()
        self._streams[request.request_id] = stream
        self._deadlines[request.request_id] = self._loop.call_later(self._queue_timeout_s, self._expire, stream)
        self._send_waiting()
        return stream

    def abort(self, request_id: str) -> bool:
        """Ends a request: its stream ends with finish_reason "abort". False if it is not there."""
        stream = self._streams.get(request_id)
        if stream is None:
            return False
        stream.end("abort")
        self._on_close(stream)
        return True

    def end_choice(self, stream: EngineStream, choice: int) -> None:
        """Its reader has seen enough of a choice: nothing more of it comes, and the engine drops it."""
        if self._streams.get(stream.request_id) is not stream:
            return  # the engine was faster: it had ended before its reader saw it
        stream.end_choice(choice)
        if stream.is_sent and self._process is not None:
            self._process.send(AbortRequest(stream.request_id, choice))
        if stream.is_over:
            self._leave(stream)

    def retry_after_s(self) -> float:
        """When half of those that wait now will have left, as fast as requests have been leaving; 1 to 60 seconds."""
        seconds = self._departures.seconds_for((self.num_waiting + 1) / 2, self._loop.time())
        return min(_MAX_RETRY_AFTER_S, max(1.0, seconds or 1.0))

    def _num_free_slots(self) -> int:
        """What waits for no more than to be told to the engine does not count as waiting."""
        if not self._ready.done() or self._ready.exception() is not None:
            return 0
        taken = sum(stream.num_open for stream in self._streams.values() if stream.has_started)
        return max(0, self._ready.result().limits.max_num_seqs - taken)

    def _send_waiting(self) -> None:
        """Gives the engine what it does not have yet, as far as it reads, and no more than may run beside a suspect."""
        if self.state != "ready" or self._process is None:
            return
        on_trial = self._suspects.on_trial
        for stream in self._streams.values():
            if not self._process.is_writable:
                return  # it calls again
            if not stream.is_sent and on_trial in (None, stream.request_id):
                self._send(self._process, stream)

    def _send(self, process: EngineProcess, stream: EngineStream) -> None:
        stream.is_sent = True
        if not stream.has_started:
            process.send(stream.request)
            return
        self.num_replayed += 1
        process.send(stream.continued())
        for choice in stream.ended_choices:
            process.send(AbortRequest(stream.request_id, choice))

    def _on_close(self, stream: EngineStream) -> None:
        if self._streams.get(stream.request_id) is stream:
            if stream.is_sent and self._process is not None:
                self._process.send(AbortRequest(stream.request_id))
            self._leave(stream)

    def _expire(self, stream: EngineStream) -> None:
        retry_after_s = self.retry_after_s()
        stream.end(
            QueueTimeoutError(
                f"the request has waited `{self._queue_timeout_s}` seconds for its turn",
                "try again later",
                retry_after_s=retry_after_s,
            )
        )
        self._on_close(stream)

    def _leave(self, stream: EngineStream) -> None:
        del self._streams[stream.request_id]
        self._has_its_turn(stream)
        self._suspects.forget(stream.request_id)
        self._departures.note(self._loop.time())

    def _has_its_turn(self, stream: EngineStream) -> None:
        deadline = self._deadlines.pop(stream.request_id, None)
        if deadline is not None:
            deadline.cancel()

    # What the process says.

    def _on_message(self, message: ToClient) -> None:
        self._last_message_s = self._loop.time()
        match message:
            case StepReport():
                self._take(message)
            case Loading():
                self.phase = message.phase
                self.facts = message.facts or self.facts
            case Ready():
                self.state = "ready"
                if not self._ready.done():
                    self._ready.set_result(message)
                self._send_waiting()
            case StepFailed():
                logger.error("a step of the engine failed: %s; its requests are given anew", message.error)
                self._blame("a step failed", message.error)
                if self._process is not None:
                    self._process.send(Resume())
                self._send_waiting()
            case Failed():
                self._failure = _error_of(message)

    def _take(self, report: StepReport) -> None:
        on_trial = self._suspects.on_trial
        for request_id in report.started:
            stream = self._streams.get(request_id)
            if stream is not None:
                stream.start()
                self._has_its_turn(stream)
        for progress in report.progress:
            stream = self._streams.get(progress.request_id)
            if stream is not None:
                stream.take(progress)
                if progress.token_ids:
                    self._suspects.advanced(progress.request_id)
                if stream.is_over:
                    self._leave(stream)
        if on_trial is not None:
            self._send_waiting()
        is_step = report.stats.num_steps_total != self.stats.num_steps_total
        self.stats = report.stats
        if is_step and self._on_stats is not None:
            self._on_stats(report.stats)

    # Its lives.

    async def _supervise(self) -> None:
        deaths: deque[float] = deque()
        while True:
            why = await self._live()
            if not self._ready.done():
                failure = self._failure or EngineDeadError(f"the engine process ended while it loaded: {why}")
                self._end_all(failure, "dead")
                return
            self._mourn(self._failure.message if self._failure is not None else why)
            now = self._loop.time()
            deaths.append(now)
            while deaths[0] < now - self._restarts.window_s:
                deaths.popleft()
            if len(deaths) > self._restarts.max_deaths:
                self._end_all(
                    EngineDeadError(
                        f"the engine process has died `{len(deaths)}` times in `{self._restarts.window_s}` seconds, "
                        f"at last because {why}"
                    ),
                    "dead",
                )
                return
            await asyncio.sleep(self._restarts.delay_s(len(deaths)))
            self.num_restarts += 1

    async def _live(self) -> str:
        """One process from start to end; why it ended. Nothing is left of it, however this is left."""
        self._failure = None
        process = self._process = EngineProcess(self._on_message, self._send_waiting)
        try:
            await process.start()
            process.send(Start(self._settings))
            if self._end_token_ids:
                process.send(EndTokens(self._end_token_ids))
            return await asyncio.shield(process.ended)
        except EngineDeadError as error:
            self._failure = error
            return error.message
        finally:
            await process.stop(self._stop_timeout_s)
            self._process = None

    def _mourn(self, why: str) -> None:
        logger.error("the engine process has ended: %s; it is started again", why)
        self.state, self.phase = "restarting", "starting"
        self.stats = EngineStats()
        self._blame("the engine process ended", why)

    def _blame(self, what: str, why: str) -> None:
        """The engine has lost all its requests: whose fault it was, and what is to be given to it anew."""
        running = [stream.request_id for stream in self._streams.values() if stream.is_running]
        for request_id in self._suspects.broke(running):
            stream = self._streams[request_id]
            stream.end(
                EngineDeadError(
                    f"{what} again and again while this request ran, at last: {why}",
                    "do not send it again; it may be worth a bug report",
                )
            )
            self._leave(stream)
        for stream in self._streams.values():
            stream.is_sent = stream.is_running = False

    def _end_all(self, error: PeltonError, state: State) -> None:
        self.state = state
        self._failure = error
        for stream in list(self._streams.values()):
            stream.end(error)
            self._leave(stream)
        if not self._ready.done():
            self._ready.set_exception(error)
            self._ready.exception()  # nobody has to ask for it


def _error_of(message: Failed) -> PeltonError:
    kind = getattr(errors, message.kind, None)
    if not isinstance(kind, type) or not issubclass(kind, PeltonError):
        kind = PeltonError
    return kind(message.message, message.hint)
