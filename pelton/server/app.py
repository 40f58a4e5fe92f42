"""From a table of routes to an ASGI application: who may ask what, when, and how an answer or an error leaves.

It knows no dialect and no model: a handler gets the request with its whole body, and is cancelled if the client leaves.
"""

from __future__ import annotations

import asyncio
import logging
import re
import uuid
from collections.abc import Awaitable, Callable, Sequence

import msgspec
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match
from starlette.routing import Route as PathPattern
from starlette.types import Message, Receive, Scope, Send

from pelton.server.auth import Guard
from pelton.server.context import ServerContext
from pelton.server.cors import allow, is_preflight, preflight_response
from pelton.server.errors import ApiError, error_response, from_exception, unavailable
from pelton.server.request_log import RequestRecord

logger = logging.getLogger(__name__)

Handler = Callable[[Request, ServerContext], Awaitable[Response]]

_REQUEST_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")
_CLIENT_LEFT = 499  # nobody receives it: for the log, as nginx writes it
_LOADING_RETRY_S = 1.0


class Route(msgspec.Struct, frozen=True):
    """One line of the table.

    methods:         GET brings HEAD with it.
    path:            as Starlette's: `/v1/models/{model_id:path}`; request.path_params has what stood there.
    is_open:         answers without a key.
    needs_model:     while the model loads and once the server drains, 503 is answered in its place.
    max_body_bytes:  None: the server's limit.
    """

    methods: tuple[str, ...]
    path: str
    handler: Handler
    is_open: bool = False
    needs_model: bool = True
    max_body_bytes: int | None = None


class Application:
    """The ASGI application. Order: route, key, method, whether the model is there, body, handler."""

    def __init__(self, routes: Sequence[Route], context: ServerContext, guard: Guard | None = None) -> None:
        self.routes = tuple(routes)
        self.context = context
        self.guard = guard or Guard()
        self._patterns = [
            PathPattern(route.path, route.handler, methods=route.methods, name=route.path) for route in routes
        ]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        assert scope["type"] == "http", "the server speaks HTTP alone"
        exchange = _Exchange(scope, receive, send, self.guard)
        try:
            response = await self._answer(exchange)
            await response(exchange.scope, exchange.receive, exchange.send)
        except _ClientLeft:
            pass
        finally:
            if exchange.record.status is None:
                exchange.record.status = _CLIENT_LEFT
            self.context.finish(exchange.record, is_quiet=exchange.is_quiet)

    async def _answer(self, exchange: _Exchange) -> Response:
        try:
            return await self._dispatch(exchange)
        except _ClientLeft:
            raise
        except Exception as error:  # noqa: BLE001 (a fault in a handler is one request's)
            return self._failure(exchange, error)

    async def _dispatch(self, exchange: _Exchange) -> Response:
        route, methods = self._match(exchange)
        if exchange.may_share and is_preflight(exchange.scope["method"], exchange.headers):
            return preflight_response(exchange.headers, methods)
        exchange.is_quiet = route is not None and route.is_open
        self.guard.check_sender(exchange.headers)
        if route is None or not route.is_open:  # what is not in the table is not open either
            exchange.scope["state"]["tenant"] = self.guard.check_key(exchange.headers)
        if route is None and not methods:
            raise ApiError(404, f"there is nothing at `{exchange.scope['path']}`")
        if route is None:
            allowed = ", ".join(sorted(methods))
            raise ApiError(
                405, f"`{exchange.scope['method']}` is not possible here, only {allowed}", headers={"allow": allowed}
            )
        if route.needs_model:
            self._check_is_ready()
        else:
            exchange.is_quiet = True
        limit = self.context.settings.max_body_bytes
        await exchange.read_body(min(limit, route.max_body_bytes or limit))
        request = Request(exchange.scope, exchange.receive)
        return await exchange.unless_client_leaves(route.handler(request, self.context))

    def _match(self, exchange: _Exchange) -> tuple[Route | None, set[str]]:
        """The route, or None and the methods that there would be."""
        methods: set[str] = set()
        for route, pattern in zip(self.routes, self._patterns, strict=True):
            match, found = pattern.matches(exchange.scope)
            if match is Match.FULL:
                exchange.scope.update(found)
                exchange.record.route = route.path
                return route, set()
            if match is Match.PARTIAL:
                exchange.record.route = route.path
                methods |= pattern.methods or set()
        return None, methods

    def _check_is_ready(self) -> None:
        if self.context.is_draining:
            raise unavailable(
                "the server is shutting down", "shutting_down", retry_after_s=self.context.settings.drain_timeout_s
            )
        status = self.context.llm.status
        if status.startswith("loading"):
            raise unavailable(f"the model is {status}", "model_loading", retry_after_s=_LOADING_RETRY_S)
        if status.startswith(("dead", "closed")):
            raise ApiError(503, f"the engine is {status}", code="engine_dead")

    def _failure(self, exchange: _Exchange, error: Exception) -> Response:
        told = from_exception(error)
        exchange.record.error_code = told.code
        if isinstance(error, ApiError) and told.status == 500:
            logger.error("request %s failed: %s", exchange.record.request_id, error)
        elif told.status == 500:  # nobody foresaw it
            logger.error("request %s failed", exchange.record.request_id, exc_info=error)
        return error_response(told, exchange.record.request_id)


