"""Commit, processor and system: what a result is worth nothing without. And what the machine can do at best."""

from __future__ import annotations

import argparse
import os
import platform
import shlex
import statistics
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
BANDWIDTH_BYTES = 256 << 20


def machine_facts() -> dict[str, Any]:
    commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True)
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.is_file() else []
    names = [line.split(":")[1].strip() for line in lines if line.startswith("model name")]
    return {
        "commit": commit.stdout.strip(),
        "cpu": names[0] if names else platform.processor(),
        "cpus": os.cpu_count(),
        "system": platform.platform(),
        "python": platform.python_version(),
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
    }


def command_of(module: str, arguments: argparse.Namespace, positional: Sequence[str]) -> str:
    """The whole command, with every option that has a value, given or not; of an absolute path only the name, since the
    rest is this machine's. positional: the names of the arguments that no option precedes."""
    words = ["python", "-m", module]
    for name in positional:
        words += _words(getattr(arguments, name))
    for name, value in vars(arguments).items():
        if name not in positional and value is not None:
            words += ["--" + name.replace("_", "-"), *_words(value)]
    return shlex.join(words)


def _words(value: Any) -> list[str]:
    each = value if isinstance(value, list) else [value]
    return [Path(text).name if Path(text).is_absolute() else text for text in map(str, each)]


def ceilings(threads: int) -> dict[str, float]:
    """Measured now: bytes per second that this many threads read."""
    from pelton import _native

    team = _native.Team(threads)
    rates = [_native.read_bandwidth(team, BANDWIDTH_BYTES) for _ in range(5)]
    team.close()
    return {"read_bytes_per_s": statistics.median(rates)}
