"""The least HTTP client that a load test needs: POST a JSON body, read an answer's events as they come.

It speaks HTTP/1.1 over asyncio's streams, so that the client costs the machine little. It knows no API.
"""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Mapping
from typing import Any
from urllib.parse import urlsplit

import msgspec

from pelton.errors import DownloadError, UsageError

_MAX_LINE_BYTES = 1 << 20
_MAX_BODY_BYTES = 64 << 20


class Endpoint(msgspec.Struct, frozen=True):
    """A server. path_prefix: what stands before `/v1/...`, without a slash at its end."""

    host: str
    port: int
    is_tls: bool
    path_prefix: str

    @classmethod
    def parse(cls, url: str) -> Endpoint:
        """Raises UsageError if it is not `http://host[:port][/prefix]`."""
        parts = urlsplit(url if "://" in url else f"http://{url}")
        try:
            port = parts.port
        except ValueError as error:
            raise UsageError(f"`{url}` has no valid port") from error
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
            raise UsageError(f"`{url}` is not the address of a server", "give one as `http://127.0.0.1:8000`")
        is_tls = parts.scheme == "https"
        prefix = parts.path.rstrip("/").removesuffix("/v1")
        return cls(parts.hostname, port or (443 if is_tls else 80), is_tls, prefix)

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'https' if self.is_tls else 'http'}://{host}:{self.port}{self.path_prefix}"


class HttpError(Exception):
    """An answer other than 200. message: the server's own, cut."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"{status}: {message}")
        self.status = status
        self.message = message


async def get_json(endpoint: Endpoint, path: str, headers: Mapping[str, str]) -> Any:
    """Raises HttpError, or DownloadError if the server can't be reached."""
    async with asyncio.timeout(30):
        connection = await _Connection.open(endpoint, "GET", path, headers, b"")
        try:
            return _decoded(await connection.body())
        finally:
            connection.close()


async def post_events(
    endpoint: Endpoint, path: str, headers: Mapping[str, str], body: Mapping[str, Any]
) -> AsyncIterator[dict[str, Any]]:
    """The events of an answer of type `text/event-stream`, up to `[DONE]`.

    Raises HttpError on another status or an `error` event, DownloadError if the connection fails or ends early.
    """
    connection = await _Connection.open(endpoint, "POST", path, headers, json.dumps(body).encode())
    try:
        async for line in connection.lines():
            if not line.startswith(b"data:"):
                continue  # a comment, or the blank line between events
            data = line[5:].strip()
            if data == b"[DONE]":
                return
            event = _decoded(data)
            if isinstance(event, dict) and event.get("error"):
                raise HttpError(200, _message_of(event))
            yield event
        raise DownloadError(f"`{endpoint}` ended a stream without `[DONE]`")
    finally:
        connection.close()


class _Connection:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._is_chunked = False
        self._length: int | None = None

    @classmethod
    async def open(
        cls, endpoint: Endpoint, method: str, path: str, headers: Mapping[str, str], body: bytes
    ) -> _Connection:
        """Sends the request and reads the head of the answer."""
        context = ssl.create_default_context() if endpoint.is_tls else None
        try:
            reader, writer = await asyncio.open_connection(
                endpoint.host, endpoint.port, ssl=context, limit=_MAX_LINE_BYTES
            )
        except OSError as error:
            raise DownloadError(f"`{endpoint}` can't be reached: {error.strerror or error}") from error
        connection = cls(reader, writer)
        fields = {"Host": f"{endpoint.host}:{endpoint.port}", "Connection": "close", "Accept": "*/*", **headers}
        if body:
            fields |= {"Content-Type": "application/json", "Content-Length": str(len(body))}
        head = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
        writer.write(f"{method} {endpoint.path_prefix}{path} HTTP/1.1\r\n{head}\r\n".encode() + body)
        try:
            await connection._read_head(endpoint)
        except BaseException:
            connection.close()
            raise
        return connection

    async def _read_head(self, endpoint: Endpoint) -> None:
        try:
            status_line = await self._reader.readline()
            status = int(status_line.split(None, 2)[1])
            while (line := await self._reader.readline()) not in (b"\r\n", b""):
                name, _, value = line.partition(b":")
                if name.lower() == b"transfer-encoding":
                    self._is_chunked = b"chunked" in value.lower()
                elif name.lower() == b"content-length":
                    self._length = int(value)
        except (OSError, ValueError, IndexError) as error:
            raise DownloadError(f"`{endpoint}` does not answer in HTTP") from error
        if status != 200:
            raise HttpError(status, _message_of(await self.body()))

    async def body(self) -> bytes:
        parts = []
        size = 0
        async for part in self._parts():
            size += len(part)
            if size > _MAX_BODY_BYTES:
                raise DownloadError(f"an answer is longer than `{_MAX_BODY_BYTES}` bytes")
            parts.append(part)
        return b"".join(parts)

    async def lines(self) -> AsyncIterator[bytes]:
        rest = b""
        async for part in self._parts():
            *whole, rest = (rest + part).split(b"\n")
            if len(rest) > _MAX_LINE_BYTES:
                raise DownloadError(f"an event is longer than `{_MAX_LINE_BYTES}` bytes")
            for line in whole:
                yield line

    async def _parts(self) -> AsyncIterator[bytes]:
        """The body as it comes, without its framing."""
        try:
            if self._is_chunked:
                while size := int((await self._reader.readline()).partition(b";")[0], 16):
                    yield await self._reader.readexactly(size)
                    await self._reader.readexactly(2)
            elif self._length is not None:
                yield await self._reader.readexactly(self._length)
            else:
                while part := await self._reader.read(1 << 16):
                    yield part
        except (OSError, ValueError, asyncio.IncompleteReadError) as error:
            raise DownloadError("the server closed the connection within an answer") from error

    def close(self) -> None:
        self._writer.close()


def _decoded(data: bytes) -> Any:
    try:
        return json.loads(data)
    except ValueError as error:
        raise DownloadError("the server's answer is not JSON") from error


def _message_of(answer: Any) -> str:
    """What the server says is wrong, from OpenAI's shape of an error or from any other text."""
    if isinstance(answer, bytes):
        try:
            answer = json.loads(answer)
        except ValueError:
            return str(answer[:200], "utf-8", "replace")
    error = answer.get("error", answer) if isinstance(answer, dict) else answer
    message = error.get("message", error) if isinstance(error, dict) else error
    return str(message)[:200]
