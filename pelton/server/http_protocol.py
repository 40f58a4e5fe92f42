"""HTTP/1.1 on one connection, with a bound on everything that a client decides; it knows no route and no key.

uvicorn's protocol over llhttp does the parsing and ASGI. It bounds neither headers nor URL nor body and waits for them
without end, so that one connection could fill the memory and a few hundred silent ones the table of files. Here

* what comes is parsed in small pieces, and each limit is checked after every piece;
* one timer per connection says how long the present phase may take;
* a connection has one request at a time: what a client sends before it has its answer ends the connection after it;
* what two readers could understand differently is refused (request smuggling): llhttp is strict about Content-Length,
  Transfer-Encoding and line ends, and the rest is checked here.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from enum import Enum
from typing import Any, NoReturn

import httptools
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol
from uvicorn.server import ServerState

from pelton.config import ServerSettings
from pelton.server.errors import ApiError, error_body, unavailable
from pelton.server.limits import MAX_LARGEST_BODIES, MAX_REFUSALS_AT_ONCE, LingeringTransport, Traffic

logger = logging.getLogger(__name__)

_PIECE_BYTES = 16 << 10
# Bytes of chunk headers, beyond those that headers may have anyway, per byte of body: chunks of 40 bytes and more.
_FRAMING_PER_BODY = 1 / 8
_OVERLOADED_RETRY_S = 1.0


class _Phase(Enum):
    IDLE = "between requests"
    HEAD = "in the request line or the headers"
    BODY = "in the body"
    DEAF = "what comes is thrown away; the connection ends with its answer"


class _Refused(Exception):
    """Leaves the parser; what to answer is in `_refusal`."""


class HttpProtocol(HttpToolsProtocol):
    """One connection. settings: the limits; traffic: shared by all connections of the server."""

    transport: LingeringTransport

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        settings: ServerSettings,
        traffic: Traffic,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        super().__init__(config, server_state, {}, loop)
        self._settings = settings
        self._traffic = traffic
        self._phase = _Phase.IDLE
        self._timer: asyncio.TimerHandle | None = None
        self._write_timer: asyncio.TimerHandle | None = None
        self._refusal: ApiError | None = None
        self._is_counted = False
        self._num_requests = 0
        self._header_bytes = 0  # of the request line and the headers that the parser has told
        self._untold_bytes = 0  # of a header that is not at its end
        self._num_headers = 0
        self._body_bytes = 0
        self._held_bytes = 0  # this connection's share of traffic.body_bytes
        self._framing_bytes = 0

    # The connection

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        lingering = LingeringTransport(transport, self.loop, self._settings.write_timeout_s)
        if self._traffic.num_connections >= self._settings.max_connections:
            self._refuse_connection(lingering)
            return
        self._is_counted = True
        self._traffic.enter()
        super().connection_made(lingering)
        self._arm(self._settings.header_timeout_s, self._head_is_late)

    def connection_lost(self, exc: Exception | None) -> None:
        self._disarm()
        self._cancel_write_timer()
        self._release_body()
        self.transport.forget()
        if self._is_counted:
            self._traffic.leave()
        else:
            self._traffic.num_refusing -= 1
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._write_timer = self.loop.call_later(self._settings.write_timeout_s, self.transport.abort)

    def resume_writing(self) -> None:
        self._cancel_write_timer()
        super().resume_writing()

    def _refuse_connection(self, transport: LingeringTransport) -> None:
        self.transport = transport
        self.transport.expects_more = True
        self._phase = _Phase.DEAF
        self._traffic.num_refusing += 1
        self._traffic.num_refused["too_many_connections"] += 1
        if self._traffic.num_refusing > MAX_REFUSALS_AT_ONCE:
            transport.abort()
            return
        limit = self._settings.max_connections
        self._write_error(
            unavailable(
                f"all {limit} connections of this server are in use",
                "too_many_connections",
                retry_after_s=_OVERLOADED_RETRY_S,
            )
        )
        transport.close()

    # What comes in

    def data_received(self, data: bytes) -> None:
        rest = memoryview(data)
        while rest and self._phase is not _Phase.DEAF:
            self._feed(rest[:_PIECE_BYTES])
            rest = rest[_PIECE_BYTES:]
        if rest:
            self.transport.discard(len(rest))

    def _feed(self, piece: memoryview) -> None:
        phase, header_bytes, body_bytes = self._phase, self._header_bytes, self._body_bytes
        try:
            self.parser.feed_data(piece)
            self._untold_bytes = 0 if self._header_bytes != header_bytes else self._untold_bytes + len(piece)
            if self._phase is _Phase.HEAD:
                self._check_header_bytes()
            elif phase is self._phase is _Phase.BODY:
                self._framing_bytes += len(piece) - (self._body_bytes - body_bytes)
                self._check_framing()
        except httptools.HttpParserUpgrade as stop:
            self._decline_upgrade(piece[stop.args[0] :])
        except (httptools.HttpParserError, _Refused):
            self._refuse(self._refusal or ApiError(400, "this is not a request of HTTP/1.1", code="invalid_http"))

    def _decline_upgrade(self, rest: memoryview) -> None:
        """Reads the request once more without the offer, as the standard allows: the parser would lose its body."""
        lines = [b"%s %s HTTP/%s" % (self.parser.get_method(), self.url, self.parser.get_http_version().encode())]
        lines += [b"%s: %s" % header for header in self.headers if header[0] != b"upgrade"]
        self.parser = httptools.HttpRequestParser(self)
        self._feed(memoryview(b"\r\n".join((*lines, b"", b"")) + rest))

    def on_message_begin(self) -> None:
        if self.cycle is not None and not self.cycle.response_complete:
            self._fail(ApiError(400, "the next request came before the answer to the last one", code="invalid_http"))
        super().on_message_begin()
        self._phase = _Phase.HEAD
        self.transport.expects_more = True
        self._header_bytes = self._untold_bytes = self._num_headers = 0
        self._body_bytes = self._framing_bytes = 0
        self._arm(self._settings.header_timeout_s, self._head_is_late)

    def on_url(self, url: bytes) -> None:
        self._header_bytes += len(url)
        super().on_url(url)
        limit = self._settings.max_url_bytes
        if len(self.url) > limit:
            self._fail(ApiError(414, f"the URL is longer than the {limit} bytes allowed"))

    def on_header(self, name: bytes, value: bytes) -> None:
        self._header_bytes += len(name) + len(value) + len(b": \r\n")
        self._untold_bytes = 0
        self._num_headers += 1
        self._check_header_bytes()
        limit = self._settings.max_headers
        if self._num_headers > limit:
            self._fail(ApiError(431, f"the request has more than the {limit} headers allowed"))
        if self._phase is _Phase.HEAD:
            super().on_header(name, value)
        # Else it is a trailer of a chunked body, which nobody asked for: it must not pass as a header.

    def on_headers_complete(self) -> None:
        self._check_head()
        if self.parser.should_upgrade():
            return  # it comes once more
        super().on_headers_complete()
        self._phase = _Phase.BODY
        self._num_requests += 1
        if self._num_requests >= self._settings.max_connection_requests:
            self.cycle.keep_alive = False
        self._arm(self._settings.body_timeout_s, self._body_is_late)

    def on_body(self, body: bytes) -> None:
        self._body_bytes += len(body)
        limit = self._settings.max_body_bytes
        if self._body_bytes > limit:
            self._fail(_too_large(limit))
        self._held_bytes += len(body)
        self._traffic.body_bytes += len(body)
        if self._traffic.body_bytes > limit * MAX_LARGEST_BODIES:
            self._fail(unavailable("too many large requests at once", "overloaded", retry_after_s=_OVERLOADED_RETRY_S))
        super().on_body(body)

    def on_message_complete(self) -> None:
        if self.parser.should_upgrade():
            return
        super().on_message_complete()
        self._phase = _Phase.IDLE
        self.transport.expects_more = False
        self._disarm()

    def on_response_complete(self) -> None:
        """After the answer; uvicorn's pipeline is always empty here."""
        self.server_state.total_requests += 1
        self._release_body()
        if self._phase is _Phase.BODY:
            self._end()  # nobody wants the rest
        elif not self.transport.is_closing():
            self.flow.resume_reading()
            self._arm(self._settings.keep_alive_timeout_s, self.transport.close)

    # Limits

    def _check_header_bytes(self) -> None:
        limit = self._settings.max_header_bytes
        if self._header_bytes + self._untold_bytes > limit:
            self._fail(ApiError(431, f"the request's headers are larger than the {limit} bytes allowed"))

    def _check_framing(self) -> None:
        if self._framing_bytes > self._settings.max_header_bytes + self._body_bytes * _FRAMING_PER_BODY:
            self._fail(ApiError(400, "the body's chunks are too small for its size", code="invalid_http"))

    def _check_head(self) -> None:
        """What llhttp lets pass and an intermediary might read differently, or what can't be served."""
        version = self.parser.get_http_version()
        if version not in ("1.0", "1.1"):
            self._fail(ApiError(505, f"HTTP/{version} is not spoken here, only HTTP/1.1", code="invalid_http"))
        if self.parser.get_method() == b"CONNECT":
            self._fail(ApiError(501, "this is no proxy: `CONNECT` is not possible", code="invalid_http"))
        hosts = [value for name, value in self.headers if name == b"host"]
        if len(hosts) > 1 or (not hosts and version == "1.1"):
            self._fail(ApiError(400, "the request must have one `Host` header", code="invalid_http"))
        if not self.url.startswith((b"/", b"*")) and self.url.partition(b"://")[2].partition(b"/")[0] not in hosts:
            self._fail(ApiError(400, "the URL must be a path, or name the host as `Host` does", code="invalid_http"))
        for name, value in self.headers:
            if name == b"transfer-encoding" and (value.lower() != b"chunked" or version == "1.0"):
                self._fail(ApiError(501, "of transfer encodings only `chunked` is taken", code="invalid_http"))
            if name == b"content-length" and int(value) > self._settings.max_body_bytes:
                self._fail(_too_large(self._settings.max_body_bytes))
            if name == b"content-encoding" and value.lower() != b"identity":
                self._fail(
                    ApiError(415, "bodies are taken as they are, without `Content-Encoding`", code="invalid_http")
                )
            if name == b"expect" and value.lower() != b"100-continue":
                self._fail(ApiError(417, "of expectations only `100-continue` is met", code="invalid_http"))

    def _head_is_late(self) -> None:
        if self._phase is _Phase.IDLE and not self._untold_bytes:
            self.transport.close()  # it never asked anything
            return
        limit = self._settings.header_timeout_s
        self._refuse(ApiError(408, f"the request's headers took longer than the {limit:g} s allowed"))

    def _body_is_late(self) -> None:
        limit = self._settings.body_timeout_s
        self._refuse(ApiError(408, f"the request's body took longer than the {limit:g} s allowed"))

    # Ends

    def _fail(self, error: ApiError) -> NoReturn:
        """From within the parser, which wraps what its callbacks raise."""
        self._refusal = error
        raise _Refused

    def _refuse(self, error: ApiError) -> None:
        """Answers in place of a handler where nothing has been answered yet, and ends the connection."""
        self._traffic.num_refused[error.code] += 1
        logger.debug("refused a request of %s: %s", self.client, error.message)
        is_in_body = self._phase is _Phase.BODY
        self._phase = _Phase.DEAF
        self._disarm()
        if self.cycle is None or self.cycle.response_complete:
            self._write_error(error)
            self.transport.close()
        elif not is_in_body:
            self._end_after_answer()  # the answer under way is to the request before
        elif self.cycle.response_started:
            self.transport.abort()
        else:
            self._write_error(error)
            self._end()

    def _end(self) -> None:
        """Ends a connection whose request is incomplete; its handler is told that the client has left."""
        self._phase = _Phase.DEAF
        self.cycle.disconnected = True
        self.cycle.message_event.set()
        self._disarm()
        self._release_body()
        self.transport.close()

    def _end_after_answer(self) -> None:
        self._phase = _Phase.DEAF
        self.transport.expects_more = True
        self._disarm()
        self.cycle.keep_alive = False

    def _write_error(self, error: ApiError) -> None:
        body = error_body(error)
        fields = {
            **error.headers,
            "content-type": "application/json",
            "content-length": str(len(body)),
            "connection": "close",
        }
        lines = b"".join(f"{name}: {value}\r\n".encode() for name, value in fields.items())
        self.transport.write(b"".join((STATUS_LINE[error.status], lines, b"\r\n", body)))

    def _release_body(self) -> None:
        self._traffic.body_bytes -= self._held_bytes
        self._held_bytes = 0

    def _arm(self, seconds: float, act: Callable[[], Any]) -> None:
        """The one timer of the phase: a new one takes the place of the last."""
        self._disarm()
        self._timer = self.loop.call_later(seconds, act)

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _cancel_write_timer(self) -> None:
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None


def _too_large(limit: int) -> ApiError:
    return ApiError(413, f"the body is larger than the {limit} bytes allowed")
