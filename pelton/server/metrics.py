"""What Prometheus may know, under the names that vLLM's dashboards and autoscalers read; what only Pelton has is
`pelton:`. It knows no request beyond its counts and times.

Observing is a few additions on plain numbers. The text is made when it is asked for, and prometheus_client is imported
then: it is slow to import and its own counters take a lock per token.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from pelton.cache.groups import BLOCK_TOKENS
from pelton.engine.messages import EngineStats
from pelton.server.limits import Traffic
from pelton.server.request_log import Generation, RequestRecord

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

# Upper bounds as vLLM has them, so that quantiles of both can be compared. Seconds.
_FIRST_TOKEN_S: tuple[float, ...] = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75),
    *(1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640, 2560),
)
_TOKEN_S = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80)
_REQUEST_S = (0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680)
_TOKENS = tuple(digit * 10**power for power in range(6) for digit in (1, 2, 5))
_STEP_TOKENS = (1, *(8 << power for power in range(12)))
_CHOICES = (1, 2, 5, 10, 20)
_PREEMPTIONS = (0, *_CHOICES)

# Clients choose the names of the fields that they send: further ones are counted together.
_MAX_PARAM_NAMES = 100

_LABELS = ("model_name", "engine")


class Histogram:
    """counts: per bound, of values up to it and above the one before; the last is of what is above all."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def cumulative(self) -> list[tuple[str, float]]:
        """(upper bound, how many up to it) as the exposition format wants them."""
        rows: list[tuple[str, float]] = []
        running = 0
        for bound, count in zip((*self.bounds, float("inf")), self.counts, strict=True):
            running += count
            rows.append(("+Inf" if bound == float("inf") else str(float(bound)), running))
        return rows


