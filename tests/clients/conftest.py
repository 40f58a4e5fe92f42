"""`pelton serve` in a process of its own, as clients find it: scripted, or with a real model."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.scripted import write_script

SIZES = {"max_num_seqs": 4, "kv_cache_bytes": 64 << 20}
TEXT = "Hello! An umlaut ä and an emoji 🙂 are in it."
SLOW_TEXT = "slow " * 8
# By a word of the prompt; all others are answered with TEXT.
ANSWERS: list[dict[str, Any]] = [
    {"prompt": "count", "text": "one two three four five"},
    {"prompt": "fail", "text": "this will not end well", "fault": "error", "fault_after": 5, "delay_s": 0.02},
    {"prompt": "slowly", "text": SLOW_TEXT, "delay_s": 0.02},
    {"prompt": "endlessly", "text": "slow " * 100, "delay_s": 0.05},
    {"text": TEXT},
]


@dataclass(frozen=True)
class RunningServer:
    """url: without a path."""

    url: str

    @property
    def api(self) -> str:
        return f"{self.url}/v1"

    def metric(self, name: str) -> float:
        """The value of one that has no labels of its own."""
        text = httpx.get(f"{self.url}/metrics").text
        match = re.search(rf"^{re.escape(name)}\{{[^}}]*\}} (\S+)$", text, re.MULTILINE)
        assert match is not None, f"{name} is not among the metrics"
        return float(match[1])


@contextmanager
def run_server(*arguments: str, log: Path) -> Iterator[RunningServer]:
    command = [sys.executable, "-m", "pelton.cli.main", "serve", "--port", "0", "--served-model-name", "pelton"]
    environment = {name: value for name, value in os.environ.items() if name != "PELTON_API_KEY"}
    with (
        log.open("w") as stderr,
        subprocess.Popen([*command, *arguments], stdout=subprocess.PIPE, stderr=stderr, env=environment) as process,
    ):
        try:
            yield RunningServer(_url_once_ready(process, log))
        finally:
            process.terminate()
            process.communicate()


def _url_once_ready(process: subprocess.Popen[bytes], log: Path) -> str:
    assert process.stdout is not None
    url = ""
    for line in map(bytes.decode, process.stdout):
        match = re.search(r"at (http://\S+)/v1", line)
        url = match[1] if match else url
        if "ready" in line:
            return url
    raise AssertionError(f"the server has ended:\n{log.read_text()}")


@contextmanager
def run_scripted(directory: Path, answers: list[dict[str, Any]], *arguments: str) -> Iterator[RunningServer]:
    with run_server("--engine", write_script(directory, answers, **SIZES), *arguments, log=directory / "log") as server:
        yield server


@pytest.fixture(scope="session")
def scripted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A server that says ANSWERS."""
    with run_scripted(tmp_path_factory.mktemp("scripted"), ANSWERS) as server:
        yield server


@pytest.fixture(scope="session")
def smollm2_server(smollm2_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A server with SmolLM2."""
    directory = tmp_path_factory.mktemp("smollm2")
    with run_server(str(smollm2_path), "--max-model-len", "512", log=directory / "log") as server:
        yield server
