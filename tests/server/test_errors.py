"""The one shape of errors: what clients decide by, and that no answer is larger than it need be."""

from __future__ import annotations

import json

import pytest

from pelton.errors import (
    ChatTemplateError,
    ContextLengthError,
    EngineDeadError,
    QuarantineError,
    QueueFullError,
    QueueTimeoutError,
    RequestError,
    TokenizerError,
    UsageError,
)
from pelton.server.errors import ApiError, error_body, error_response, from_exception


@pytest.mark.parametrize(
    ("error", "status", "kind", "code"),
    [
        (ContextLengthError("long"), 400, "invalid_request_error", "context_length_exceeded"),
        (RequestError("no"), 400, "invalid_request_error", "invalid_value"),
        (UsageError("no", "so"), 400, "invalid_request_error", "invalid_value"),
        (ChatTemplateError("roles must alternate"), 400, "invalid_request_error", "invalid_value"),
        (QueueFullError("full", retry_after_s=3), 429, "rate_limit_error", "rate_limit_exceeded"),
        (QueueTimeoutError("late", retry_after_s=3), 503, "server_error", "overloaded"),
        (EngineDeadError("gone"), 503, "server_error", "engine_dead"),
        (QuarantineError("poison"), 500, "server_error", "request_quarantined"),
        (TokenizerError("in /etc/x"), 500, "server_error", "internal_error"),
        (KeyError("in /etc/x"), 500, "server_error", "internal_error"),
        (ApiError(401, "who"), 401, "authentication_error", "invalid_api_key"),
    ],
)
def test_each_exception_has_its_answer(error: Exception, status: int, kind: str, code: str) -> None:
    response = error_response(from_exception(error), "req_1")
    told = json.loads(bytes(response.body))["error"]
    assert (response.status_code, told["type"], told["code"]) == (status, kind, code)
    assert response.headers["x-request-id"] == "req_1"
    assert ("retry-after" in response.headers) == hasattr(error, "retry_after_s")
    assert "/etc" not in told["message"]


@pytest.mark.parametrize("text", ["a" * 100_000, "\x00" * 100_000, "😀" * 100_000, "\ud7ff" * 3000])
def test_an_answer_is_small_whatever_it_quotes(text: str) -> None:
    body = error_body(ApiError(400, text, param=text))
    assert len(body) <= 2048
    assert json.loads(body)["error"]["message"].endswith("…")


def test_a_message_is_whole_where_it_fits() -> None:
    assert json.loads(error_body(ApiError(400, "a" * 1800)))["error"]["message"] == "a" * 1800


@pytest.mark.parametrize(("seconds", "headers"), [(0.0, ("0", "0")), (0.2, ("1", "200")), (59.999, ("60", "59999"))])
def test_when_to_try_again_is_never_told_too_early(seconds: float, headers: tuple[str, str]) -> None:
    error = from_exception(QueueFullError("full", retry_after_s=seconds))
    assert (error.headers["retry-after"], error.headers["retry-after-ms"]) == headers
