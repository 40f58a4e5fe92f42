"""`pelton bench latency MODEL`: prefill and decode rates of one stream, medians over repeats."""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time
from typing import TYPE_CHECKING, Any

from pelton.cli.options import add_json, add_settings, positive, settings_from
from pelton.config import DEFAULT_MODEL
from pelton.sampling_params import SamplingParams

if TYPE_CHECKING:
    from pelton.llm import LLM

BANDWIDTH_BYTES = 256 << 20


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("kind", choices=("latency",), help="latency: one stream alone")
    parser.add_argument("model", nargs="?", default=DEFAULT_MODEL, help=f"which model ({DEFAULT_MODEL})")
    parser.add_argument(
        "--pp", type=positive, nargs="+", default=[128, 512], metavar="N", help="prompt lengths (128 512)"
    )
    parser.add_argument("--tg", type=positive, default=64, metavar="N", help="tokens to decode (64)")
    parser.add_argument("--repeat", type=positive, default=5, metavar="N", help="runs of each (5)")
    add_json(parser)
    add_settings(parser, "engine", "store")


def run(arguments: argparse.Namespace) -> int:
    from pelton.llm import LLM

    start = time.perf_counter()
    with LLM.from_settings(settings_from(arguments, model=arguments.model)) as llm:
        load_s = time.perf_counter() - start
        document = measure(llm, arguments.pp, arguments.tg, arguments.repeat)
    document = {"model": arguments.model, "load_s": load_s, **document}
    if arguments.json:
        print(json.dumps(document, indent=1))
        return 0
    print(f"{arguments.model}: loaded in {load_s:.2f} s, {document['threads']} threads")
    for row in document["rows"]:
        share = (
            f", {row['share_of_read_bandwidth']:.0%} of the read bandwidth" if "share_of_read_bandwidth" in row else ""
        )
        print(f"  {row['name']:<12} {row['tokens_per_s']:8.1f} tokens/s ({row['min']:.1f} to {row['max']:.1f}){share}")
    return 0


def measure(llm: LLM, prompt_lengths: list[int], num_decoded: int, repeat: int) -> dict[str, Any]:
    from pelton import _native

    generator = random.Random(7)
    one = SamplingParams(temperature=0.0, max_tokens=1, ignore_eos=True)
    many = SamplingParams(temperature=0.0, max_tokens=num_decoded + 1, ignore_eos=True)

    def moments(length: int, sampling: SamplingParams) -> list[float]:
        """Of the start and of every token."""
        prompt = [generator.randrange(llm.vocab_size) for _ in range(length)]
        times = [time.perf_counter()]
        times += [time.perf_counter() for _ in llm.stream({"prompt_token_ids": prompt}, sampling)]
        return times

    moments(16, one)  # touches every page once
    rows = []
    for length in prompt_lengths:
        rates = []
        for _ in range(repeat):
            start, first = moments(length, one)
            rates.append(length / (first - start))
        rows.append(_row(f"prefill {length}", rates))
    rates = []
    for _ in range(repeat):
        times = moments(16, many)
        rates.append((len(times) - 2) / (times[-1] - times[1]))
    team = _native.Team(llm.plan.threads)
    bandwidth = max(_native.read_bandwidth(team, BANDWIDTH_BYTES) for _ in range(3))
    team.close()
    weight_bytes = sum(line.nbytes for line in llm.plan.memory if line.name.startswith("weights"))
    decode = _row(f"decode {num_decoded}", rates)
    decode["share_of_read_bandwidth"] = decode["tokens_per_s"] * weight_bytes / bandwidth
    rows.append(decode)
    return {"threads": llm.plan.threads, "read_bytes_per_s": bandwidth, "rows": rows}


def _row(name: str, rates: list[float]) -> dict[str, Any]:
    return {"name": name, "tokens_per_s": statistics.median(rates), "min": min(rates), "max": max(rates)}
