"""Server-sent events: frames, pings while nothing comes, and the end when the client has gone. It knows no event."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

DONE = b"data: [DONE]\n\n"
# A comment: clients skip it, but proxies and users see that the connection lives.
_PING = b": ping\n\n"
_HEADERS = {
    "content-type": "text/event-stream; charset=utf-8",
    "cache-control": "no-cache",
    "x-accel-buffering": "no",
}


def event(data: bytes) -> bytes:
    """data: one line."""
    return b"data: " + data + b"\n\n"


class EventStream(Response):
    """Sends events as they come, one write for each item of `events`, which it closes in any case.

    A slow client slows the reading of `events` down: whoever makes them then has more to say at once.
    """

    def __init__(
        self,
        events: AsyncGenerator[bytes, None],
        *,
        ping_interval_s: float,
        tell_error: Callable[[Exception], bytes],
        headers: Mapping[str, str],
    ) -> None:
        """tell_error: what is sent last if `events` fails after the answer has begun."""
        super().__init__(headers={**_HEADERS, **headers})
        del self.headers["content-length"]
        self._events = events
        self._ping_interval_s = ping_interval_s
        self._tell_error = tell_error
        self._first: asyncio.Task[bytes] | None = None
        self._sent_at = asyncio.get_running_loop().time()
        self._is_over = False

    async def begin(self) -> EventStream:
        """Waits for the first event, but no longer than until a ping is due. Raises what `events` raises meanwhile.

        So what is refused has a status of its own, though the status of a stream is sent before its end is known.
        """
        self._first = asyncio.ensure_future(anext(self._events))
        try:
            await asyncio.wait((self._first,), timeout=self._ping_interval_s)
            if self._first.done():
                self._first.result()
        except BaseException:
            await self._close()
            raise
        return self

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        tasks: list[asyncio.Future[Any]] = []
        try:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            sending = asyncio.ensure_future(self._send_all(send))
            leaving = asyncio.ensure_future(receive())  # the request's body is read: what comes now is the end
            tasks = [sending, leaving, asyncio.ensure_future(self._ping(send))]
            await asyncio.wait((sending, leaving), return_when=asyncio.FIRST_COMPLETED)
            if sending.done():
                sending.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await self._close()

    async def _send_all(self, send: Send) -> None:
        try:
            if self._first is not None:
                await self._send(send, await self._first)
            async for data in self._events:
                await self._send(send, data)
        except Exception as error:  # noqa: BLE001 (it is told, and the answer ends)
            await self._send(send, self._tell_error(error))
        self._is_over = True
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _send(self, send: Send, data: bytes) -> None:
        await send({"type": "http.response.body", "body": data, "more_body": True})
        self._sent_at = asyncio.get_running_loop().time()

    async def _ping(self, send: Send) -> None:
        while not self._is_over:
            silent_s = asyncio.get_running_loop().time() - self._sent_at
            if silent_s >= self._ping_interval_s:
                await self._send(send, _PING)
            else:
                await asyncio.sleep(self._ping_interval_s - silent_s)

    async def _close(self) -> None:
        if self._first is not None:
            self._first.cancel()
            await asyncio.gather(self._first, return_exceptions=True)
        await self._events.aclose()
