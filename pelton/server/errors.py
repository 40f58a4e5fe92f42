"""What a client is told when something is wrong: one shape and one serialiser for every route; it knows no route.

The shape and the names are OpenAI's: {"error": {"message", "type", "param", "code"}}. Clients decide by the status, by
`code`, and by a few headers whether to try again.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import msgspec
from starlette.responses import Response

from pelton.errors import (
    ChatTemplateError,
    ContextLengthError,
    EngineDeadError,
    OverloadError,
    QuarantineError,
    QueueFullError,
    RequestError,
    UsageError,
)

# A message quotes what the client sent, and an answer must not be larger than its question. JSON writes a character in
# six bytes at most.
_MAX_BODY_BYTES = 2048
_MAX_PARAM_CHARS = 80
_CUT_CHARS = 220
_TYPES = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}
_CODES = {
    400: "invalid_request",
    401: "invalid_api_key",
    403: "forbidden",
    404: "not_found",
    405: "method_not_allowed",
    408: "timeout",
    413: "request_too_large",
    414: "url_too_long",
    429: "rate_limit_exceeded",
    431: "headers_too_large",
    503: "unavailable",
}


class ApiError(Exception):
    """An answer that is an error.

    status:  of HTTP. type, code: OpenAI's names; by default those of the status.
    param:   the field that is wrong, as `messages[0].content`.
    headers: to send beside it.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        type: str | None = None,
        code: str | None = None,
        param: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.type = type or _TYPES.get(status, "invalid_request_error" if status < 500 else "server_error")
        self.code = code or _CODES.get(status, "internal_error")
        self.param = param
        self.headers = dict(headers or {})


def error_body(error: ApiError) -> bytes:
    """The JSON document of an error: an answer's body, or the data of a stream's last event. At most 2 KiB."""
    body = _encode(error.message, error)
    if len(body) > _MAX_BODY_BYTES:
        body = _encode(f"{error.message[:_CUT_CHARS]}…", error)
    return body


def _encode(message: str, error: ApiError) -> bytes:
    param = error.param if error.param is None else error.param[:_MAX_PARAM_CHARS]
    described = {"message": message, "type": error.type, "param": param, "code": error.code}
    return msgspec.json.encode({"error": described})


def error_response(error: ApiError, request_id: str) -> Response:
    headers = {**error.headers, "x-request-id": request_id}
    return Response(error_body(error), error.status, headers, "application/json")


def unavailable(message: str, code: str, *, retry_after_s: float) -> ApiError:
    """503: not now, but a try after so long may succeed."""
    return ApiError(503, message, code=code, headers=_retry_headers(retry_after_s))


def from_exception(error: Exception) -> ApiError:
    """What a client may know of an exception. What Pelton did not foresee says nothing of itself: the log has it."""
    match error:
        case ApiError():
            return error
        case ContextLengthError():
            return ApiError(400, str(error), code="context_length_exceeded")
        case RequestError() | UsageError():
            return ApiError(400, str(error), code="invalid_value")
        case ChatTemplateError():
            return ApiError(400, str(error), code="invalid_value", param="messages")
        case QueueFullError():
            return ApiError(429, str(error), headers=_retry_headers(error.retry_after_s))
        case OverloadError():
            return unavailable(str(error), "overloaded", retry_after_s=error.retry_after_s)
        case QuarantineError():
            return ApiError(500, str(error), code="request_quarantined", headers={"x-should-retry": "false"})
        case EngineDeadError():
            return ApiError(503, str(error), code="engine_dead")
        case _:
            return ApiError(500, "this is a fault of the server; its log says more under this request's id")


def _retry_headers(retry_after_s: float) -> dict[str, str]:
    """Whole seconds by the standard, milliseconds for OpenAI's clients, and that a new try is welcome."""
    milliseconds = math.ceil(retry_after_s * 1000)
    return {
        "retry-after": str(math.ceil(milliseconds / 1000)),
        "retry-after-ms": str(milliseconds),
        "x-should-retry": "true",
    }
