"""`pelton serve` as a process of its own with a scripted engine: what it says, whom it serves, how it ends."""

from __future__ import annotations

import contextlib
import http.client
import json
import logging
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from pelton.server.lifecycle import listen
from tests.cli.conftest import Pelton
from tests.scripted import write_script

PATIENCE_S = 60.0


@dataclass
class Server:
    process: subprocess.Popen[str]
    greeting: list[str]
    resources: contextlib.ExitStack

    @property
    def port(self) -> int:
        match = re.search(r"http://[^/]*:(\d+)/v1", self.greeting[1])
        assert match is not None, self.greeting
        return int(match[1])

    def ask(self, method: str, path: str, body: Any = None, **headers: str) -> http.client.HTTPResponse:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE_S)
        self.resources.callback(connection.close)
        connection.request(method, path, None if body is None else json.dumps(body), headers)
        return self.resources.enter_context(connection.getresponse())

    def complete(self, *, is_stream: bool = False) -> http.client.HTTPResponse:
        body = {"model": "m", "prompt": "x", "stream": is_stream, "max_tokens": 500}
        return self.ask("POST", "/v1/completions", body)

    def end(self) -> tuple[int, str, str]:
        """(exit code, the rest of standard output, standard error) once it has ended by itself."""
        out, err = self.process.communicate(timeout=PATIENCE_S)
        return self.process.returncode, out, err


@contextlib.contextmanager
def serving(engine: str, *arguments: str, environment: dict[str, str] | None = None) -> Iterator[Server]:
    """A server that is ready."""
    command = [sys.executable, "-m", "pelton.cli.main", "serve", "--engine", engine, "--port", "0"]
    process = subprocess.Popen(
        [*command, "--served-model-name", "m", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **(environment or {})},
    )
    with process, contextlib.ExitStack() as resources:
        greeting: list[str] = []
        assert process.stdout is not None
        try:
            while not greeting or "ready after" not in greeting[-1]:
                line = process.stdout.readline()
                assert line, (greeting, process.communicate())
                greeting.append(line.rstrip())
            yield Server(process, greeting, resources)
        finally:
            process.kill()


def test_it_says_what_it_serves_and_ends_with_a_signal(tmp_path: Path) -> None:
    with serving(write_script(tmp_path, [{"text": "Hello there."}])) as server:
        assert server.greeting[0] == "Pelton serves `m`"
        assert server.greeting[2] == "  without a key, for this machine alone"
        assert any("loading: " in line for line in server.greeting)
        assert server.ask("GET", "/ready").status == 200
        answer = json.load(server.complete())
        assert answer["choices"][0]["text"] == "Hello there."
        server.process.send_signal(signal.SIGTERM)
        code, out, err = server.end()
        assert (code, out) == (0, "stopped\n")
        [line] = err.splitlines()
        assert json.loads(line)["route"] == "/v1/completions"


def test_a_stream_that_runs_comes_to_its_end_after_a_signal(tmp_path: Path) -> None:
    answer = {"tokens": list(range(40, 140)), "delay_s": 0.01}
    with serving(write_script(tmp_path, [answer])) as server:
        stream = server.complete(is_stream=True)
        stream.readline()
        server.process.send_signal(signal.SIGTERM)
        assert stream.read().endswith(b"data: [DONE]\n\n")
        assert server.end()[:2] == (0, "stopped\n")


def test_a_second_signal_ends_streams_with_an_error_at_once(tmp_path: Path) -> None:
    answer = {"tokens": [40] * 50, "delay_s": 0.01, "fault": "stall", "fault_after": 20}
    with serving(write_script(tmp_path, [answer]), "--drain-timeout", "1h") as server:
        stream = server.complete(is_stream=True)
        stream.readline()
        server.process.send_signal(signal.SIGINT)
        assert _is_refused_at_last(server.port)
        server.process.send_signal(signal.SIGINT)
        *_, last = stream.read().split(b"data: ")
        assert json.loads(last)["error"]["code"] == "shutting_down"
        assert server.end()[:2] == (0, "stopped\n")


def test_a_stream_that_waits_is_pinged_and_then_told_and_a_full_queue_is_refused_at_once(tmp_path: Path) -> None:
    answer = {"tokens": [40] * 500, "delay_s": 0.05}
    limits = ("--max-queue", "1", "--queue-timeout", "3s", "--ping-interval-s", "100ms")
    with serving(write_script(tmp_path, [answer], max_num_seqs=1), *limits) as server:
        running = server.complete(is_stream=True)
        running.readline()
        waiting = server.complete(is_stream=True)
        assert (waiting.status, waiting.readline()) == (200, b": ping\n")
        refused = server.complete(is_stream=True)
        assert (refused.status, json.load(refused)["error"]["code"]) == (429, "rate_limit_exceeded")
        assert float(refused.headers["retry-after"]) >= 1
        *pings, last = waiting.read().strip().split(b"\n\n")
        assert set(pings) == {b": ping"}
        assert json.loads(last.removeprefix(b"data: "))["error"]["code"] == "overloaded"
        assert running.readline()


