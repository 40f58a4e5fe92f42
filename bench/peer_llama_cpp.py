"""Runs one model once with llama.cpp and prints what it measured as JSON; started by compare.py in the peer's Python.

Uses the library's own calls (llama_decode, greedy sampler), so that no Python of the peer is on the way of a token.
"""

from __future__ import annotations

import json
import random
import resource
import sys
import time

import llama_cpp as peer


class Session:
    """One model and one context."""

    def __init__(self, model: str, threads: int, context: int) -> None:
        peer.llama_log_set(_quiet, None)
        peer.llama_backend_init()
        parameters = peer.llama_model_default_params()
        self.model = peer.llama_model_load_from_file(model.encode(), parameters)
        self.vocab = peer.llama_model_get_vocab(self.model)
        settings = peer.llama_context_default_params()
        settings.n_ctx = context
        settings.n_batch = 2048
        settings.n_ubatch = 512
        settings.n_threads = settings.n_threads_batch = threads
        settings.no_perf = True
        self.context = peer.llama_init_from_model(self.model, settings)
        self.sampler = peer.llama_sampler_init_greedy()

    def clear(self) -> None:
        peer.llama_memory_clear(peer.llama_get_memory(self.context), True)

    def feed(self, tokens: list[int]) -> int:
        """Computes the tokens after what is in the cache; returns the next one, chosen greedily."""
        array = (peer.llama_token * len(tokens))(*tokens)
        if peer.llama_decode(self.context, peer.llama_batch_get_one(array, len(tokens))) != 0:
            raise RuntimeError("llama_decode failed")
        return int(peer.llama_sampler_sample(self.sampler, self.context, -1))


@peer.llama_log_callback
def _quiet(level: int, text: bytes, data: object) -> None:
    pass


def main() -> None:
    request = json.loads(sys.argv[1])
    session = Session(request["model"], request["threads"], request["context"])
    generator = random.Random(7)
    size = peer.llama_vocab_n_tokens(session.vocab)
    token = session.feed([generator.randrange(size // 2) for _ in range(8)])
    print(json.dumps({"first_token": token}), flush=True)
    measured: dict[str, float] = {}
    for length in request["prefill"]:
        session.clear()
        prompt = [generator.randrange(size // 2) for _ in range(length)]
        start = time.perf_counter()
        session.feed(prompt)
        measured[f"prefill_{length}"] = length / (time.perf_counter() - start)
    for context in request["decode_contexts"]:
        session.clear()
        token = session.feed([generator.randrange(size // 2) for _ in range(context)])
        start = time.perf_counter()
        for _ in range(request["decode"]):
            token = session.feed([token])
        measured[f"decode_{context}"] = request["decode"] / (time.perf_counter() - start)
    measured["peak_rss_bytes"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(json.dumps(measured), flush=True)


if __name__ == "__main__":
    main()
