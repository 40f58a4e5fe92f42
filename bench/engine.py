"""What the engine does on its own: reading weights, a decode step alone and beside a busy process, idling.

    python -m bench.engine MODEL --output bench/results/engine-NAME

MODEL is anything that Pelton takes as a model. Writes OUTPUT.json and OUTPUT.md.
"""

from __future__ import annotations

import argparse
import multiprocessing
import statistics
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

from bench.machine import ceilings, command_of, machine_facts, write_report
from pelton import LLM, SamplingParams
from pelton.config import load_settings
from pelton.runner.assembly import prepare

IDLE_S = 2.0


def spin() -> None:
    while True:
        pass


def load_rate(model: str, threads: int) -> float:
    """Bytes of weights read and packed per second, from a warm file cache."""
    prepared = prepare(load_settings({"model": model, "threads": threads}))
    start = time.perf_counter()
    program = prepared.load_program()
    rate = prepared.checkpoint.nbytes / (time.perf_counter() - start)
    program.close()
    return rate


def step_times(llm: LLM, count: int) -> list[float]:
    sampling = SamplingParams(temperature=0.0, max_tokens=count + 1, ignore_eos=True)
    moments = [time.perf_counter() for _ in llm.stream({"prompt_token_ids": list(range(1, 17))}, sampling)]
    return [b - a for a, b in pairwise(moments)]


def measure(model: str, threads: int, repeat: int) -> dict[str, Any]:
    rates = [load_rate(model, threads) for _ in range(repeat)]
    with LLM(model, threads=threads, max_model_len=1024) as llm:
        step_times(llm, 16)
        quiet, busy = [], []
        for _ in range(repeat):
            quiet += step_times(llm, 64)
            neighbour = multiprocessing.get_context("spawn").Process(target=spin, daemon=True)
            neighbour.start()
            time.sleep(0.5)
            busy += step_times(llm, 64)
            neighbour.kill()
            neighbour.join()
        before = time.process_time()
        time.sleep(IDLE_S)
        idle = (time.process_time() - before) / IDLE_S
    return {
        "load_bytes_per_s": statistics.median(rates),
        "step_quiet_s": statistics.median(quiet),
        "step_beside_busy_process_s": statistics.median(busy),
        "busy_ratio": statistics.median(busy) / statistics.median(quiet),
        "step_quiet_p99_s": statistics.quantiles(quiet, n=100)[98],
        "step_beside_busy_process_p99_s": statistics.quantiles(busy, n=100)[98],
        "idle_cpu_share": idle,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--output", type=Path, required=True, help="path without suffix")
    arguments = parser.parse_args()
    found = measure(arguments.model, arguments.threads, arguments.repeat)
    name = Path(arguments.model).name
    about = {
        **machine_facts(),
        "model": name,
        "threads": arguments.threads,
        "command": command_of("bench.engine", arguments, ["model"]),
    }
    document = {"about": about, "ceilings": ceilings(arguments.threads), "measured": found}
    rows = "\n".join(f"| {key} | {value:.4g} |" for key, value in {**found, **document["ceilings"]}.items())
    text = (
        f"# {name}: the engine alone\n\n{about['cpu']}, {arguments.threads} threads, commit {about['commit'][:12]}.\n\n"
    )
    text += f"| measure | value |\n|---|---|\n{rows}\n\nCommand: `{about['command']}`\n"
    write_report(arguments.output, document, text)


if __name__ == "__main__":
    main()