def test_an_engine_that_dies_again_and_again_fails_its_request_alone(tmp_path: Path) -> None:
    poison = {"tokens": [40] * 50, "prompt": "poison", "fault": "crash"}
    with serving(write_script(tmp_path, [poison, {"text": "Well."}])) as server:
        body = {"model": "m", "prompt": "poison", "stream": True}
        failed = server.ask("POST", "/v1/completions", body)
        assert (failed.status, json.load(failed)["error"]["code"]) == (500, "request_quarantined")
        assert json.load(server.complete())["choices"][0]["text"] == "Well."
        assert server.ask("GET", "/health").status == 200
        metrics = server.ask("GET", "/metrics").read().decode()
        restarts = re.search(r"^pelton:engine_restarts_total (.*)$", metrics, re.MULTILINE)
        assert restarts is not None
        assert float(restarts[1]) == 2


def test_others_may_reach_it_with_a_key_alone(tmp_path: Path) -> None:
    engine = write_script(tmp_path, [{"text": "Hello."}])
    with serving(engine, "--host", "0.0.0.0") as server:
        told = "  with a key made for this run: "
        assert server.greeting[2].startswith(told)
        key = server.greeting[2].removeprefix(told)
        assert server.ask("GET", "/v1/models").status == 401
        assert server.ask("GET", "/v1/models", Authorization=f"Bearer {key}").status == 200
        server.process.send_signal(signal.SIGTERM)
        _, out, err = server.end()
        assert key not in out + err
    with serving(engine, environment={"PELTON_API_KEY": "from-environment"}) as server:
        assert server.greeting[2] == "  for who has the key"
        assert server.ask("GET", "/v1/models").status == 401
        assert server.ask("GET", "/v1/models", Authorization="Bearer from-environment").status == 200


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--api-key", "secret"], 2, "would show the key"),
        (["--port", "70000"], 2, "`port` is `70000`"),
        (["--host", "no.such.host.invalid"], 2, "is not an address"),
        (["--no-auth", "--api-key-file", "none"], 2, "can't be read"),
        (["--queue-timeout", "soon"], 2, "`queue_timeout_s` is `soon`"),
        (["--engine", "scripted:none.jsonl", "--port", "0"], 2, "none.jsonl"),
        (["--engine", "magic"], 2, "`engine` is `magic`"),
        (["no/such/file.gguf", "--port", "0"], 3, "no/such/file.gguf"),
    ],
)
def test_what_can_not_be_is_told_before_anything_is_loaded(
    pelton: Pelton, arguments: Sequence[str], code: int, message: str
) -> None:
    outcome = pelton("serve", *arguments)
    assert outcome.code == code
    assert message in outcome.err
    assert "Traceback" not in outcome.err
    assert "secret" not in outcome.err


def test_a_port_in_use_is_told(pelton: Pelton) -> None:
    with listen("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        outcome = pelton("serve", "--port", port)
    assert outcome.code == 2
    assert f"`127.0.0.1:{port}` can't be listened on: address already in use" in outcome.err
    assert "--port" in outcome.err


def test_other_servers_spellings_are_taken_with_a_hint(pelton: Pelton, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        arguments = ["-m", "no/such/file", "-c", "4096", "-np", "4", "--ctx-size", "512", "--port", "0"]
        outcome = pelton("serve", *arguments, "--gpu-memory-utilization", "0.9", "--enforce-eager", "-ngl", "99")
    assert outcome.code == 3
    assert "no/such/file" in outcome.err
    told = [record.message for record in caplog.records]
    assert told == [
        "`-m` is `MODEL` here",
        "`-c` is `--max-model-len` here",
        "`-np` is `--max-num-seqs` here",
        "`--ctx-size` is `--max-model-len` here",
        "`--gpu-memory-utilization` has no effect: `--kv-cache-bytes` says how much memory the cache gets",
        "`--enforce-eager` has no effect: a program is compiled in milliseconds",
        "`-ngl` has no effect: the model runs on the CPU",
    ]


def _is_refused_at_last(port: int) -> bool:
    """Returns once connections are no longer taken."""
    while True:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)
        try:
            connection.connect()
        except ConnectionRefusedError:
            return True
        except ConnectionResetError:
            continue  # it was waiting to be taken when the listening ended
        finally:
            connection.close()
