"""Runs one model once with Pelton and prints what it measured as JSON; started by compare.py."""

from __future__ import annotations

import json
import random
import resource
import sys
import time
from collections.abc import Iterator

from pelton import LLM, SamplingParams


def stream(llm: LLM, prompt: list[int], max_tokens: int) -> Iterator[float]:
    """The moment at which each token came."""
    parameters = SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True)
    for _ in llm.stream({"prompt_token_ids": prompt}, parameters):
        yield time.perf_counter()


def main() -> None:
    request = json.loads(sys.argv[1])
    generator = random.Random(7)
    llm = LLM(
        request["model"], threads=request["threads"], max_model_len=request["context"], **request.get("settings", {})
    )
    size = llm.vocab_size

    def prompt(length: int) -> list[int]:
        return [generator.randrange(size // 2) for _ in range(length)]

    list(stream(llm, prompt(8), 1))
    print(json.dumps({"first_token": True}), flush=True)
    measured: dict[str, float] = {}
    for length in request["prefill"]:
        tokens = prompt(length)
        start = time.perf_counter()
        (first,) = stream(llm, tokens, 1)
        measured[f"prefill_{length}"] = length / (first - start)
    for context in request["decode_contexts"]:
        moments = list(stream(llm, prompt(context), request["decode"] + 1))
        measured[f"decode_{context}"] = (len(moments) - 1) / (moments[-1] - moments[0])
    measured["peak_rss_bytes"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(json.dumps(measured), flush=True)


if __name__ == "__main__":
    main()
