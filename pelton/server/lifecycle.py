"""A server from its socket to its end: it listens at once, takes requests when the model is there, and stops in order.

Told to stop it takes no new connection, lets what runs come to its end within the drain time, ends the rest with an
error, and leaves nothing behind. Told twice it does so at once. It knows no route.
"""

from __future__ import annotations

import asyncio
import logging
import resource
import signal
import socket
from collections.abc import Callable, Coroutine
from email.utils import formatdate
from functools import partial
from typing import TYPE_CHECKING, Any

from uvicorn.config import Config
from uvicorn.server import ServerState

from pelton.errors import UsageError
from pelton.server.app import Application
from pelton.server.http_protocol import HttpProtocol
from pelton.server.limits import MAX_REFUSALS_AT_ONCE

if TYPE_CHECKING:
    from pelton.async_llm import AsyncLLM

logger = logging.getLogger(__name__)

# How long streams have for their last event, and clients to take it, once the drain time is over.
_FAREWELL_S = 2.0
_HURRIED_FAREWELL_S = 0.1
_BACKLOG = 1024
_OTHER_FILES = 64  # the loop's, the log's, the engine's, a few of Python's
_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class HttpServer:
    """Connections of one listening socket."""

    def __init__(self, application: Application) -> None:
        self._application = application
        self._context = application.context
        self._state = ServerState()
        self._server: asyncio.Server | None = None
        self._clock: asyncio.TimerHandle | None = None

    async def start(self, listener: socket.socket) -> None:
        """Takes the socket over. Requests are answered from now on."""
        loop = asyncio.get_running_loop()
        config = Config(self._application, log_config=None, access_log=False, lifespan="off", ws="none")
        self._tell_time(loop)
        _allow_files(self._context.settings.max_connections + MAX_REFUSALS_AT_ONCE + _OTHER_FILES)
        make = partial(HttpProtocol, config, self._state, self._context.settings, self._context.traffic, loop)
        self._server = await loop.create_server(make, sock=listener, backlog=_BACKLOG)

    async def drain(self, at_once: asyncio.Event) -> None:
        """Returns when nothing runs any more, or the drain time is over, or `at_once` is set. No request is begun."""
        self._stop_listening()
        self._context.is_draining = True
        for connection in list(self._state.connections):
            connection.shutdown()
        hurry = asyncio.ensure_future(at_once.wait())
        timeout_s = self._context.settings.drain_timeout_s
        try:
            async with asyncio.timeout(timeout_s):
                while self._state.tasks and not hurry.done():
                    await asyncio.wait((*self._state.tasks, hurry), return_when=asyncio.FIRST_COMPLETED)
        except TimeoutError:
            logger.warning("%d requests are not done after %g s and are ended", len(self._state.tasks), timeout_s)
        finally:
            hurry.cancel()

    async def close(self, *, farewell_s: float = _FAREWELL_S) -> None:
        """Ends what still runs with an error. farewell_s: for its last words, and again for clients to take them."""
        self._stop_listening()
        self._context.stop()
        await self._end_of_tasks(farewell_s)
        for connection in list(self._state.connections):
            connection.shutdown()
        try:
            async with asyncio.timeout(farewell_s):
                await self._context.traffic.is_empty.wait()
        except TimeoutError:
            for connection in list(self._state.connections):
                connection.transport.abort()
        await self._end_of_tasks(farewell_s)
        if self._clock is not None:
            self._clock.cancel()

    async def _end_of_tasks(self, timeout_s: float) -> None:
        if self._state.tasks:
            await asyncio.wait(tuple(self._state.tasks), timeout=timeout_s)

    def _stop_listening(self) -> None:
        if self._server is not None:
            self._server.close()

    def _tell_time(self, loop: asyncio.AbstractEventLoop) -> None:
        """The `Date` of answers, made once a second."""
        self._state.default_headers = [(b"date", formatdate(usegmt=True).encode())]
        self._clock = loop.call_later(1.0, self._tell_time, loop)


async def serve(
    server: HttpServer, listener: socket.socket, llm: AsyncLLM, announce: Callable[[], Coroutine[Any, Any, None]]
) -> None:
    """Serves until SIGTERM or SIGINT, and closes the model.

    Raises what loading the model fails with, and what the engine has died of when it is not started again: whoever has
    started the server may do better.

    announce: runs beside it, to tell how the loading goes.
    """
    stop, hurry = asyncio.Event(), asyncio.Event()

    def on_signal() -> None:
        (hurry if stop.is_set() else stop).set()

    loop = asyncio.get_running_loop()
    for number in _SIGNALS:
        loop.add_signal_handler(number, on_signal)
    await server.start(listener)
    announcing = asyncio.ensure_future(announce())
    try:
        await _unless(stop, _live(llm))
        await server.drain(hurry)
    finally:
        announcing.cancel()
        await server.close(farewell_s=_HURRIED_FAREWELL_S if hurry.is_set() else _FAREWELL_S)
        await _unless(hurry, llm.close())  # cancelled it kills the engine's process
        await asyncio.gather(announcing, return_exceptions=True)
        for number in _SIGNALS:
            loop.remove_signal_handler(number)


async def _live(llm: AsyncLLM) -> None:
    """Raises what loading fails with, or later what the engine has died of for good."""
    await llm.wait_ready()
    raise await llm.wait_end()


async def _unless(event: asyncio.Event, work: Coroutine[Any, Any, None]) -> bool:
    """Whether the work was done before the event, which cancels it. Raises what the work raises."""
    working, waiting = asyncio.ensure_future(work), asyncio.ensure_future(event.wait())
    try:
        await asyncio.wait((working, waiting), return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            return False
        working.result()
        return True
    finally:
        for task in (working, waiting):
            task.cancel()
        await asyncio.gather(working, waiting, return_exceptions=True)


def _allow_files(count: int) -> None:
    """Each connection is an open file, of which the system may allow fewer than it could."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    possible = count if hard == resource.RLIM_INFINITY else min(count, hard)
    if soft != resource.RLIM_INFINITY and soft < possible:
        resource.setrlimit(resource.RLIMIT_NOFILE, (possible, hard))
    if possible < count:
        logger.warning(
            "this process may have %d files open, of which `max_connections` could need %d; lower it", possible, count
        )


def listen(host: str, port: int) -> socket.socket:
    """A bound socket, so that what is wrong with the address is told before a model is loaded. Raises UsageError."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except (OSError, UnicodeError) as error:
        raise UsageError(f"`{host}` is not an address of this machine", "127.0.0.1 is this machine alone") from error
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(_BACKLOG)  # else two servers could bind, and the second would fail only after it has loaded
        listener.setblocking(False)
    except OSError as error:
        listener.close()
        problem = (error.strerror or str(error)).lower()
        raise UsageError(
            f"`{host}:{port}` can't be listened on: {problem}", "give another `--port`, or 0 for any free one"
        ) from error
    return listener
