"""The engine, from asyncio: requests go to its process and come back as streams, and a crash is not the end of them.

It bounds what waits, and gives the open requests to a new process with what was said already, so that each stream goes
on where it stopped. It knows no text.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pelton.engine.channel import ChannelError, check_readable
from pelton.engine.messages import (
    AbortRequest,
    AddRequest,
    EndTokens,
    EngineStats,
    Ready,
    Resume,
    StepFailed,
    StepReport,
)
from pelton.engine.quarantine import Quarantine
from pelton.engine.stream import EngineStream
from pelton.engine.supervisor import RestartPolicy, State, Supervisor
from pelton.engine.suspects import Suspects
from pelton.errors import PeltonError, QuarantineError, QueueFullError, QueueTimeoutError, RequestError

logger = logging.getLogger(__name__)

_MAX_RETRY_AFTER_S = 60.0
STALL_IN_STEPS = 20  # an engine known to be slow may be silent for so many of its longest steps


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
    """The requests that are open, and the engine that answers them. For one event loop."""

    def __init__(
        self,
        settings: Mapping[str, Any],
        *,
        max_queue: int = 64,
        queue_timeout_s: float = 60.0,
        stall_timeout_s: float = 0.0,
        stop_timeout_s: float = 5.0,
        restarts: RestartPolicy | None = None,
        on_stats: Callable[[EngineStats], None] | None = None,
    ) -> None:
        """settings: as `Settings.for_engine` gives them. max_queue: requests that may wait for more than a free slot.

        queue_timeout_s: how long a request may wait for its slot. stall_timeout_s: an engine that has work and makes
        no step for so long, and for 20 of its longest steps, is killed and started again; 0 for never. stop_timeout_s:
        how long `close` waits for the step that runs. on_stats: is told of every step.
        """
        self._max_queue = max_queue
        self._queue_timeout_s = queue_timeout_s
        self._stall_timeout_s = stall_timeout_s
        self._on_stats = on_stats
        self._loop = asyncio.get_running_loop()
        self._supervisor = Supervisor(settings, self, restarts or RestartPolicy(), stop_timeout_s=stop_timeout_s)
        self._streams: dict[str, EngineStream] = {}  # the open ones, in the order in which they came
        self._deadlines: dict[str, asyncio.TimerHandle] = {}  # of those that have never started
        self._suspects = Suspects()
        self._quarantine = Quarantine()
        self._departures = DepartureRate()
        self._last_progress_s = 0.0
        self._longest_step_s = 0.0
        self._stall_timer: asyncio.TimerHandle | None = None
        self.num_stalls = 0
        self.stats = EngineStats()
        self.num_replayed = 0

    # The engine.

    def start(self) -> None:
        """Starts the process and keeps it alive; returns at once. `wait_ready` tells how it went."""
        self._supervisor.start()

    async def wait_ready(self) -> Ready:
        """Raises what the start failed with, as the class of pelton.errors that it was in the process."""
        return await self._supervisor.wait_ready()

    async def wait_end(self) -> PeltonError:
        """Returns once there is no engine any more, and why."""
        return await self._supervisor.wait_end()

    async def close(self) -> None:
        """Ends the process, and every open stream with EngineDeadError. Idempotent."""
        if self._stall_timer is not None:
            self._stall_timer.cancel()
        await self._supervisor.close()

    @property
    def state(self) -> State:
        return self._supervisor.state

    @property
    def phase(self) -> str:
        """Of loading."""
        return self._supervisor.phase

    @property
    def facts(self) -> list[str]:
        """What is loaded, in lines for people; empty until it is known."""
        return self._supervisor.facts

    @property
    def ready(self) -> Ready | None:
        """The sizes of the engine, which a new process may have chosen anew; None before the first was ready."""
        return self._supervisor.ready

    @property
    def pid(self) -> int | None:
        """Of the process that lives now."""
        return self._supervisor.pid

    @property
    def num_restarts(self) -> int:
        return self._supervisor.num_restarts

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
        """How long the engine has made no step although it has work; 0.0 if it has none. Talk alone is no progress."""
        return self._loop.time() - self._last_progress_s if self._has_work else 0.0

    @property
    def error(self) -> PeltonError | None:
        """Why there is no engine any more; None while there is one, or will be again."""
        return self._supervisor.error

    def set_end_tokens(self, token_ids: Sequence[int]) -> None:
        """The tokens that end an answer. To be called before the first request."""
        self._supervisor.set_end_tokens(EndTokens(list(token_ids)))

    # Requests.

    def submit(self, request: AddRequest) -> EngineStream:
        """Queues a request that has been checked (engine/admission.py).

        Raises QueueFullError, EngineDeadError, QuarantineError for one that broke the engine not long ago, or
        RequestError if there is one of that id or the engine can't read it; the stream raises QueueTimeoutError,
        EngineDeadError, QuarantineError.
        """
        self._supervisor.check_alive()
        check_readable(request)
        if request.request_id in self._streams:
            raise RequestError(f"there is a request `{request.request_id}` already")
        seconds_left = self._quarantine.seconds_left(request, self._loop.time())
        if seconds_left > 0.0:
            raise QuarantineError(
                f"a request like this has broken the engine; it is refused for `{seconds_left:.0f}` seconds more",
                "do not send it again; it may be worth a bug report",
            )
        if self.num_waiting >= self._max_queue + self._num_free_slots():
            raise QueueFullError(
                f"`{self.num_waiting}` requests are waiting, which is all that may",
                "try again later",
                retry_after_s=self.retry_after_s(),
            )
        stream = EngineStream(request, self._on_close)
        self._streams[request.request_id] = stream
        self._deadlines[request.request_id] = self._loop.call_later(self._queue_timeout_s, self._expire, stream)
        self.on_writable()
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
        if stream.is_sent:
            self._supervisor.send(AbortRequest(stream.request_id, choice))
        if stream.is_over:
            self._leave(stream)

    def retry_after_s(self) -> float:
        """When half of those that wait now will have left, as fast as requests have been leaving; 1 to 60 seconds."""
        seconds = self._departures.seconds_for((self.num_waiting + 1) / 2, self._loop.time())
        return min(_MAX_RETRY_AFTER_S, max(1.0, seconds or 1.0))

    def _num_free_slots(self) -> int:
        """What waits for no more than to be told to the engine does not count as waiting."""
        if self.ready is None:
            return 0
        taken = sum(stream.num_open for stream in self._streams.values() if stream.has_started)
        return max(0, self.ready.limits.max_num_seqs - taken)

    @property
    def _has_work(self) -> bool:
        return any(stream.is_sent for stream in self._streams.values())

    def _send(self, stream: EngineStream) -> None:
        if not self._has_work:
            self._last_progress_s = self._loop.time()
        if not stream.has_started:
            self._supervisor.send(stream.request)
        else:
            self._supervisor.send(stream.continued())
            for choice in stream.ended_choices:
                self._supervisor.send(AbortRequest(stream.request_id, choice))
            self.num_replayed += 1
        stream.is_sent = True
        if self._stall_timeout_s and self._stall_timer is None:
            self._stall_timer = self._loop.call_later(self._stall_timeout_s, self._check_stall)

    def _check_stall(self) -> None:
        """Ends an engine that does not go on, and looks again as long as it has work."""
        self._stall_timer = None
        if not self._has_work:
            return
        limit_s = max(self._stall_timeout_s, STALL_IN_STEPS * self._longest_step_s)
        silence_s = self.silence_s
        if silence_s >= limit_s:
            self.num_stalls += 1
            self._supervisor.kill(f"it had work and made no step for `{silence_s:.1f}` seconds, so it was killed")
            return
        self._stall_timer = self._loop.call_later(limit_s - silence_s, self._check_stall)

    def _on_close(self, stream: EngineStream) -> None:
        if self._streams.get(stream.request_id) is stream:
            if stream.is_sent:
                self._supervisor.send(AbortRequest(stream.request_id))
            self._leave(stream)

    def _expire(self, stream: EngineStream) -> None:
        stream.end(
            QueueTimeoutError(
                f"the request has waited `{self._queue_timeout_s}` seconds for its turn",
                "try again later",
                retry_after_s=self.retry_after_s(),
            )
        )
        self._on_close(stream)

    def _leave(self, stream: EngineStream) -> None:
        del self._streams[stream.request_id]
        self._has_its_turn(stream)
        if self._suspects.on_trial == stream.request_id:
            self._loop.call_soon(self.on_writable)  # others have waited for it
        self._suspects.forget(stream.request_id)
        self._departures.note(self._loop.time())

    def _has_its_turn(self, stream: EngineStream) -> None:
        deadline = self._deadlines.pop(stream.request_id, None)
        if deadline is not None:
            deadline.cancel()

    # What the supervisor tells.

    def on_writable(self) -> None:
        """Gives the engine what it does not have yet, as far as it reads, and no more than may run beside a suspect."""
        on_trial = self._suspects.on_trial
        for stream in list(self._streams.values()):
            if not self._supervisor.is_writable:
                return
            if not stream.is_sent and on_trial in (None, stream.request_id):
                try:
                    self._send(stream)
                except ChannelError as error:  # it is too large for a frame
                    stream.end(error)
                    self._leave(stream)

    def on_message(self, message: StepReport | StepFailed) -> None:
        if isinstance(message, StepReport):
            self._take(message)
            return
        self._last_progress_s = self._loop.time()
        logger.error("a step of the engine failed: %s; its requests are given anew", message.error)
        self._blame("a step failed", message.error)
        self._supervisor.send(Resume())
        self.on_writable()

    def on_death(self, why: str) -> None:
        self.stats = EngineStats()
        self._blame("the engine process ended", why)

    def on_end(self, error: PeltonError) -> None:
        for stream in list(self._streams.values()):
            stream.end(error)
            self._leave(stream)

    def _take(self, report: StepReport) -> None:
        on_trial = self._suspects.on_trial
        is_step = report.stats.num_steps_total != self.stats.num_steps_total
        if is_step or report.progress:
            self._last_progress_s = self._loop.time()
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
            self.on_writable()
        self._longest_step_s = max(self._longest_step_s, report.stats.step_seconds)
        self.stats = report.stats
        if is_step and self._on_stats is not None:
            self._on_stats(report.stats)

    def _blame(self, what: str, why: str) -> None:
        """The engine has lost all its requests: whose fault it was, and what is to be given to it anew."""
        running = [stream.request_id for stream in self._streams.values() if stream.is_running]
        for request_id in self._suspects.broke(running):
            stream = self._streams[request_id]
            name = self._quarantine.add(stream.request, self._loop.time())
            logger.error(
                "request `%s` is failed and its like is refused: %s while it ran; hash %s", request_id, what, name
            )
            stream.end(
                QuarantineError(
                    f"{what} again and again while this request ran, at last: {why}",
                    "do not send it again; it may be worth a bug report",
                )
            )
            self._leave(stream)
        for stream in self._streams.values():
            stream.is_sent = stream.is_running = False
