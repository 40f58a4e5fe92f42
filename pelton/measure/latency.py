"""Prefill and decode rates of one stream alone, medians over repeats, beside what the memory can give."""

from __future__ import annotations

import random
import statistics
import time
from typing import TYPE_CHECKING, Any

from pelton.sampling_params import SamplingParams

if TYPE_CHECKING:
    from pelton.llm import LLM

BANDWIDTH_BYTES = 256 << 20


def measure_latency(llm: LLM, prompt_lengths: list[int], num_decoded: int, repeat: int) -> dict[str, Any]:
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
