"""Starts the servers that are compared, each with the same model, threads and slots, and waits until they answer."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

START_S = 120.0


@dataclass(frozen=True)
class Server:
    """A server that answers. model: its name there."""

    url: str
    model: str
    process: subprocess.Popen[bytes]

    def cpu_seconds(self) -> dict[str, float]:
        """User and system time so far, by process: "main" and its children by number."""
        ids = [self.process.pid, *_children(self.process.pid)]
        return {"main" if index == 0 else f"child {index}": _cpu_seconds(pid) for index, pid in enumerate(ids)}


@contextmanager
def pelton(model: str, threads: int, slots: int, context: int) -> Iterator[Server]:
    """context: tokens per slot."""
    command = [sys.executable, "-m", "pelton.cli.main", "serve", model, "--threads", str(threads)]
    command += ["--max-num-seqs", str(slots), "--max-model-len", str(context)]
    with _running(command, "/ready") as server:
        yield server


@contextmanager
def llama_server(binary: str, model: str, threads: int, slots: int, context: int) -> Iterator[Server]:
    """The peer divides its context among its slots."""
    command = [binary, "-m", model, "-t", str(threads), "-tb", str(threads), "-np", str(slots)]
    command += ["-c", str(slots * context), "--host", "127.0.0.1", "--metrics"]
    with _running(command, "/health") as server:
        yield server


@contextmanager
def _running(command: list[str], health: str) -> Iterator[Server]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen([*command, "--port", str(port)], stdout=log, stderr=log)
        try:
            deadline = time.monotonic() + START_S
            while not _answers(url + health):
                if process.poll() is not None or time.monotonic() > deadline:
                    log.seek(0)
                    raise SystemExit(f"{command[0]} did not start:\n{log.read()[-2000:].decode(errors='replace')}")
                time.sleep(0.05)
            with urllib.request.urlopen(url + "/v1/models", timeout=10) as answer:
                model = json.load(answer)["data"][0]["id"]
            yield Server(url, model, process)
        finally:
            process.terminate()
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def _children(pid: int) -> list[int]:
    listed = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    found = [int(child) for child in listed]
    return found + [grandchild for child in found for grandchild in _children(child)]


def _cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100  # clock ticks are 1/100 s on Linux
