"""The Python API over real models: how the engine cuts, mixes and repeats work never changes an answer."""

from __future__ import annotations

from pathlib import Path

import pytest

from pelton.llm import LLM
from pelton.outputs import RequestOutput
from pelton.sampling_params import SamplingParams

pytestmark = pytest.mark.model

LONG = "one two three four five six seven eight nine ten " * 54  # beyond Gemma's window of 512 tokens
SHORT = ["The capital of France is", "Once upon a time", "Two and two make"]
SAMPLING = SamplingParams(max_tokens=40, seed=11, temperature=0.8, logprobs=3, ignore_eos=True)


def answers(outputs: list[RequestOutput]) -> list[object]:
    return [(output.outputs[0].token_ids, output.outputs[0].logprobs) for output in outputs]


@pytest.fixture(params=["smollm2_path", "gemma3_path"])
def model_path(request: pytest.FixtureRequest) -> Path:
    path: Path = request.getfixturevalue(request.param)
    return path


def test_answers_are_bitwise_the_same_alone_mixed_chunked_and_preempted(model_path: Path) -> None:
    prompts = [LONG, *SHORT]
    with LLM(str(model_path), max_model_len=1024) as llm:
        alone = [llm.generate(prompt, SAMPLING)[0] for prompt in prompts]
        mixed = llm.generate(prompts, SAMPLING)
    with LLM(str(model_path), max_model_len=1024, max_num_batched_tokens=40) as llm:
        chunked = llm.generate(prompts, SAMPLING)
    with LLM(str(model_path), max_num_seqs=8, max_model_len=96, kv_cache_bytes="1KiB") as llm:  # the least
        preempted = llm.generate(SHORT * 3, SAMPLING)
        assert llm._loaded.engine.scheduler.num_preemptions > 0
    assert answers(mixed) == answers(alone)
    assert answers(chunked) == answers(alone)
    assert answers(preempted) == answers(alone)[1:] * 3


def test_a_stream_of_a_conversation_joined_is_the_answer(smollm2_path: Path) -> None:
    messages = [{"role": "user", "content": "Why is the sky blue?"}]
    sampling = SamplingParams(max_tokens=20, temperature=0)
    with LLM(str(smollm2_path), max_model_len=256) as llm:
        (whole,) = llm.chat(messages, sampling)
        parts = list(llm.stream_chat(messages, sampling))
    assert "".join(part.outputs[0].text for part in parts) == whole.outputs[0].text
    assert "light" in whole.outputs[0].text
