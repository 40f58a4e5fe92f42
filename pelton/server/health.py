"""What orchestrators and operators ask: does it live, does it take requests, what does it do. Nothing waits for the
engine.
"""

from __future__ import annotations

from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from pelton import __version__
from pelton.server.app import Route
from pelton.server.context import ServerContext
from pelton.server.errors import ApiError
from pelton.server.metrics import CONTENT_TYPE

_RETRY_S = "1"


async def live(request: Request, context: ServerContext) -> Response:
    """200 as long as this process answers."""
    return _json(200, {"status": "alive"})


async def ready(request: Request, context: ServerContext) -> Response:
    """200 while a request that came now would be begun: not while loading, restarting or draining."""
    return _state("draining" if context.is_draining else context.problem)


async def health(request: Request, context: ServerContext) -> Response:
    """200 while the engine is there and, if there is work, makes progress."""
    return _state(context.problem)


async def health_detail(request: Request, context: ServerContext) -> Response:
    kind, _, phase = context.llm.status.partition(": ")
    return _json(
        200,
        {
            "status": context.problem or "ready",
            "state": kind,
            "phase": phase or None,
            "is_draining": context.is_draining,
            "seconds_without_step": round(context.llm.silence_s, 3),
            "connections": context.traffic.num_connections,
            "refused": dict(context.traffic.num_refused),
            "models": list(context.model_ids),
            "engine": msgspec.to_builtins(context.llm.stats),
        },
    )


async def version(request: Request, context: ServerContext) -> Response:
    return _json(200, {"version": __version__})


async def metrics(request: Request, context: ServerContext) -> Response:
    if context.metrics is None:
        raise ApiError(404, "the metrics are off; `--metrics on` shows them")
    text = context.metrics.exposition(
        context.llm.stats,
        is_healthy=context.problem is None,
        num_restarts=context.llm.num_restarts,
        num_stalls=context.llm.num_stalls,
        num_blocks=context.llm.num_cache_blocks,
        traffic=context.traffic,
    )
    return Response(text, headers={"content-type": CONTENT_TYPE})


ROUTES = [
    Route(("GET",), "/live", live, is_open=True, needs_model=False),
    Route(("GET",), "/ready", ready, is_open=True, needs_model=False),
    Route(("GET",), "/health", health, is_open=True, needs_model=False),
    Route(("GET",), "/health/detail", health_detail, needs_model=False),
    Route(("GET",), "/version", version, needs_model=False),
    Route(("GET",), "/metrics", metrics, needs_model=False),
]


def _state(problem: str | None) -> Response:
    """What is wrong, in one word: the routes that say more need a key."""
    if problem is None:
        return _json(200, {"status": "ready"})
    return _json(503, {"status": problem.partition(":")[0]}, {"retry-after": _RETRY_S})


def _json(status: int, document: dict[str, Any], headers: dict[str, str] | None = None) -> Response:
    return Response(msgspec.json.encode(document), status, headers, "application/json")
