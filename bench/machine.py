"""Commit, processor and system: what a result is worth nothing without. And what the machine can do at best."""

from __future__ import annotations

import argparse
import json
import os
import platform
import shlex
import statistics
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pelton import _native

ROOT = Path(__file__).resolve().parents[1]
BANDWIDTH_BYTES = 256 << 20
PEAK_OPERAND_BYTES = 8 << 10  # room for the largest tile
PEAK_TURNS = 500  # a fraction of a millisecond per piece
PEAK_REPEATS = 20


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


def write_report(output: Path, document: dict[str, Any], text: str) -> None:
    """OUTPUT.json with every run, OUTPUT.md with the table, which is shown too."""
    output.parent.mkdir(parents=True, exist_ok=True)
    Path(f"{output}.json").write_text(json.dumps(document, indent=1) + "\n")
    Path(f"{output}.md").write_text(text)
    print(text)


def _words(value: Any) -> list[str]:
    each = value if isinstance(value, list) else [value]
    return [Path(text).name if Path(text).is_absolute() else text for text in map(str, each)]


def ceilings(threads: int) -> dict[str, float]:
    """Measured now: bytes that this many threads read per second, and multiplications that they make at best."""
    team = _native.Team(threads)
    try:
        rates = [_native.read_bandwidth(team, BANDWIDTH_BYTES) for _ in range(5)]
        return {
            "read_bytes_per_s": statistics.median(rates),
            "integer_products_per_s": product_peak(team, "peak.integer"),
            "float_products_per_s": product_peak(team, "peak.float"),
        }
    finally:
        team.close()


def product_peak(team: _native.Team, kernel: str) -> float:
    """Multiplications per second with everything in L1, on the best level (csrc/kernels/peak.cc)."""
    level = [name for name, is_usable, _ in _native.levels() if is_usable][-1]
    pieces = 8 * team.num_threads
    operands, out = (_native.Buffer(nbytes, "bench") for nbytes in (3 * PEAK_OPERAND_BYTES, pieces * 64))
    weights = memoryview(operands)
    program = _native.Program(team, level)
    places = [operands.address + index * PEAK_OPERAND_BYTES for index in range(3)]
    program.add(kernel, 0, [out.address, *places], [PEAK_TURNS, pieces], [])
    step = _native.StepInput([0], [0], [(0, 1, 0, [])], [], None)
    seconds = min(program.profile(step)[0][1] for _ in range(PEAK_REPEATS))
    (products,) = weights[2 * PEAK_OPERAND_BYTES :][:8].cast("q")
    return products * pieces / seconds
