"""Pelton's server beside llama.cpp's: many streams at once; and alone: repeated prompts, streams beside a long prompt.

    python -m bench.serve MODEL.gguf --peer LLAMA_SERVER --output bench/results/serve-NAME

LLAMA_SERVER is the program `llama-server`, built natively (GGML_NATIVE=ON) from the llama.cpp sources in the source
distribution of `llama-cpp-python`. Writes OUTPUT.json (every run) and OUTPUT.md (the tables).
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

from bench import servers
from bench.machine import command_of, machine_facts, write_report
from pelton.measure.load import Ask, Outcome, Target, ask, closed_loop, random_asks
from pelton.measure.sse_client import Endpoint
from pelton.measure.summary import percentile, summarise

TIMEOUT_S = 600.0


def target(server: servers.Server) -> Target:
    return Target(Endpoint.parse(server.url), server.model, "completions", {}, {"ignore_eos": True})


def run_streams(server: servers.Server, streams: int, arguments: argparse.Namespace, seed: int) -> dict[str, Any]:
    """As many requests per stream as `waves`, after one short request for each."""

    async def measure() -> list[Outcome]:
        warm = random_asks(streams, 16, 4, as_text=False, seed=seed + 1)
        await closed_loop(target(server), warm, streams, TIMEOUT_S)
        count = arguments.waves * streams
        asks = random_asks(count, arguments.input_tokens, arguments.output_tokens, as_text=False, seed=seed)
        return await closed_loop(target(server), asks, streams, TIMEOUT_S)

    before = server.cpu_seconds()
    found = summarise(asyncio.run(measure()), None, None)
    after = server.cpu_seconds()
    found["cpu_seconds"] = {name: after[name] - before.get(name, 0.0) for name in after}
    found["schedule_share"] = schedule_share(server.url)
    if found["failures"]:
        raise SystemExit(f"{server.url}: {found['failures']}")
    return found


def schedule_share(url: str) -> float | None:
    """Of the engine's time since its start, what it spent between steps; None for a server that does not tell."""
    with urllib.request.urlopen(url + "/metrics", timeout=10) as answer:
        lines = [line.split() for line in answer.read().decode().splitlines() if line.startswith("pelton:")]
    seconds = {name: float(value) for name, value in lines if name.endswith("_seconds_total")}
    if not seconds:
        return None
    between, computing = seconds["pelton:schedule_seconds_total"], seconds["pelton:step_seconds_total"]
    return between / (between + computing)


def compare_streams(arguments: argparse.Namespace) -> dict[str, Any]:
    """streams → engine → one summary per round; engines take turns."""
    runs: dict[str, Any] = {}
    context = arguments.input_tokens + arguments.output_tokens + 64
    for streams in arguments.streams:
        runs[str(streams)] = {"pelton": [], "llama.cpp": []}
        for number in range(arguments.rounds):
            for engine in ("pelton", "llama.cpp"):
                if engine == "pelton":
                    start = servers.pelton(arguments.model, arguments.threads, streams, context)
                else:
                    start = servers.llama_server(arguments.peer, arguments.model, arguments.threads, streams, context)
                with start as server:
                    found = run_streams(server, streams, arguments, number)
                runs[str(streams)][engine].append(found)
                rate = found["output_tokens_per_s"]
                print(f"{streams} streams, round {number}, {engine}: {rate:.1f} tokens/s", file=sys.stderr)
    return runs


def random_ask(prompt_tokens: int, output_tokens: int, seed: int) -> Ask:
    (wish,) = random_asks(1, prompt_tokens, output_tokens, as_text=False, seed=seed)
    return wish


def repeated_prompt(arguments: argparse.Namespace) -> dict[str, Any]:
    """Time to the first token of a prompt, and of the same prompt again."""
    first, again = [], []
    with servers.pelton(arguments.model, arguments.threads, 4, arguments.repeated_tokens + 64) as server:
        for number in range(5):
            wish = random_ask(arguments.repeated_tokens, 1, seed=number)
            first.append(asyncio.run(ask(target(server), wish, TIMEOUT_S)).first_token_s)
            again.append(asyncio.run(ask(target(server), wish, TIMEOUT_S)).first_token_s)
    ratios = [b / a for a, b in zip(first, again, strict=True)]
    return {
        "prompt_tokens": arguments.repeated_tokens,
        "first_s": statistics.median(first),
        "again_s": statistics.median(again),
        "ratio": statistics.median(ratios),
    }


