"""bench: its documents and what a reader sees of them."""

from __future__ import annotations

import statistics
from collections.abc import Iterator

import pytest

from pelton.errors import DownloadError
from tests.cli.conftest import Pelton
from tests.gguf_copies import LLAMA
from tests.measure.fake_server import Server, stream_of


@pytest.fixture
def server() -> Iterator[Server]:
    running = Server()
    yield running
    running.close()


def test_bench_measures_prefill_and_decode(pelton: Pelton, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pelton.measure.latency.BANDWIDTH_BYTES", 1 << 20)
    sizes = ("--pp", "8", "16", "--tg", "3", "--repeat", "2")
    document = pelton("bench", "latency", LLAMA, *sizes, "--json").document
    assert [row["name"] for row in document["rows"]] == ["prefill 8", "prefill 16", "decode 3"]
    assert all(0 < row["min"] <= row["tokens_per_s"] <= row["max"] for row in document["rows"])
    assert "of the read bandwidth" in pelton("bench", "latency", LLAMA, *sizes).out


def test_bench_profile_shows_each_kind_of_node_beside_its_prediction(pelton: Pelton) -> None:
    sizes = ("--profile", "--pp", "16", "--repeat", "1")
    steps = pelton("bench", "latency", LLAMA, *sizes, "--json").document["steps"]
    assert [step["name"] for step in steps] == ["decode, 1 at once", "decode, 8 at once", "prefill 16"]
    for step in steps:
        assert all(row["measured_s"] > 0 and row["predicted_s"] > 0 for row in step["rows"])
        assert {"linear", "attention"} <= {row["kernel"].split("/")[-1] for row in step["rows"]}
    assert "ms predicted" in pelton("bench", "latency", LLAMA, *sizes).out


def test_bench_with_a_prompt_beyond_the_context_is_refused(pelton: Pelton) -> None:
    outcome = pelton("bench", "latency", LLAMA, "--pp", "300", "--repeat", "1")
    assert outcome.code == 1
    assert "`300` tokens" in outcome.err


def test_bench_measures_many_requests_at_once(pelton: Pelton) -> None:
    sizes = ("--num-prompts", "3", "--input-tokens", "8", "--output-tokens", "4", "--repeat", "2")
    document = pelton("bench", "throughput", LLAMA, *sizes, "--json").document
    assert document["output_tokens_per_s"] == pytest.approx(12 / statistics.median(document["seconds"]))
    assert "3 requests of 8 + 4 tokens" in pelton("bench", "throughput", LLAMA, *sizes).out


def test_bench_serve_shows_rates_and_failures(server: Server, pelton: Pelton) -> None:
    server.answers = lambda body: stream_of("a", "b") if len(server.bodies) % 2 else (503, [b"busy"], False)
    sizes = ("--requests", "4", "--concurrency", "2", "--input-tokens", "3", "--output-tokens", "2")
    document = pelton("bench", "serve", server.url, *sizes, "--json").document
    assert (document["model"], document["requests"], document["answered"]) == ("tiny", 4, 2)
    assert document["failures"] == {"503: busy": 2}
    shown = pelton("bench", "serve", server.url, *sizes).out
    assert "2 of 4 requests answered" in shown
    assert "failed: 2 x 503: busy" in shown


def test_bench_serve_without_a_server_says_so(pelton: Pelton) -> None:
    outcome = pelton("bench", "serve", "http://127.0.0.1:1")
    assert outcome.code == DownloadError.exit_code
    assert "can't be reached" in outcome.err
