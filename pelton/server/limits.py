"""What all connections of a server hold together, and how one of them ends; it knows no HTTP."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import msgspec

# Bodies that wait for their handlers, all together, in bodies of the largest size.
MAX_LARGEST_BODIES = 8
# Connections beyond the limit that are being told so; further ones are cut.
MAX_REFUSALS_AT_ONCE = 256
# Time that a client has to read an answer that came while it was still sending.
LINGER_S = 2.0
_MAX_DISCARDED_BYTES = 64 << 20


class Traffic(msgspec.Struct):
    """num_refused: per code of the error, requests and connections that no handler saw.

    is_empty: set while there is no connection.
    """

    num_connections: int = 0
    num_refusing: int = 0
    body_bytes: int = 0
    num_refused: Counter[str] = msgspec.field(default_factory=Counter)
    is_empty: asyncio.Event = msgspec.field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self.is_empty.set()

    def enter(self) -> None:
        self.num_connections += 1
        self.is_empty.clear()

    def leave(self) -> None:
        self.num_connections -= 1
        if self.num_connections == 0:
            self.is_empty.set()


class LingeringTransport(asyncio.Transport):
    """A transport that can be closed while the other end is still sending.

    A socket that is closed with unread data resets the connection, and the client loses the answer that was on its way
    to it. So writing ends first, what comes is thrown away for a while, and then the socket is closed.

    expects_more: set by the protocol while the request is not at its end.
    """

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop, write_timeout_s: float) -> None:
        super().__init__()
        self._transport = transport
        self._loop = loop
        self._write_timeout_s = write_timeout_s
        self._end: asyncio.TimerHandle | None = None
        self._num_discarded = 0
        self._is_lingering = False
        self.expects_more = False

    def close(self) -> None:
        """Once all is written; a client that does not read it or does not stop sending is cut off after its time."""
        if self.is_closing():
            return
        if self.expects_more:
            self._is_lingering = True
            self._transport.resume_reading()
            self._transport.write_eof()
            self._end = self._loop.call_later(LINGER_S, self.abort)
        else:
            self._transport.close()
            self._end = self._loop.call_later(self._write_timeout_s, self.abort)

    def discard(self, num_bytes: int) -> None:
        """Counts what came and is not wanted."""
        self._num_discarded += num_bytes
        if self._num_discarded > _MAX_DISCARDED_BYTES:
            self.abort()

    def forget(self) -> None:
        """The connection is lost: no timer is needed any more."""
        if self._end is not None:
            self._end.cancel()

    def is_closing(self) -> bool:
        return self._is_lingering or self._transport.is_closing()

    def abort(self) -> None:
        self._transport.abort()

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self._transport.write(data)

    def pause_reading(self) -> None:
        self._transport.pause_reading()

    def resume_reading(self) -> None:
        self._transport.resume_reading()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._transport.get_extra_info(name, default)