def beside_a_long_prompt(arguments: argparse.Namespace) -> dict[str, Any]:
    """Gaps between the tokens of running streams, undisturbed and while a long prompt is computed."""
    streams = 4
    context = arguments.long_tokens + 1024

    async def measure(server: servers.Server) -> tuple[list[Outcome], float, Outcome]:
        asks = random_asks(streams, 64, 700, as_text=False, seed=3)
        running = [asyncio.create_task(ask(target(server), wish, TIMEOUT_S)) for wish in asks]
        await asyncio.sleep(4.0)
        began = time.perf_counter()
        long = await ask(target(server), random_ask(arguments.long_tokens, 1, seed=11), TIMEOUT_S)
        return list(await asyncio.gather(*running)), began, long

    with servers.pelton(arguments.model, arguments.threads, streams + 1, context) as server:
        asyncio.run(ask(target(server), random_ask(16, 8, seed=1), TIMEOUT_S))
        outcomes, began, long = asyncio.run(measure(server))
    quiet, disturbed = [], []
    for outcome in outcomes:
        for earlier, later in zip(outcome.moments[8:], outcome.moments[9:], strict=False):
            if later < began:
                quiet.append(later - earlier)
            elif later < long.moments[0]:
                disturbed.append(later - earlier)
    median = statistics.median(quiet)
    p99 = percentile(sorted(disturbed), 99)
    return {
        "streams": streams,
        "long_prompt_tokens": arguments.long_tokens,
        "long_prompt_first_token_s": long.first_token_s,
        "undisturbed_median_ms": median * 1e3,
        "disturbed_median_ms": statistics.median(disturbed) * 1e3,
        "disturbed_p99_ms": p99 * 1e3,
        "ratio": p99 / median,
    }


def table(report: dict[str, Any]) -> str:
    about = report["about"]
    lines = [
        f"# {about['model']}: serving",
        "",
        f"{about['cpu']}, {about['threads']} threads, commit {about['commit'][:12]}, {about['rounds']} rounds in turn.",
    ]
    if report["streams"]:
        lines += [
            "",
            f"{about['input_tokens']} tokens in, {about['output_tokens']} out; output tokens per second; medians; the",
            "client runs on the same machine. ratio: median of pairs (min to max). HTTP: its share of the CPU time;",
            "scheduling: share of the engine's time.",
            "",
            "| streams | Pelton | llama-server | ratio | first token p50 (ms) | inter-token p50; p99 (ms) | HTTP | "
            "scheduling |",
            "|---|---|---|---|---|---|---|---|",
        ]
        for streams, engines in report["streams"].items():
            ours, theirs = engines["pelton"], engines["llama.cpp"]
            pairs = zip(ours, theirs, strict=True)
            ratios = [a["output_tokens_per_s"] / b["output_tokens_per_s"] for a, b in pairs]
            rates = [statistics.median(run["output_tokens_per_s"] for run in runs) for runs in (ours, theirs)]

            def both(measure: str, share: str, ours: Any = ours, theirs: Any = theirs) -> str:
                return " / ".join(
                    f"{statistics.median(run[measure][share] for run in runs):.0f}" for runs in (ours, theirs)
                )

            http = statistics.median(run["cpu_seconds"]["main"] / sum(run["cpu_seconds"].values()) for run in ours)
            spread = f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
            gaps = f"{both('inter_token_ms', 'p50')}; {both('inter_token_ms', 'p99')}"
            first = both("time_to_first_token_ms", "p50")
            scheduling = statistics.median(run["schedule_share"] for run in ours)
            row = [str(streams), f"{rates[0]:.1f}", f"{rates[1]:.1f}", spread, first, gaps]
            lines.append("| " + " | ".join([*row, f"{http:.1%}", f"{scheduling:.1%}"]) + " |")
    for name in ("repeated_prompt", "beside_a_long_prompt"):
        if report[name]:
            rows = [f"| {key} | {value:.4g} |" for key, value in report[name].items()]
            lines += ["", f"{name.replace('_', ' ').capitalize()}:", "", "| measure | value |", "|---|---|", *rows]
    return "\n".join([*lines, "", f"Command: `{about['command']}`", ""])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--peer", help="path of llama-server; without it only Pelton's own figures are taken")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--streams", type=int, nargs="*", default=[8, 32])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--waves", type=int, default=2, help="requests per stream, one after the other")
    parser.add_argument("--input-tokens", type=int, default=128)
    parser.add_argument("--output-tokens", type=int, default=128)
    parser.add_argument("--repeated-tokens", type=int, default=1500, help="0: not measured")
    parser.add_argument("--long-tokens", type=int, default=4000, help="0: not measured")
    parser.add_argument("--output", type=Path, required=True, help="path without suffix")
    arguments = parser.parse_args()
    about = {
        **machine_facts(),
        "model": Path(arguments.model).name,
        **{name: getattr(arguments, name) for name in ("threads", "rounds", "input_tokens", "output_tokens")},
        "command": command_of("bench.serve", arguments, ["model"]),
    }
    report = {
        "about": about,
        "streams": compare_streams(arguments) if arguments.peer else {},
        "repeated_prompt": repeated_prompt(arguments) if arguments.repeated_tokens else {},
        "beside_a_long_prompt": beside_a_long_prompt(arguments) if arguments.long_tokens else {},
    }
    write_report(arguments.output, report, table(report))


if __name__ == "__main__":
    main()
