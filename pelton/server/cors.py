"""What a browser must be told before a page of another origin may use an answer; off unless origins are named."""

from __future__ import annotations

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import Response

_EXPOSED = "retry-after, retry-after-ms, x-ignored-params, x-request-id"
_MAX_AGE_S = 600


def is_preflight(method: str, headers: Headers) -> bool:
    """A browser's question, which carries no key and has no effect."""
    return method == "OPTIONS" and "origin" in headers and "access-control-request-method" in headers


def preflight_response(headers: Headers, methods: set[str]) -> Response:
    """For an origin that is allowed; every header that the page asks for may be sent."""
    return Response(
        status_code=204,
        headers={
            "access-control-allow-methods": ", ".join(sorted(methods)),
            "access-control-allow-headers": headers.get("access-control-request-headers", ""),
            "access-control-max-age": str(_MAX_AGE_S),
        },
    )


def allow(answer: MutableHeaders, origin: str) -> None:
    """Marks an answer as one that this origin may read. No cookies exist, so none are allowed."""
    answer["access-control-allow-origin"] = origin
    answer["access-control-expose-headers"] = _EXPOSED
    answer.add_vary_header("origin")
