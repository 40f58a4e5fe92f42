"""SmolLM2 over HTTP says what it says without a server: token by token, whoever else asks meanwhile."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import openai
import pytest

from pelton import LLM, SamplingParams
from tests.clients.conftest import RunningServer

MESSAGES: list[Any] = [{"role": "user", "content": "Name three colours."}]
WISHES: list[dict[str, Any]] = [
    {"temperature": 0.0},
    {"temperature": 1.0, "seed": 7},
    {"temperature": 0.8, "seed": 8, "top_p": 0.9, "presence_penalty": 0.5},
    {"temperature": 1.0, "seed": 9, "n": 2},
]
NUM_TOKENS = 16


def direct(path: Path) -> list[list[tuple[str, list[float]]]]:
    """Per wish and choice, the text and the log-probabilities."""
    with LLM(str(path), max_model_len=512) as llm:
        found = []
        for wish in WISHES:
            sampling = SamplingParams(max_tokens=NUM_TOKENS, logprobs=0, **{**llm.recommended_sampling, **wish})
            (output,) = llm.chat(MESSAGES, sampling)
            found.append([(choice.text, _logprobs(choice)) for choice in output.outputs])
        return found


def _logprobs(choice: Any) -> list[float]:
    return [entry[token].logprob for token, entry in zip(choice.token_ids, choice.logprobs, strict=True)]


@pytest.mark.model
def test_real_model_says_the_same_over_http(smollm2_server: RunningServer, smollm2_path: Path) -> None:
    async def scenario() -> list[Any]:
        async with openai.AsyncOpenAI(base_url=smollm2_server.api, api_key="none", max_retries=0) as client:

            async def ask(wish: dict[str, Any]) -> list[tuple[str, list[float]]]:
                arguments = {"model": "pelton", "messages": MESSAGES, "max_tokens": NUM_TOKENS, "logprobs": True}
                texts = [""] * wish.get("n", 1)
                logprobs: list[list[float]] = [[] for _ in texts]
                async for chunk in await client.chat.completions.create(**arguments, **wish, stream=True):
                    (choice,) = chunk.choices
                    texts[choice.index] += choice.delta.content or ""
                    if choice.logprobs is not None:
                        logprobs[choice.index] += (token.logprob for token in choice.logprobs.content or [])
                return list(zip(texts, logprobs, strict=True))

            return await asyncio.gather(*(ask(wish) for wish in WISHES))

    assert asyncio.run(scenario()) == direct(smollm2_path)
