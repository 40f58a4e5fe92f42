"""Requests become sampling parameters: whose word counts, what fits, what contradicts itself."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from pelton.sampling_params import SamplingParams
from pelton.server.errors import ApiError
from pelton.server.openai.sampling import (
    Wish,
    chat_wish,
    check_stream,
    completion_wish,
    sampling_params,
    truncate,
)
from pelton.server.openai.schemas import ChatCompletionRequest, CompletionRequest

HELLO = [{"role": "user", "content": "Hi"}]


def chat(**fields: Any) -> ChatCompletionRequest:
    return msgspec.convert({"messages": HELLO, **fields}, ChatCompletionRequest, str_keys=True)


def completion(**fields: Any) -> CompletionRequest:
    return msgspec.convert({"prompt": "a", **fields}, CompletionRequest)


def sampling(num_prompt: int = 10, defaults: dict[str, Any] | None = None, **fields: Any) -> SamplingParams:
    request = chat(**fields)
    return sampling_params(request, chat_wish(request, 2048), num_prompt, max_model_len=100, defaults=defaults or {})


def test_every_field_reaches_the_sampler() -> None:
    fields: dict[str, Any] = {
        "n": 3,
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 7,
        "min_p": 0.1,
        "repetition_penalty": 1.1,
        "presence_penalty": -1.0,
        "frequency_penalty": 2.0,
        "seed": -5,
        "stop_token_ids": [3],
        "min_tokens": 2,
        "ignore_eos": True,
        "include_stop_str_in_output": True,
        "skip_special_tokens": False,
        "prompt_logprobs": 4,
    }
    found = sampling(**fields, logit_bias={"5": 1.5}, stop=["a", "b"], logprobs=True, top_logprobs=3, max_tokens=9)
    for name, value in fields.items():
        assert getattr(found, name) == (tuple(value) if isinstance(value, list) else value), name
    assert found.logit_bias == {5: 1.5}
    assert found.stop == ("a", "b")
    assert (found.logprobs, found.max_tokens) == (3, 9)


def test_request_wins_over_the_model_and_the_model_over_defaults() -> None:
    defaults = {"temperature": 0.6, "top_k": 20}
    assert sampling(defaults=defaults).temperature == 0.6
    assert sampling(defaults=defaults, temperature=0.0).temperature == 0.0
    assert sampling(defaults=defaults, top_k=-1).top_k == -1
    assert sampling().temperature == 1.0


def test_answers_are_as_long_as_the_request_the_model_or_the_server_says_and_the_context_allows() -> None:
    assert sampling(max_tokens=5).max_tokens == 5
    assert sampling(max_completion_tokens=5, defaults={"max_tokens": 7}).max_tokens == 5
    assert sampling(defaults={"max_tokens": 7}).max_tokens == 7
    assert sampling(defaults={"max_tokens": 1000}).max_tokens == 90
    assert sampling().max_tokens == 90
    assert sampling(max_tokens=90).max_tokens == 90
    request = completion()
    found = sampling_params(request, completion_wish(request), 10, max_model_len=100, defaults={})
    assert found.max_tokens == 16


@pytest.mark.parametrize(
    ("num_prompt", "fields", "numbers"),
    [
        (10, {"max_tokens": 91}, "requested 101 tokens (10 in the messages, 91 in the completion)"),
        (100, {}, "requested 101 tokens (100 in the messages, 1 in the completion)"),
        (150, {"max_tokens": 20}, "requested 170 tokens (150 in the messages, 20 in the completion)"),
    ],
)
def test_what_does_not_fit_is_refused_in_the_words_that_clients_look_for(
    num_prompt: int, fields: dict[str, Any], numbers: str
) -> None:
    with pytest.raises(ApiError) as caught:
        sampling(num_prompt, **fields)
    assert (caught.value.status, caught.value.code) == (400, "context_length_exceeded")
    words = f"This model's maximum context length is 100 tokens. However, you {numbers}."
    assert caught.value.message.startswith(words)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"max_tokens": 5, "max_completion_tokens": 6}, "max_tokens"),
        ({"top_logprobs": 3}, "top_logprobs"),
        ({"top_logprobs": 3, "logprobs": False}, "top_logprobs"),
        ({"min_tokens": 9, "max_tokens": 5}, None),
    ],
)
def test_contradictions_are_refused(fields: dict[str, Any], param: str | None) -> None:
    with pytest.raises(ApiError) as caught:
        sampling(**fields)
    assert (caught.value.status, caught.value.param) == (400, param)


def test_log_probabilities_are_off_unless_asked_for() -> None:
    assert sampling().logprobs is None
    assert sampling(logprobs=True).logprobs == 0
    assert sampling(max_tokens=5, max_completion_tokens=5).max_tokens == 5


def test_echo_asks_for_the_prompts_log_probabilities() -> None:
    assert completion_wish(completion(echo=True, logprobs=1)) == Wish(None, 16, 1, 1)
    assert completion_wish(completion(echo=True)) == Wish(None, 16, None, None)
    assert completion_wish(completion(echo=True, logprobs=1, prompt_logprobs=5)).prompt_logprobs == 5
    assert completion_wish(completion(logprobs=1)).prompt_logprobs is None


def test_no_tokens_are_one_that_is_not_shown() -> None:
    assert completion_wish(completion(max_tokens=0)).max_tokens == 1


def test_best_of_is_n_or_refused() -> None:
    assert completion_wish(completion(best_of=2, n=2)).max_tokens is None
    assert completion_wish(completion(best_of=1)).max_tokens is None
    with pytest.raises(ApiError) as caught:
        completion_wish(completion(best_of=2))
    assert caught.value.param == "best_of"


def test_options_of_streams_need_a_stream_and_prompt_log_probabilities_none() -> None:
    check_stream(chat(stream=True, stream_options={"include_usage": True}))
    for request in (chat(stream_options={}), chat(stream=True, prompt_logprobs=1)):
        with pytest.raises(ApiError) as caught:
            check_stream(request)
        assert caught.value.status == 400


@pytest.mark.parametrize(
    ("keep", "max_tokens", "kept"),
    [(None, None, 12), (5, None, 5), (50, None, 12), (-1, 3, 7), (-1, None, 9), (0, 1, 0)],
)
def test_prompts_lose_their_start_only_if_told_to(keep: int | None, max_tokens: int | None, kept: int) -> None:
    token_ids = list(range(12))
    found = truncate(completion(truncate_prompt_tokens=keep), token_ids, Wish(max_tokens, 16, None, None), 10)
    assert found == token_ids[len(token_ids) - kept :]
