"""Probes: which states are alive, ready and healthy, and that the answers wait for nothing."""

from __future__ import annotations

import json

import pytest

import pelton
from pelton.engine.messages import EngineStats
from pelton.server import health
from tests.server.serving import ROUTES, run, running

ALL = [*ROUTES, *health.ROUTES]


@pytest.mark.parametrize(
    ("status", "silence_s", "is_draining", "ready", "healthy"),
    [
        ("ready", 0.0, False, 200, 200),
        ("ready", 29.0, False, 200, 200),
        ("ready", 31.0, False, 503, 503),
        ("ready", 0.0, True, 503, 200),
        ("loading: reading weights", 0.0, False, 503, 503),
        ("restarting: starting", 0.0, False, 503, 503),
        ("dead: it fell", 0.0, False, 503, 503),
        ("closed", 0.0, False, 503, 503),
    ],
)
def test_each_state_has_its_answers(status: str, silence_s: float, is_draining: bool, ready: int, healthy: int) -> None:
    async def test() -> None:
        async with running(ALL) as server:
            server.llm.status, server.llm.silence_s = status, silence_s
            server.context.is_draining = is_draining
            assert (await server.get("/live")).status == 200
            assert (await server.get("/ready")).status == ready
            answer = await server.get("/health")
            assert answer.status == healthy
            assert b"fell" not in answer.body, "who has no key learns no reason"
            detail = json.loads((await server.get("/health/detail")).body)
            assert detail["state"] == status.partition(":")[0]
            assert detail["phase"] == (status.partition(": ")[2] or None)
            assert detail["engine"]["num_running"] == 0

    run(test())


def test_an_engine_whose_steps_are_known_to_be_slow_has_longer() -> None:
    async def test() -> None:
        async with running(ALL) as server:
            server.context.watch.take(EngineStats(step_seconds=5.0))
            server.llm.silence_s = 99.0
            assert (await server.get("/health")).status == 200
            server.llm.silence_s = 101.0
            assert (await server.get("/health")).status == 503

    run(test())


def test_the_version_is_told() -> None:
    async def test() -> None:
        async with running(ALL) as server:
            assert json.loads((await server.get("/version")).body) == {"version": pelton.__version__}

    run(test())
