"""Keeps an engine process alive: starts it, hears how it loads, starts it again when it dies, and gives up at last.

What the engine is asked is client.py's; here is only whether there is one to ask.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import logging
from collections import deque
from collections.abc import Mapping
from typing import Any, Literal, Protocol

import msgspec

from pelton import errors
from pelton.engine.messages import EndTokens, Failed, Loading, Ready, Start, StepFailed, StepReport, ToClient, ToEngine
from pelton.engine.process import EngineProcess
from pelton.errors import EngineDeadError, ModelError, PeltonError, UsageError

logger = logging.getLogger(__name__)

# What no further start would get over, unlike a lack of memory.
_PERMANENT = (ModelError, UsageError)

State = Literal["loading", "ready", "restarting", "dead", "closed"]


class RestartPolicy(msgspec.Struct, frozen=True):
    """When a process that died is started again: after a delay that doubles with each death of the last `window_s`
    seconds, but not after more than max_deaths of them."""

    max_deaths: int = 10
    window_s: float = 60.0
    first_delay_s: float = 0.1
    max_delay_s: float = 5.0

    def delay_s(self, num_deaths: int) -> float:
        return min(self.max_delay_s, self.first_delay_s * 2.0 ** min(num_deaths - 1, 60))


class Listener(Protocol):
    """Who uses the engine."""

    def on_writable(self) -> None:
        """The engine takes requests: it is ready, or reads again after a time in which it did not."""

    def on_message(self, message: StepReport | StepFailed) -> None:
        """What it says about requests."""

    def on_death(self, why: str) -> None:
        """The process has died with all its requests; another one will be ready."""

    def on_end(self, error: PeltonError) -> None:
        """There is no engine any more, and there won't be."""


class Supervisor:
    """One engine process after another. For one event loop."""

    def __init__(
        self, settings: Mapping[str, Any], listener: Listener, policy: RestartPolicy, *, stop_timeout_s: float
    ) -> None:
        """settings: as `Settings.for_engine` gives them. stop_timeout_s: how long `close` waits for a step to end."""
        self._settings = dict(settings)
        self._listener = listener
        self._policy = policy
        self._stop_timeout_s = stop_timeout_s
        self._process: EngineProcess | None = None
        self._task: asyncio.Task[None] | None = None
        self._end_tokens: EndTokens | None = None
        self._ready: asyncio.Future[Ready] = asyncio.get_running_loop().create_future()
        self._told: PeltonError | None = None  # why the process ended, if that is known
        self._end = asyncio.Event()
        self.error: PeltonError | None = None  # why there is no engine any more
        self.state: State = "loading"
        self.phase = "starting"  # of loading
        self.facts: list[str] = []  # what is loaded, for people
        self.ready: Ready | None = None  # what the last process said that was ready
        self.num_restarts = 0

    def start(self) -> None:
        """Returns at once; `wait_ready` tells how it went."""
        self._task = asyncio.get_running_loop().create_task(self._supervise())

    async def wait_ready(self) -> Ready:
        """Raises what the start failed with, as the class of pelton.errors that it was in the process."""
        return await asyncio.shield(self._ready)

    async def wait_end(self) -> PeltonError:
        """Returns once there is no engine any more: why."""
        await self._end.wait()
        assert self.error is not None, "an end without an error"
        return self.error

    def kill(self, why: str) -> None:
        """Ends the process that lives now, by force: another one will be started."""
        if self._process is not None:
            self._told = EngineDeadError(why)
            self._process.kill()

    async def close(self) -> None:
        """Ends the process. Idempotent."""
        if self.state != "closed":
            self._give_up(EngineDeadError("the engine was closed"), "closed")
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    @property
    def pid(self) -> int | None:
        """Of the process that lives now."""
        return None if self._process is None else self._process.pid

    @property
    def is_writable(self) -> bool:
        """Whether it takes requests, and has read what it was sent."""
        return self.state == "ready" and self._process is not None and self._process.is_writable

    def send(self, message: ToEngine) -> None:
        """What is said while there is no process is dropped: none of it would concern the next one."""
        if self._process is not None:
            self._process.send(message)

    def set_end_tokens(self, message: EndTokens) -> None:
        """Is told to this process and to all after it."""
        self._end_tokens = message
        self.send(message)

    def check_alive(self) -> None:
        """Raises why there is no engine any more."""
        if self.error is not None:
            raise copy.copy(self.error)  # one that is raised again and again would keep the frames of all

    async def _supervise(self) -> None:
        try:
            await self._keep_alive()
        except Exception as error:
            logger.exception("the engine process is not kept alive any more")
            self._give_up(EngineDeadError(f"{type(error).__name__}: {error}"), "dead")

    async def _keep_alive(self) -> None:
        deaths: deque[float] = deque()
        while True:
            why = await self._live()
            if self.ready is None:
                self._give_up(self._told or EngineDeadError(f"the engine process ended while it loaded: {why}"), "dead")
                return
            logger.error("the engine process has ended: %s", why)
            if isinstance(self._told, _PERMANENT):
                self._give_up(self._told, "dead")
                return
            self.state, self.phase = "restarting", "starting"
            self._listener.on_death(why)
            now = asyncio.get_running_loop().time()
            deaths.append(now)
            while deaths[0] < now - self._policy.window_s:
                deaths.popleft()
            if len(deaths) > self._policy.max_deaths:
                died = f"the engine process has died `{len(deaths)}` times in `{self._policy.window_s}` seconds"
                self._give_up(EngineDeadError(f"{died}, at last: {why}"), "dead")
                return
            await asyncio.sleep(self._policy.delay_s(len(deaths)))
            self.num_restarts += 1

    async def _live(self) -> str:
        """One process from start to end; why it ended. Nothing is left of it, however this is left."""
        self._told = None
        process = self._process = EngineProcess(self._on_message, self._on_writable)
        try:
            await process.start()
            process.send(Start(self._settings))
            if self._end_tokens is not None:
                process.send(self._end_tokens)
            how = await asyncio.shield(process.ended)
            return how if self._told is None else self._told.message
        except EngineDeadError as error:
            self._told = error
            return error.message
        finally:
            await process.stop(self._stop_timeout_s)
            self._process = None

    def _on_message(self, message: ToClient) -> None:
        match message:
            case StepReport() | StepFailed():
                self._listener.on_message(message)
            case Loading():
                self.phase = message.phase
                self.facts = message.facts or self.facts
            case Ready():
                self.state, self.ready = "ready", message
                if not self._ready.done():
                    self._ready.set_result(message)
                self._listener.on_writable()
            case Failed():
                self._told = _error_of(message)

    def _on_writable(self) -> None:
        if self.state == "ready":
            self._listener.on_writable()

    def _give_up(self, error: PeltonError, state: State) -> None:
        self.state, self.error = state, error
        self._listener.on_end(error)
        self._end.set()
        if not self._ready.done():
            self._ready.set_exception(error)
            self._ready.exception()  # nobody has to ask for it


def _error_of(message: Failed) -> PeltonError:
    kind = getattr(errors, message.kind, None)
    if not isinstance(kind, type) or not issubclass(kind, PeltonError):
        kind = PeltonError
    return kind(message.message, message.hint)
