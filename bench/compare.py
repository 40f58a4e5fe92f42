"""Pelton beside a peer: same file, same threads, runs in turn; medians, ratios pair by pair, shares of ceilings.

    python -m bench.compare MODEL --peer-python PEER_VENV/bin/python --output bench/results/compare-NAME

The peer is llama.cpp through `llama-cpp-python`, built natively for this machine in an environment of its own:
    python -m venv PEER_VENV
    CMAKE_ARGS=-DGGML_NATIVE=ON PEER_VENV/bin/pip install --no-binary llama-cpp-python llama-cpp-python
Writes OUTPUT.json (every run) and OUTPUT.md (the table). With `--baseline EARLIER.json` it also tells how the ratios
have changed, with confidence intervals, and exits with 1 if one has become worse.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from bench import baseline
from bench.machine import ROOT, ceilings, command_of, machine_facts, write_report
from pelton.config import StoreSettings
from pelton.weights.reference import resolve_reference

# Ours as a module, so that it finds Pelton as this one did; the peer's environment knows nothing of us.
WORKERS = {"pelton": ["-m", "bench.worker"], "llama.cpp": [str(ROOT / "bench" / "peer_llama_cpp.py")]}
UNITS = {"prefill": "tokens/s", "decode": "tokens/s", "first": "s", "peak": "MB"}


def run_worker(python: str, engine: str, request: dict[str, Any]) -> dict[str, float]:
    """One process from its start to its end. start_to_first_token_s counts from before the interpreter starts."""
    start = time.perf_counter()
    with subprocess.Popen(
        [python, *WORKERS[engine], json.dumps(request)], cwd=ROOT, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        first = process.stdout.readline()
        first_token_s = time.perf_counter() - start
        rest = process.stdout.read()
    if process.returncode != 0 or not first:
        raise SystemExit(f"{engine} failed with exit code {process.returncode}")
    return {**json.loads(rest), "first_token_s": first_token_s}


def facts(arguments: argparse.Namespace, path: Path) -> dict[str, Any]:
    peer = subprocess.run(
        [arguments.peer_python, "-c", "import llama_cpp; print(llama_cpp.__version__)"], capture_output=True, text=True
    ).stdout.strip()
    return {
        **machine_facts(),
        "peer": f"llama-cpp-python {peer}",
        "model": path.name,
        "threads": arguments.threads,
        "rounds": arguments.rounds,
        "command": command_of("bench.compare", arguments, ["model"]),
    }


def summarise(
    runs: dict[str, list[dict[str, float]]], weight_bytes: int, limit: dict[str, float]
) -> list[dict[str, Any]]:
    rows = []
    for name in runs["pelton"][0]:
        ours = [run[name] for run in runs["pelton"]]
        theirs = [run[name] for run in runs["llama.cpp"]]
        ratios = [a / b for a, b in zip(ours, theirs, strict=True)]
        row = {
            "measure": name,
            "pelton": statistics.median(ours),
            "llama.cpp": statistics.median(theirs),
            "ratio": statistics.median(ratios),
            "ratio_min": min(ratios),
            "ratio_max": max(ratios),
        }
        if name.startswith("decode"):
            row["share_of_read_bandwidth"] = row["pelton"] * weight_bytes / limit["read_bytes_per_s"]
        rows.append(row)
    return rows


def table(rows: list[dict[str, Any]], about: dict[str, Any], limit: dict[str, float]) -> str:
    lines = [
        f"# {about['model']}: Pelton and llama.cpp",
        "",
        f"{about['cpu']}, {about['threads']} threads, {about['rounds']} interleaved rounds, {about['peer']}, "
        f"commit {about['commit'][:12]}. Medians; ratio = Pelton / llama.cpp, median of pairs (min to max).",
        f"Read bandwidth measured in the same session: {limit['read_bytes_per_s'] / 1e9:.1f} GB/s.",
        "",
        "| measure | Pelton | llama.cpp | ratio | share of read bandwidth |",
        "|---|---|---|---|---|",
    ]
    for row in rows:
        scale = 1e-6 if row["measure"].startswith("peak") else 1.0
        digits = 2 if row["measure"].startswith("first") else 1
        share = f"{row['share_of_read_bandwidth']:.0%}" if "share_of_read_bandwidth" in row else ""
        lines.append(
            f"| {row['measure']} ({UNITS[row['measure'].split('_')[0]]}) "
            f"| {row['pelton'] * scale:.{digits}f} | {row['llama.cpp'] * scale:.{digits}f} "
            f"| {row['ratio']:.2f} ({row['ratio_min']:.2f} to {row['ratio_max']:.2f}) | {share} |"
        )
    return "\n".join([*lines, "", f"Command: `{about['command']}`", ""])


def read_baseline(path: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    """Before anything is run: a result that was made differently can't be compared."""
    earlier: dict[str, Any] = json.loads(path.read_text())
    if earlier["about"]["threads"] != arguments.threads:
        raise SystemExit(f"{path} was measured with {earlier['about']['threads']} threads, not {arguments.threads}")
    return earlier


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="anything that Pelton takes as a model and that is one GGUF file")
    parser.add_argument("--peer-python", required=True)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--prefill", type=int, nargs="*", default=[128, 512, 2048])
    parser.add_argument("--decode", type=int, default=128)
    parser.add_argument("--decode-contexts", type=int, nargs="*", default=[16])
    parser.add_argument("--output", type=Path, required=True, help="path without suffix")
    parser.add_argument("--baseline", type=Path, help="OUTPUT.json of an earlier run on the same model")
    arguments = parser.parse_args()
    earlier = read_baseline(arguments.baseline, arguments) if arguments.baseline else None
    path = resolve_reference(arguments.model, StoreSettings.from_environment())
    longest = max([*arguments.prefill, *(c + arguments.decode for c in arguments.decode_contexts)])
    request = {
        "model": str(path.resolve()),
        "threads": arguments.threads,
        "context": longest + 64,
        "prefill": arguments.prefill,
        "decode": arguments.decode,
        "decode_contexts": arguments.decode_contexts,
    }
    pythons = {"pelton": sys.executable, "llama.cpp": arguments.peer_python}
    runs: dict[str, list[dict[str, float]]] = {engine: [] for engine in WORKERS}
    for number in range(arguments.rounds + 1):
        for engine in WORKERS:
            run = run_worker(pythons[engine], engine, request)
            if number > 0:  # the first round warms the file cache
                runs[engine].append(run)
            print(f"round {number} {engine}: {json.dumps({k: round(v, 3) for k, v in run.items()})}", file=sys.stderr)
    about, limit = facts(arguments, path), ceilings(arguments.threads)
    rows = summarise(runs, path.stat().st_size, limit)
    report = {"about": about, "ceilings": limit, "rows": rows, "runs": runs}
    text = table(rows, about, limit)
    found = baseline.changes(runs, earlier["runs"]) if earlier else []
    if earlier:
        text += "\n" + baseline.table(found, earlier["about"])
    write_report(arguments.output, report, text)
    sys.exit(any(change.is_regression for change in found))


if __name__ == "__main__":
    main()
