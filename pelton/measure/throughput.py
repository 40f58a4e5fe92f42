"""How many tokens a model gives when as many requests run at once as it takes, in this process, without a server."""

from __future__ import annotations

import random
import statistics
import time
from typing import TYPE_CHECKING, Any

from pelton.sampling_params import SamplingParams

if TYPE_CHECKING:
    from pelton.llm import LLM
    from pelton.text_model import Prompt


def measure_throughput(
    llm: LLM, num_prompts: int, prompt_tokens: int, output_tokens: int, repeat: int
) -> dict[str, Any]:
    """Medians over `repeat` runs of num_prompts random prompts, all given at once."""
    generator = random.Random(7)
    sampling = SamplingParams(temperature=0.0, max_tokens=output_tokens, ignore_eos=True)

    def seconds(count: int, length: int, params: SamplingParams) -> float:
        prompts: list[Prompt] = [
            {"prompt_token_ids": [generator.randrange(llm.vocab_size) for _ in range(length)]} for _ in range(count)
        ]
        start = time.perf_counter()
        llm.generate(prompts, params)
        return time.perf_counter() - start

    seconds(1, 16, SamplingParams(temperature=0.0, max_tokens=1))  # touches every page once
    times = [seconds(num_prompts, prompt_tokens, sampling) for _ in range(repeat)]
    median = statistics.median(times)
    return {
        "threads": llm.plan.threads,
        "num_prompts": num_prompts,
        "prompt_tokens": prompt_tokens,
        "output_tokens": output_tokens,
        "max_num_seqs": llm.plan.limits.max_num_seqs,
        "seconds": times,
        "requests_per_s": num_prompts / median,
        "output_tokens_per_s": num_prompts * output_tokens / median,
        "total_tokens_per_s": num_prompts * (prompt_tokens + output_tokens) / median,
    }