class _ClientLeft(Exception):
    """The connection is gone: there is nobody to answer."""


class _Exchange:
    """One request and its answer: what ASGI's three arguments are, with the body read and the id set."""

    def __init__(self, scope: Scope, receive: Receive, send: Send, guard: Guard) -> None:
        self.headers = Headers(scope=scope)
        self._origin = self.headers.get("origin")
        self.may_share = self._origin is not None and guard.allows_origin(self._origin)
        given_id = self.headers.get("x-request-id", "")
        request_id = given_id if _REQUEST_ID.fullmatch(given_id) else f"req_{uuid.uuid4().hex}"
        self.record = RequestRecord(request_id, scope["method"], "")
        self.scope = {**scope, "state": {**scope.get("state", {}), "record": self.record, "tenant": ""}}
        self.is_quiet = False  # probes and scrapes come all the time
        self._receive = receive
        self._send = send
        self._body: bytes | None = None

    async def read_body(self, max_bytes: int) -> None:
        """Raises ApiError (413) as soon as there is more."""
        parts: list[bytes] = []
        num_bytes = 0
        while True:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise _ClientLeft
            num_bytes += len(message.get("body", b""))
            if num_bytes > max_bytes:
                raise ApiError(
                    413, f"the body is larger than the {max_bytes} bytes allowed", headers={"connection": "close"}
                )
            parts.append(message.get("body", b""))
            if not message.get("more_body", False):
                break
        self._body = b"".join(parts)

    async def receive(self) -> Message:
        """The whole body, then what comes: a disconnect."""
        if self._body is not None:
            body, self._body = self._body, None
            return {"type": "http.request", "body": body, "more_body": False}
        return await self._receive()

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.record.status = message["status"]
            headers = MutableHeaders(raw=message["headers"])
            headers.setdefault("x-request-id", self.record.request_id)
            if self.may_share and self._origin is not None:
                allow(headers, self._origin)
        await self._send(message)

    async def unless_client_leaves(self, answer: Awaitable[Response]) -> Response:
        """Cancels the handler when the client disconnects; raises _ClientLeft then."""
        handler = asyncio.ensure_future(answer)
        leaving = asyncio.ensure_future(self._receive())
        try:
            await asyncio.wait((handler, leaving), return_when=asyncio.FIRST_COMPLETED)
            if handler.done():
                return handler.result()
            raise _ClientLeft
        finally:
            for task in (handler, leaving):
                task.cancel()
            await asyncio.gather(handler, leaving, return_exceptions=True)
