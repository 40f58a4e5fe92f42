"""Frames between the HTTP side and the engine process: four bytes of length, then one message as msgpack.

Here are the frames and the engine's end of the connection; the client's end is engine/process.py's. It does not know
what the messages mean.
"""

from __future__ import annotations

import socket
import struct
from typing import Generic, TypeVar, cast

import msgspec

from pelton.engine.messages import AddRequest, ToClient, ToEngine
from pelton.errors import EngineDeadError, PeltonError, RequestError

# A prompt of 13 million tokens, or the log-probabilities of a step of 200,000: more is a fault.
MAX_FRAME_BYTES = 64 << 20
READ_BYTES = 256 << 10

_LENGTH = struct.Struct("<I")
_ENCODER = msgspec.msgpack.Encoder()

M = TypeVar("M")


class ChannelError(EngineDeadError):
    """The connection can't go on: a broken frame, or an end that does not read."""


class ChannelClosedError(ChannelError):
    """The other end is gone, and nothing is missing of what it said."""


def frame(message: ToEngine | ToClient) -> bytes:
    """A message as bytes. Raises ChannelError if it is too large."""
    data = bytearray(_LENGTH.size)
    _ENCODER.encode_into(message, data, _LENGTH.size)
    num_bytes = len(data) - _LENGTH.size
    if num_bytes > MAX_FRAME_BYTES:
        raise ChannelError(f"a message has `{num_bytes}` bytes; a frame holds `{MAX_FRAME_BYTES}`")
    _LENGTH.pack_into(data, 0, num_bytes)
    return bytes(data)


def check_readable(request: AddRequest) -> None:
    """Raises RequestError for a request with values that the engine can't read: their frame would end it, and with it
    all other requests."""
    try:
        msgspec.msgpack.decode(_ENCODER.encode(request), type=AddRequest)
    except (msgspec.MsgspecError, PeltonError, TypeError, ValueError, OverflowError) as error:
        raise RequestError(f"the request can't be told to the engine: {error}") from error


class FrameReader(Generic[M]):
    """Cuts a stream of bytes into messages."""

    def __init__(self, message_type: object) -> None:
        self._decoder = msgspec.msgpack.Decoder(cast("type[M]", message_type))
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[M]:
        """The messages that are complete with these bytes. Raises ChannelError for a frame that is none."""
        self._buffer += data
        messages = []
        start, end = 0, len(self._buffer)
        with memoryview(self._buffer) as view:
            while end - start >= _LENGTH.size:
                (num_bytes,) = _LENGTH.unpack_from(view, start)
                if num_bytes > MAX_FRAME_BYTES:
                    raise ChannelError(f"a frame announces `{num_bytes}` bytes; at most `{MAX_FRAME_BYTES}` are taken")
                first = start + _LENGTH.size
                if end - first < num_bytes:
                    break
                start = first + num_bytes
                messages.append(self._decode(bytes(view[first:start])))
        del self._buffer[:start]
        return messages

    def end(self) -> ChannelError:
        """What it means that no more bytes come."""
        if self._buffer:
            return ChannelError(f"the connection ended within a frame, after `{len(self._buffer)}` bytes of it")
        return ChannelClosedError("the connection was closed")

    def _decode(self, data: bytes) -> M:
        try:
            return self._decoder.decode(data)
        except (msgspec.MsgspecError, PeltonError, ValueError, RecursionError) as error:
            raise ChannelError(f"a frame holds no message: {error}") from error


class EngineChannel:
    """The engine's end: read between steps, waited for when there is nothing to do."""

    def __init__(self, connection: socket.socket, *, send_timeout_s: float = 60.0) -> None:
        """send_timeout_s: how long the client may leave what is sent unread."""
        self._connection = connection
        self._send_timeout_s = send_timeout_s
        self._reader: FrameReader[ToEngine] = FrameReader(ToEngine)

    def receive(self, *, wait: bool) -> list[ToEngine]:
        """The messages that have come. wait: sleep until something comes, which may be less than a whole message.

        Raises ChannelClosedError when the client has gone, ChannelError when what it says is broken.
        """
        self._connection.settimeout(None if wait else 0.0)
        try:
            data = self._connection.recv(READ_BYTES)
        except BlockingIOError:
            return []
        except ConnectionResetError:
            data = b""
        if not data:
            raise self._reader.end()
        return self._reader.feed(data)

    def send(self, message: ToClient) -> None:
        """Hands a message over. Nothing is kept here: if the client does not read, the engine waits.

        Raises ChannelClosedError when the client has gone, ChannelError when it has not read for too long.
        """
        self._connection.settimeout(self._send_timeout_s)
        try:
            self._connection.sendall(frame(message))
        except TimeoutError as error:
            raise ChannelError(f"the client has read nothing for `{self._send_timeout_s}` seconds") from error
        except (BrokenPipeError, ConnectionResetError) as error:
            raise ChannelClosedError("the client has gone") from error

    def close(self) -> None:
        self._connection.close()