class Metrics:
    """Of one server. Its methods are called on the event loop."""

    def __init__(self, model_name: str) -> None:
        self._labels = (model_name, "0")
        self.histograms = {
            name: (Histogram(bounds), text)
            for name, bounds, text in (
                ("iteration_tokens_total", _STEP_TOKENS, "tokens computed per step"),
                ("time_to_first_token_seconds", _FIRST_TOKEN_S, "from arrival to the first token"),
                ("inter_token_latency_seconds", _TOKEN_S, "between the tokens of a request"),
                ("request_time_per_output_token_seconds", _TOKEN_S, "mean per request between its tokens"),
                ("e2e_request_latency_seconds", _REQUEST_S, "from arrival to the end"),
                ("request_queue_time_seconds", _REQUEST_S, "from arrival to the start"),
                ("request_prefill_time_seconds", _REQUEST_S, "from the start to the first token"),
                ("request_decode_time_seconds", _REQUEST_S, "from the first token to the end"),
                ("request_inference_time_seconds", _REQUEST_S, "from the start to the end"),
                ("request_prompt_tokens", _TOKENS, "tokens of a prompt"),
                ("request_generation_tokens", _TOKENS, "tokens of an answer, all choices together"),
                ("request_prefill_kv_computed_tokens", _TOKENS, "tokens of a prompt that were not found in the cache"),
                ("request_num_preemptions", _PREEMPTIONS, "times that it made room for others and was computed anew"),
                ("request_params_n", _CHOICES, "choices asked for"),
                ("request_params_max_tokens", _TOKENS, "most tokens asked for"),
            )
        }
        self._inter_token = self.histograms["inter_token_latency_seconds"][0]
        self._step_tokens = self.histograms["iteration_tokens_total"][0]
        self._finished: Counter[str] = Counter()
        self._ignored_params: Counter[str] = Counter()
        self._errors: Counter[str] = Counter()
        self._num_steps = 0

    def observe_step(self, stats: EngineStats) -> None:
        """What the engine tells after a step; it also tells after an abort, which is none."""
        if stats.num_steps_total != self._num_steps:
            self._num_steps = stats.num_steps_total
            self._step_tokens.observe(stats.step_tokens)

    def observe_token_gap(self, seconds: float) -> None:
        """Between two outputs of one request. The hot path: once per token."""
        self._inter_token.observe(seconds)

    def observe_generation(self, generation: Generation) -> None:
        """One that ended, in whatever way."""
        self._finished.update(generation.finish_reasons)
        values: dict[str, float | None] = {
            "time_to_first_token_seconds": _between(generation.arrived_s, generation.first_token_s),
            "e2e_request_latency_seconds": _between(generation.arrived_s, generation.finished_s),
            "request_queue_time_seconds": _between(generation.arrived_s, generation.started_s),
            "request_prefill_time_seconds": _between(generation.started_s, generation.first_token_s),
            "request_decode_time_seconds": _between(generation.first_token_s, generation.finished_s),
            "request_inference_time_seconds": _between(generation.started_s, generation.finished_s),
            "request_time_per_output_token_seconds": generation.seconds_per_token,
            "request_prompt_tokens": generation.num_prompt_tokens,
            "request_generation_tokens": generation.num_output_tokens,
            "request_prefill_kv_computed_tokens": generation.num_prompt_tokens - generation.num_cached_tokens,
            "request_num_preemptions": generation.num_preemptions,
            "request_params_n": generation.num_choices,
            "request_params_max_tokens": generation.max_tokens,
        }
        for name, value in values.items():
            if value is not None:
                self.histograms[name][0].observe(value)

    def observe_request(self, record: RequestRecord) -> None:
        """An HTTP request that was answered."""
        for name in record.ignored_params:
            is_known = name in self._ignored_params or len(self._ignored_params) < _MAX_PARAM_NAMES
            self._ignored_params[name if is_known else "other"] += 1
        if record.error_code is not None:
            self._errors[record.error_code] += 1

    def exposition(
        self,
        stats: EngineStats,
        *,
        is_healthy: bool,
        num_restarts: int,
        num_stalls: int,
        num_blocks: int | None,
        traffic: Traffic,
    ) -> bytes:
        """Everything as Prometheus' text format. stats: of the last step. num_blocks: of the cache, once known."""
        from prometheus_client import CollectorRegistry, generate_latest

        registry = CollectorRegistry(auto_describe=False)
        found = [
            *self._of_engine(stats, is_healthy),
            *self._of_cache(num_blocks),
            *self._of_requests(),
            *self._own(stats, num_restarts, num_stalls, traffic),
        ]
        registry.register(_Collected(found))
        return generate_latest(registry)

    def _of_engine(self, stats: EngineStats, is_healthy: bool) -> Iterator[Metric]:
        from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily

        gauges = (
            ("num_requests_running", "requests that run", stats.num_running),
            ("num_requests_waiting", "requests that wait for the engine", stats.num_waiting),
            ("kv_cache_usage_perc", "share of the cache that running requests hold, 0 to 1", stats.kv_cache_usage),
            ("engine_healthy", "1 while the engine takes requests and makes progress", int(is_healthy)),
        )
        for name, text, value in gauges:
            gauge = GaugeMetricFamily(f"vllm:{name}", text, labels=_LABELS)
            gauge.add_metric(self._labels, value)
            yield gauge
        counters = (
            ("num_preemptions", "requests that made room and were computed anew", stats.num_preemptions_total),
            ("prefix_cache_queries", "prompt tokens looked up in the cache", stats.prefix_queried_tokens_total),
            ("prefix_cache_hits", "prompt tokens found there", stats.prefix_hit_tokens_total),
            ("prompt_tokens", "prompt tokens of started requests", stats.prompt_tokens_total),
            ("generation_tokens", "tokens generated", stats.generation_tokens_total),
        )
        for name, text, value in counters:
            counter = CounterMetricFamily(f"vllm:{name}", text, labels=_LABELS)
            counter.add_metric(self._labels, value)
            yield counter

    def _of_cache(self, num_blocks: int | None) -> Iterator[Metric]:
        """Its sizes are labels: schedulers before many servers read them from there."""
        from prometheus_client.metrics_core import GaugeMetricFamily

        if num_blocks is not None:
            labels = (*_LABELS, "block_size", "num_gpu_blocks")
            sizes = GaugeMetricFamily("vllm:cache_config_info", "sizes of the cache", labels=labels)
            sizes.add_metric((*self._labels, str(BLOCK_TOKENS), str(num_blocks)), 1)
            yield sizes

    def _of_requests(self) -> Iterator[Metric]:
        from prometheus_client.metrics_core import CounterMetricFamily, HistogramMetricFamily

        finished = CounterMetricFamily(
            "vllm:request_success", "choices that ended, by reason", labels=(*_LABELS, "finished_reason")
        )
        for reason in ("stop", "length", "abort", "error"):
            finished.add_metric((*self._labels, reason), self._finished[reason])
        yield finished
        for name, (values, text) in self.histograms.items():
            family = HistogramMetricFamily(f"vllm:{name}", text, labels=_LABELS)
            family.add_metric(self._labels, values.cumulative(), values.total)
            yield family

    def _own(self, stats: EngineStats, num_restarts: int, num_stalls: int, traffic: Traffic) -> Iterator[Metric]:
        from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily

        for name, text, value in (
            ("steps", "steps of the engine", stats.num_steps_total),
            ("step_seconds", "time that steps took to compute", stats.step_seconds_total),
            ("schedule_seconds", "time between steps, in the scheduler and the cache", stats.schedule_seconds_total),
            ("cache_repairs", "block counts that were wrong and were put right", stats.cache_repairs_total),
            ("engine_restarts", "times that the engine's process was started again", num_restarts),
            ("engine_stalls", "times that it was killed for making no step", num_stalls),
        ):
            yield CounterMetricFamily(f"pelton:{name}", text, value)
        yield GaugeMetricFamily("pelton:connections", "open connections", traffic.num_connections)
        by_name = [
            ("ignored_params", "fields of requests that had no effect", "param", self._ignored_params),
            ("errors", "requests answered with an error", "code", self._errors),
            ("refused", "requests and connections that no handler saw", "code", traffic.num_refused),
            ("prefix_cache_lookups", "prompts by what was found of them", "outcome", stats.prefix_lookups_total),
        ]
        for name, text, label, counts in by_name:
            family = CounterMetricFamily(f"pelton:{name}", text, labels=(label,))
            for key, count in counts.items():
                family.add_metric((key,), count)
            yield family


class _Collected:
    """What prometheus_client takes metrics from."""

    def __init__(self, metrics: Iterable[Metric]) -> None:
        self._metrics = metrics

    def collect(self) -> Iterable[Metric]:
        return self._metrics


def _between(start_s: float | None, end_s: float | None) -> float | None:
    return None if start_s is None or end_s is None else max(0.0, end_s - start_s)
