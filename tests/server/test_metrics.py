"""What Prometheus is told, against counts made beside it; names as vLLM's dashboards read them."""

from __future__ import annotations

import json
import math
import random
from bisect import bisect_left
from typing import Any, cast

from prometheus_client.parser import text_string_to_metric_families
from starlette.requests import Request
from starlette.responses import Response

from pelton.engine.messages import EngineStats
from pelton.sampling_params import SamplingParams
from pelton.server import health
from pelton.server.app import Route
from pelton.server.context import ServerContext, record_of
from pelton.server.limits import Traffic
from pelton.server.metrics import Histogram, Metrics
from pelton.server.request_log import Generation, RequestRecord
from tests.server.serving import ROUTES, run, running

LABELS = {"model_name": "model", "engine": "0"}
# Of vLLM, as its dashboards and autoscalers read them.
GAUGES = ["num_requests_running", "num_requests_waiting", "kv_cache_usage_perc", "engine_healthy"]
COUNTERS = ["num_preemptions", "prefix_cache_queries", "prefix_cache_hits", "prompt_tokens", "generation_tokens"]
HISTOGRAMS = [
    "iteration_tokens_total",
    "time_to_first_token_seconds",
    "inter_token_latency_seconds",
    "e2e_request_latency_seconds",
    "request_time_per_output_token_seconds",
    "request_queue_time_seconds",
    "request_prefill_time_seconds",
    "request_decode_time_seconds",
    "request_inference_time_seconds",
    "request_prompt_tokens",
    "request_generation_tokens",
    "request_prefill_kv_computed_tokens",
    "request_params_n",
    "request_params_max_tokens",
]


def read(metrics: Metrics, stats: EngineStats | None = None, traffic: Traffic | None = None) -> dict[str, float]:
    """Sample with its labels, but those of every sample → value."""
    text = metrics.exposition(
        stats or EngineStats(),
        is_healthy=True,
        num_restarts=2,
        num_stalls=1,
        num_blocks=77,
        traffic=traffic or Traffic(),
    )
    return parsed(text)


def parsed(text: bytes) -> dict[str, float]:
    found = {}
    for family in text_string_to_metric_families(text.decode()):
        for sample in family.samples:
            if sample.name.startswith("vllm:"):
                assert LABELS.items() <= sample.labels.items()
            own = {name: value for name, value in sample.labels.items() if name not in LABELS}
            key = sample.name + (json.dumps(own) if own else "")
            assert key not in found
            found[key] = sample.value
    return found


def test_names_and_labels_are_those_that_dashboards_read() -> None:
    found = read(Metrics("model"))
    assert {f"vllm:{name}" for name in GAUGES} <= found.keys()
    assert {f"vllm:{name}_total" for name in COUNTERS} <= found.keys()
    for name in HISTOGRAMS:
        assert {f"vllm:{name}_{part}" for part in ("sum", "count")} <= found.keys()
        assert f'vllm:{name}_bucket{{"le": "+Inf"}}' in found
    assert found['vllm:cache_config_info{"block_size": "16", "num_gpu_blocks": "77"}'] == 1
    for reason in ("stop", "length", "abort", "error"):
        assert f'vllm:request_success_total{{"finished_reason": "{reason}"}}' in found


def test_the_engines_counters_are_passed_on() -> None:
    stats = EngineStats(
        num_running=3,
        num_waiting=4,
        kv_cache_usage=0.25,
        num_steps_total=99,
        num_preemptions_total=5,
        prefix_queried_tokens_total=600,
        prefix_hit_tokens_total=400,
        prompt_tokens_total=700,
        generation_tokens_total=800,
        cache_repairs_total=1,
    )
    found = read(Metrics("model"), stats)
    values = [found[f"vllm:{name}"] for name in GAUGES] + [found[f"vllm:{name}_total"] for name in COUNTERS]
    assert values == [3, 4, 0.25, 1, 5, 600, 400, 700, 800]
    own = [found[f"pelton:{name}_total"] for name in ("steps", "cache_repairs", "engine_restarts", "engine_stalls")]
    assert own == [99, 1, 2, 1]


def test_histograms_count_as_their_definition_says() -> None:
    generator = random.Random(3)
    bounds = (0.1, 0.5, 2.0)
    histogram = Histogram(bounds)
    values = [generator.choice((*bounds, generator.uniform(0, 3))) for _ in range(500)]
    for value in values:
        histogram.observe(value)
    for (name, count), bound in zip(histogram.cumulative(), (*bounds, math.inf), strict=True):
        assert count == sum(value <= bound for value in values)
        assert float(name) == bound
    assert histogram.total == sum(values)


