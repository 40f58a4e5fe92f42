"""Legacy completions: batches, echo, and the log-probabilities that evaluations read."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from tests.server.openai.conftest import Client
from tests.server.openai.fake_llm import FakeLLM, Said


def test_answer_has_openais_shape(client: Client) -> None:
    document = client.complete("Once", max_tokens=20).json
    assert document.pop("id").startswith("cmpl-")
    assert isinstance(document.pop("created"), int)
    assert document == {
        "object": "text_completion",
        "model": "served",
        "choices": [{"index": 0, "text": "Hello you.", "logprobs": None, "finish_reason": "stop"}],
        "usage": {
            "prompt_tokens": 3,
            "completion_tokens": 8,
            "total_tokens": 11,
            "prompt_tokens_details": {"cached_tokens": 0},
        },
    }


@pytest.mark.parametrize("prompt", [["one", "two"], [[5, 6], [7]]])
def test_batches_keep_their_order_whoever_is_first(client: Client, llm: FakeLLM, prompt: Any) -> None:
    llm.say = lambda prompt, choice: llm.said(f"{len(prompt)}{choice}" + "x" * (10 - len(prompt)))
    document = client.complete(prompt, n=2).json
    lengths = [len(asked.prompt) for asked in llm.asked]
    expected = [f"{length}{choice}" + "x" * (10 - length) for length in lengths for choice in range(2)]
    assert [choice["index"] for choice in document["choices"]] == [0, 1, 2, 3]
    assert [choice["text"] for choice in document["choices"]] == expected
    assert document["usage"]["prompt_tokens"] == sum(lengths)
    assert len({asked.request_id for asked in llm.asked}) == 2


def test_token_ids_are_one_prompt(client: Client, llm: FakeLLM) -> None:
    client.complete([5, 6, 7])
    assert [asked.prompt for asked in llm.asked] == [[5, 6, 7]]


def test_control_tokens_in_a_prompt_are_read(client: Client, llm: FakeLLM) -> None:
    client.complete("<|im_start|>")
    assert llm.asked[0].prompt == [llm.text.tokenizer.control_tokens["<|im_start|>"]]


@pytest.mark.parametrize(
    "prompt", [[1, "a"], [[1], 2], ["a", [1]], [], [[]], None, {"a": 1}, [None], [True], [-1], ["a"] * 1025, 5]
)
def test_prompts_that_are_none_of_the_kinds_are_refused(client: Client, prompt: Any) -> None:
    answered = client.complete(prompt)
    assert answered.status == 400
    assert answered.error["param"].startswith("prompt")


def test_a_large_batch_does_not_fill_the_queue(client: Client, llm: FakeLLM) -> None:
    most = 0

    async def turn(prompt: list[int]) -> None:
        nonlocal most
        most = max(most, llm.num_open)

    llm.turn = turn
    document = client.complete([[number] for number in range(40)], max_tokens=2).json
    assert len(document["choices"]) == 40
    assert most == llm.limits.max_num_seqs
    assert llm.num_open == 0


def test_echo_scores_the_prompt_as_evaluations_read_it(client: Client, llm: FakeLLM) -> None:
    """lm-eval: context of 3 tokens, continuation of 2; one token is drawn and cut off."""
    tokens = llm.tokens("Once upon")[:5]
    body = {"max_tokens": 1, "temperature": 0, "logprobs": 1, "seed": 1234, "echo": True}
    document = client.complete([tokens, [5, 6]], **body).json
    choice = document["choices"][0]
    logprobs = choice["logprobs"]
    assert logprobs["token_logprobs"][0] is None
    assert logprobs["top_logprobs"][0] is None
    assert len(logprobs["token_logprobs"]) == len(tokens) + 1
    assert len({len(logprobs[name]) for name in logprobs}) == 1
    scored = list(zip(tokens[3:], logprobs["token_logprobs"][3:-1], logprobs["top_logprobs"][3:-1], strict=True))
    assert [logprob for _, logprob, _ in scored] == [-float(1 + token % 3) for token in tokens[3:]]
    assert [logprob == max(top.values()) for _, logprob, top in scored] == [token % 3 == 0 for token, _, _ in scored]
    assert document["choices"][1]["index"] == 1


def test_echo_puts_the_prompt_before_the_answer(client: Client, llm: FakeLLM) -> None:
    choice = client.complete("Once ", echo=True, logprobs=0).json["choices"][0]
    assert choice["text"] == "Once Hello you."
    offsets, tokens = choice["logprobs"]["text_offset"], choice["logprobs"]["tokens"]
    for offset, token in zip(offsets, tokens[:-1], strict=False):
        assert choice["text"][offset:].startswith(token)
    assert offsets[-1] == len(choice["text"]), "the end is no text"
    assert client.complete(llm.tokens("Once "), echo=True).json["choices"][0]["text"] == "Once Hello you."


@pytest.mark.parametrize("stream", [False, True])
def test_no_tokens_with_echo_give_the_prompt_alone(client: Client, llm: FakeLLM, stream: bool) -> None:
    answered = client.complete("Once", echo=True, logprobs=1, max_tokens=0, stream=stream)
    if stream:
        choices = [event["choices"][0] for event in answered.events]
        assert "".join(choice["text"] for choice in choices) == "Once"
        assert [choice["finish_reason"] for choice in choices] == [None, "length"]
        logprobs = choices[0]["logprobs"]
    else:
        document = answered.json
        assert document["usage"]["completion_tokens"] == 0
        (choice,) = document["choices"]
        assert (choice["text"], choice["finish_reason"]) == ("Once", "length")
        logprobs = choice["logprobs"]
    assert "".join(logprobs["tokens"]) == "Once"
    assert llm.asked[0].sampling.max_tokens == 1


def test_prompt_is_told_first_even_if_choices_run_ahead(client: Client, llm: FakeLLM) -> None:
    fields: dict[str, Any] = {"n": 2, "echo": True, "logprobs": 1, "max_tokens": 5}
    expected = client.complete("Once", **fields).json["choices"]
    llm.prompt_told_at = 3
    assert client.complete("Once", **fields).json["choices"] == expected
    first, second, *_ = client.complete("Once", **fields, stream=True).events
    for index, event in enumerate((first, second)):
        assert event["choices"][0]["index"] == index
        assert event["choices"][0]["text"] == "Once"
        assert "".join(event["choices"][0]["logprobs"]["tokens"]) == "Once"


def test_failure_before_the_prompt_is_told_is_told(
    client: Client, llm: FakeLLM, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL)
    llm.prompt_told_at = 99
    llm.say = lambda prompt, choice: Said([5, 6], "error", "logits are not numbers")
    assert client.complete("Once", echo=True, logprobs=1).error["code"] == "generation_failed"


def test_no_tokens_without_echo_give_nothing(client: Client) -> None:
    document = client.complete("Once", max_tokens=0, logprobs=1).json
    assert document["choices"][0] == {
        "index": 0,
        "text": "",
        "logprobs": {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []},
        "finish_reason": "length",
    }


def test_extras_come_on_request(client: Client) -> None:
    document = client.complete([[5, 6], [7]], return_token_ids=True, prompt_logprobs=1, max_tokens=2, timings=True).json
    first, second = document["choices"]
    assert (first["prompt_token_ids"], second["prompt_token_ids"]) == ([5, 6], [7])
    assert len(first["token_ids"]) == 2
    assert first["prompt_logprobs"][1]["6"]["logprob"] == -1.0
    assert second["prompt_logprobs"] == [None]
    assert document["timings"]["predicted_n"] == 2


def test_contradictions_and_what_is_not_there_are_refused(client: Client) -> None:
    for fields in ({"best_of": 3}, {"suffix": "x"}, {"stream": True, "prompt_logprobs": 1}, {"logprobs": 21}):
        answered = client.complete("a", **fields)
        assert answered.status == 400
        assert answered.error["param"] in fields
