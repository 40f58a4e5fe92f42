"""One line per finished request: what it says, what it never says, and that no client can write a second one."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest

from pelton.errors import EngineDeadError, QueueFullError
from pelton.server import health
from pelton.server.request_log import Generation, RequestLog, RequestRecord
from tests.server.serving import ROUTES, Running, request, run, running


def lines(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def logging_to(server: Running, log_format: str = "json") -> io.StringIO:
    stream = io.StringIO()
    server.context.log = RequestLog(stream, log_format)
    return stream


def test_a_line_tells_tokens_times_and_the_end() -> None:
    async def test() -> None:
        async with running() as server:
            stream = logging_to(server)
            answer = await server.post("/whole", b"{}", "X-Request-Id: mine")
            assert answer.status == 200
            [line] = lines(stream)
            assert line.pop("total_s") >= line.pop("first_token_s") >= 0
            assert line.pop("queue_s") >= 0
            assert line.pop("time").endswith("+00:00")
            assert line == {
                "id": "mine",
                "method": "POST",
                "route": "/whole",
                "status": 200,
                "prompt_tokens": 2,
                "cached_tokens": 1,
                "output_tokens": 3,
                "reason": "length",
            }

    run(test())


def test_refused_and_left_requests_have_a_line_and_probes_have_none() -> None:
    async def test() -> None:
        async with running([*ROUTES, *health.ROUTES], keys=["a-key"]) as server:
            stream = logging_to(server)
            await server.get("/live")
            await server.get("/metrics", "X-Api-Key: a-key")
            await server.get("/none/secret?key=secret")
            await server.get("/none", "X-Api-Key: a-key")
            server.llm.gate.clear()
            async with await server.connect() as client:
                await client.send(request("POST", "/whole", "X-Api-Key: a-key"))
                await server.llm.until(lambda: server.llm.num_open == 1)
            await server.context.traffic.is_empty.wait()
            await server.llm.until(lambda: server.llm.num_open == 0)
        found = [(line["route"], line["status"], line.get("error"), line.get("reason")) for line in lines(stream)]
        assert found == [
            ("", 401, "invalid_api_key", None),
            ("", 404, "not_found", None),
            ("/whole", 499, None, "abort"),
        ]
        assert "secret" not in stream.getvalue()

    run(test())


def test_an_error_within_a_stream_is_told_as_one() -> None:
    async def test() -> None:
        async with running() as server:
            stream = logging_to(server)
            server.llm.failure = EngineDeadError("gone")
            assert (await server.post("/stream")).body == b"error: gone\n"
            server.llm.failure = QueueFullError("full")
            assert (await server.post("/whole")).status == 429
            assert [(line["status"], line["error"]) for line in lines(stream)] == [
                (200, "engine_dead"),
                (429, "rate_limit_exceeded"),
            ]
            assert server.context.metrics is not None
            histogram, _ = server.context.metrics.histograms["e2e_request_latency_seconds"]
            assert sum(histogram.counts) == 0, "what never began is no latency"

    run(test())


def test_prompts_are_told_only_if_asked_for() -> None:
    async def test() -> None:
        for log_prompts in (False, True):
            async with running(log_prompts=log_prompts) as server:
                stream = logging_to(server)
                await server.post("/whole")
                [line] = lines(stream)
                assert line.get("prompts") == (["text of [1, 2]"] if log_prompts else None)

    run(test())


@pytest.mark.parametrize("foul", ["a\nb", "a b=c", 'a"b', "ä\u2028", "\x1b[31m"])
def test_what_clients_send_stays_within_its_field(foul: str) -> None:
    record = RequestRecord("id", "POST", "/v1/x", ignored_params=(foul,), model="m", status=200)
    record.generations.append(Generation(num_prompt_tokens=3, finish_reasons=["stop"]))
    for log_format in ("text", "json"):
        stream = io.StringIO()
        RequestLog(stream, log_format).write(record)
        [line] = stream.getvalue().splitlines()
        if log_format == "json":
            assert json.loads(line)["ignored_params"] == [foul]
        else:
            assert line.count("status=") == 1
            assert line.endswith("reason=stop")
            assert "\x1b" not in line


def test_a_batch_is_summed_and_its_longest_wait_told() -> None:
    record = RequestRecord("id", "POST", "/v1/x", status=200)
    for wait in (1.0, 3.0):
        record.generations.append(
            Generation(
                arrived_s=10.0,
                started_s=10.0 + wait,
                first_token_s=11.0 + wait,
                num_prompt_tokens=5,
                num_cached_tokens=2,
                num_output_tokens=7,
                finish_reasons=["stop", "length"],
            )
        )
    stream = io.StringIO()
    RequestLog(stream, "json").write(record)
    [line] = lines(stream)
    told = [line[name] for name in ("prompt_tokens", "cached_tokens", "output_tokens", "queue_s", "first_token_s")]
    assert told == [10, 4, 14, 3.0, 2.0]
    assert line["reason"] == "length,stop"


def test_the_format_follows_the_stream_unless_it_is_chosen() -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    record = RequestRecord("id", "GET", "/v1/models", status=200)
    for stream, log_format, is_json in (
        (io.StringIO(), "auto", True),
        (Terminal(), "auto", False),
        (Terminal(), "json", True),
        (io.StringIO(), "text", False),
    ):
        RequestLog(stream, log_format).write(record)
        assert stream.getvalue().startswith("{") == is_json