def test_a_finished_request_is_in_every_histogram_once() -> None:
    generator = random.Random(4)
    metrics = Metrics("model")
    sums: dict[str, float] = {}
    for _ in range(200):
        queue, prefill, decode = (generator.uniform(0, 5) for _ in range(3))
        prompt, cached, output = generator.randrange(1, 3000), generator.randrange(200), generator.randrange(2, 500)
        one = Generation(
            num_choices=1,
            max_tokens=600,
            arrived_s=100.0,
            started_s=100.0 + queue,
            first_token_s=100.0 + queue + prefill,
            finished_s=100.0 + queue + prefill + decode,
            num_prompt_tokens=prompt + cached,
            num_cached_tokens=cached,
            num_output_tokens=output,
            finish_reasons=["stop"],
        )
        metrics.observe_generation(one)
        for name, value in {
            "request_queue_time_seconds": queue,
            "time_to_first_token_seconds": queue + prefill,
            "request_prefill_time_seconds": prefill,
            "request_decode_time_seconds": decode,
            "request_inference_time_seconds": prefill + decode,
            "e2e_request_latency_seconds": queue + prefill + decode,
            "request_time_per_output_token_seconds": decode / (output - 1),
            "request_prompt_tokens": prompt + cached,
            "request_prefill_kv_computed_tokens": prompt,
            "request_generation_tokens": output,
            "request_params_n": 1,
            "request_params_max_tokens": 600,
        }.items():
            sums[name] = sums.get(name, 0.0) + value
    found = read(metrics)
    for name, total in sums.items():
        assert found[f"vllm:{name}_count"] == 200
        assert math.isclose(found[f"vllm:{name}_sum"], total, rel_tol=1e-9), name
    assert found['vllm:request_success_total{"finished_reason": "stop"}'] == 200


def test_a_request_that_never_started_has_no_times() -> None:
    metrics = Metrics("model")
    metrics.observe_generation(Generation(finish_reasons=["abort"]))
    found = read(metrics)
    for name in ("time_to_first_token_seconds", "request_queue_time_seconds", "request_time_per_output_token_seconds"):
        assert found[f"vllm:{name}_count"] == 0
    assert found['vllm:request_success_total{"finished_reason": "abort"}'] == 1


def test_a_step_counts_once_however_often_it_is_told() -> None:
    metrics = Metrics("model")
    for number, num_tokens in ((1, 30), (1, 30), (2, 4), (3, 4), (3, 4), (1, 50)):  # the last of a new process
        metrics.observe_step(EngineStats(num_steps_total=number, step_tokens=num_tokens))
    found = read(metrics)
    assert found["vllm:iteration_tokens_total_count"] == 4
    assert found["vllm:iteration_tokens_total_sum"] == 88


def test_names_that_clients_choose_are_bounded() -> None:
    metrics = Metrics("model")
    for index in range(1000):
        metrics.observe_request(RequestRecord("id", "POST", "/v1/x", ignored_params=(f"field\n{index}", "often")))
    found = {name: value for name, value in read(metrics).items() if name.startswith("pelton:ignored_params")}
    assert len(found) == 101
    assert sum(found.values()) == 2000
    assert found['pelton:ignored_params_total{"param": "often"}'] == 1000


async def _generate(request: Request, context: ServerContext) -> Response:
    """As many tokens as the body says, of which the client may have less."""
    sampling = SamplingParams(max_tokens=int(await request.body()))
    record_of(request).ignored_params = ("foo",)
    outputs = context.generate(request, [1, 2], sampling)
    text = "".join([output.outputs[0].text async for output in outputs])
    return Response(text)


def test_a_server_counts_what_it_did() -> None:
    async def test() -> None:
        routes = [*ROUTES, *health.ROUTES, Route(("POST",), "/generate", _generate)]
        async with running(routes, max_url_bytes=100) as server:
            lengths = [1, 2, 5, 30]
            for length in lengths:
                assert (await server.post("/generate", str(length).encode())).body == b"a" * length
            assert (await server.get("/none")).status == 404
            assert (await server.get("/" + "a" * 200)).status == 414
            found = parsed((await server.get("/metrics")).body)
        for name in ("e2e_request_latency", "request_queue_time", "request_inference_time", "time_to_first_token"):
            assert found[f"vllm:{name}_seconds_count"] == len(lengths)
        assert found["vllm:request_prefill_kv_computed_tokens_sum"] == len(lengths)
        assert found["vllm:request_generation_tokens_sum"] == sum(lengths)
        assert found["vllm:inter_token_latency_seconds_count"] == sum(length - 1 for length in lengths)
        assert found['vllm:request_success_total{"finished_reason": "length"}'] == len(lengths)
        assert found['pelton:ignored_params_total{"param": "foo"}'] == len(lengths)
        assert found['pelton:errors_total{"code": "not_found"}'] == 1
        assert found['pelton:refused_total{"code": "url_too_long"}'] == 1
        assert found["pelton:connections"] == 1
        bounds = cast(Any, Metrics("m").histograms["request_generation_tokens"][0]).bounds
        bucket = 'vllm:request_generation_tokens_bucket{"le": "%s"}'
        for bound in bounds:
            assert found[bucket % float(bound)] == sum(bisect_left([bound], length) == 0 for length in lengths)

    run(test())


def test_the_metrics_can_be_off() -> None:
    async def test() -> None:
        async with running([*ROUTES, *health.ROUTES]) as server:
            server.context.metrics = None
            assert (await server.get("/metrics")).code == "not_found"
            assert (await server.post("/whole")).status == 200

    run(test())
