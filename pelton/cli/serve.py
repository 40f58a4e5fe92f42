"""`pelton serve [MODEL]`: a model behind an HTTP API, for many at once."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from pelton.cli.foreign_flags import add_foreign_flags
from pelton.cli.options import add_settings, settings_from
from pelton.config import DEFAULT_MODEL, ServerSettings, Settings, from_environment

if TYPE_CHECKING:
    import socket

    from pelton.async_llm import AsyncLLM

_PHASE_INTERVAL_S = 0.05


def add_arguments(parser: argparse.ArgumentParser) -> None:
    # Without a default of its own, which would take the place of what `-m` says.
    parser.add_argument("model", nargs="?", default=argparse.SUPPRESS, help=f"which model ({DEFAULT_MODEL})")
    add_settings(parser, "server", "engine", "store", is_short=True)
    add_foreign_flags(parser)


def run(arguments: argparse.Namespace) -> int:
    import uvloop

    from pelton.server.auth import choose_keys
    from pelton.server.lifecycle import listen

    settings = settings_from(arguments)
    keys, is_made_up = choose_keys(settings.server, from_environment().api_key)
    listener = listen(settings.server.host, settings.server.port)
    with listener:
        for line in _greeting(settings, listener, keys, is_made_up=is_made_up):
            _tell(line)
        uvloop.run(_serve(settings, listener, keys))
    _tell("stopped")
    return 0


async def _serve(settings: Settings, listener: socket.socket, keys: list[str]) -> None:
    from pelton.async_llm import AsyncLLM
    from pelton.server import health, openapi, tokenization
    from pelton.server.app import Application
    from pelton.server.auth import make_guard
    from pelton.server.context import ServerContext
    from pelton.server.lifecycle import HttpServer, serve
    from pelton.server.metrics import Metrics
    from pelton.server.openai import ROUTES
    from pelton.server.request_log import RequestLog
    from pelton.server.watch import EngineWatch

    model_ids = _model_ids(settings)
    metrics = Metrics(model_ids[0]) if settings.server.metrics else None
    watch = EngineWatch(metrics)
    llm = await AsyncLLM.start(settings, on_stats=watch.take)
    log = RequestLog(sys.stderr, settings.server.log_format)
    context = ServerContext(llm, settings.server, model_ids, metrics, log, watch=watch)
    routes = [*ROUTES, *tokenization.ROUTES, *openapi.ROUTES, *health.ROUTES]
    server = HttpServer(Application(routes, context, make_guard(settings.server, keys)))
    await serve(server, listener, llm, lambda: _tell_phases(llm))


async def _tell_phases(llm: AsyncLLM) -> None:
    """Each phase of loading once, then what came of it."""
    import asyncio

    told: set[str] = set()
    while True:
        is_loading = llm.status.startswith("loading")
        for line in (*llm.facts, *([llm.status] if is_loading else [])):
            if line not in told:
                told.add(line)
                _tell(f"  {line}")
        if not is_loading:
            break
        await asyncio.sleep(_PHASE_INTERVAL_S)
    if llm.status == "ready":
        _tell(f"  ready after {llm.load_seconds:.1f} s")


def _greeting(settings: Settings, listener: socket.socket, keys: list[str], *, is_made_up: bool) -> list[str]:
    host, port = listener.getsockname()[:2]
    url_host = f"[{host}]" if ":" in host else host
    return [
        f"Pelton serves `{_model_ids(settings)[0]}`",
        f"  at http://{url_host}:{port}/v1",
        f"  {_key_state(settings.server, keys, is_made_up=is_made_up)}",
    ]


def _key_state(settings: ServerSettings, keys: list[str], *, is_made_up: bool) -> str:
    if is_made_up:
        return f"with a key made for this run: {keys[0]}"
    if keys:
        return f"for who has {'the key' if len(keys) == 1 else f'one of {len(keys)} keys'}"
    if settings.no_auth:
        return "for everyone who reaches it, without a key"
    return "without a key, for this machine alone"


def _model_ids(settings: Settings) -> tuple[str, ...]:
    return settings.server.served_model_name or (settings.model.model,)


def _tell(line: str) -> None:
    print(line, flush=True)
