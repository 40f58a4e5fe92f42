"""Chat completions as one document: shapes, choices, refusals."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from pelton.errors import EngineDeadError, QueueFullError, QueueTimeoutError
from pelton.text_model import TextModel
from tests.server.openai.conftest import Client, Server, serve
from tests.server.openai.fake_llm import LIMITS, FakeLLM, Said


def test_answer_has_openais_shape(client: Client) -> None:
    answered = client.chat()
    assert answered.status == 200
    assert answered.headers["content-type"] == "application/json"
    document = answered.json
    assert document.pop("id").startswith("chatcmpl-")
    assert isinstance(document.pop("created"), int)
    assert document == {
        "object": "chat.completion",
        "model": "served",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "Hello you.", "refusal": None},
                "logprobs": None,
                "finish_reason": "stop",
            }
        ],
        "usage": {
            "prompt_tokens": 18,
            "completion_tokens": 8,
            "total_tokens": 26,
            "prompt_tokens_details": {"cached_tokens": 0},
        },
    }


def test_conversation_reaches_the_template(client: Client, llm: FakeLLM) -> None:
    messages = [
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "a"}]},
    ]
    client.chat(messages=messages)
    assert llm.text.tokenizer.decode(llm.asked[0].prompt, skip_special=False) == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\n"
    )


def test_last_message_is_continued_on_request(client: Client, llm: FakeLLM) -> None:
    messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "So"}]
    client.chat(messages=messages, continue_final_message=True)
    assert llm.text.tokenizer.decode(llm.asked[0].prompt, skip_special=False).endswith("<|im_start|>assistant\nSo")
    client.chat(messages=messages, add_generation_prompt=False)
    assert llm.text.tokenizer.decode(llm.asked[1].prompt, skip_special=False).endswith("So<|im_end|>\n")
    both = client.chat(messages=messages, continue_final_message=True, add_generation_prompt=True)
    assert (both.status, both.error["param"]) == (400, "continue_final_message")


def test_template_gets_plain_arguments_and_the_effort(client: Client, llm: FakeLLM) -> None:
    client.chat(chat_template_kwargs={"enable_thinking": False}, reasoning_effort="low")
    assert llm.conversations[0]["chat_template_kwargs"] == {"enable_thinking": False, "reasoning_effort": "low"}


@pytest.mark.parametrize("name", ["tools", "messages", "add_generation_prompt", "max_bytes"])
def test_template_arguments_can_not_take_the_place_of_others(client: Client, name: str) -> None:
    answered = client.chat(chat_template_kwargs={name: True})
    assert answered.status == 400
    assert name in answered.error["message"]


def test_control_tokens_in_messages_stay_text(client: Client, llm: FakeLLM) -> None:
    client.chat("<|im_end|>")
    control = llm.text.tokenizer.control_tokens["<|im_end|>"]
    assert llm.asked[0].prompt.count(control) == 1


def test_choices_are_told_apart(client: Client, llm: FakeLLM) -> None:
    llm.say = lambda prompt, choice: llm.said(f"answer {choice}" * (choice + 1))
    document = client.chat(n=3).json
    assert [choice["index"] for choice in document["choices"]] == [0, 1, 2]
    texts = [choice["message"]["content"] for choice in document["choices"]]
    assert texts == ["answer 0", "answer 1" * 2, "answer 2" * 3]
    asked = sum(len(llm.tokens(text)) + 1 for text in texts)
    assert document["usage"]["completion_tokens"] == asked
    assert document["usage"]["prompt_tokens"] == len(llm.asked[0].prompt)


def test_stop_string_ends_the_text_and_is_named(client: Client, llm: FakeLLM) -> None:
    llm.say = lambda prompt, choice: llm.said("one two three")
    choice = client.chat(stop=["two"]).json["choices"][0]
    assert (choice["message"]["content"], choice["finish_reason"], choice["stop_reason"]) == ("one ", "stop", "two")
    kept = client.chat(stop="two", include_stop_str_in_output=True).json["choices"][0]
    assert kept["message"]["content"] == "one two"


def test_length_ends_the_text(client: Client) -> None:
    choice = client.chat(max_completion_tokens=1).json["choices"][0]
    assert (choice["message"]["content"], choice["finish_reason"]) == ("H", "length")


def test_log_probabilities_come_for_every_token(client: Client, llm: FakeLLM) -> None:
    choice = client.chat(logprobs=True, top_logprobs=2, max_tokens=3, return_token_ids=True).json["choices"][0]
    content = choice["logprobs"]["content"]
    assert choice["token_ids"] == llm.tokens("Hello you.")[:3]
    assert [bytes(each["bytes"]).decode() for each in content] == [each["token"] for each in content]
    assert "".join(each["token"] for each in content) == choice["message"]["content"]
    assert all(len(each["top_logprobs"]) == 2 for each in content)
    assert client.chat(logprobs=True).json["choices"][0]["logprobs"]["content"][0]["top_logprobs"] == []


def test_extras_come_on_request(client: Client, llm: FakeLLM) -> None:
    document = client.chat(return_token_ids=True, prompt_logprobs=1, timings=True).json
    assert document["prompt_token_ids"] == llm.asked[0].prompt
    assert document["prompt_logprobs"][0] is None
    assert len(document["prompt_logprobs"]) == len(llm.asked[0].prompt)
    timings = document["timings"]
    assert (timings["prompt_n"], timings["predicted_n"]) == (18, 8)
    assert all(value >= 0 for value in timings.values())


def test_truncation_is_explicit_and_reported(client: Client, llm: FakeLLM) -> None:
    usage = client.chat(truncate_prompt_tokens=5).json["usage"]
    assert (usage["prompt_tokens"], usage["truncated_tokens"]) == (5, 13)
    assert len(llm.asked[0].prompt) == 5


def test_engine_gets_priority_and_salt(client: Client, llm: FakeLLM) -> None:
    client.chat(priority=-3, cache_salt="pepper")
    assert (llm.asked[0].priority, llm.asked[0].cache_salt) == (-3, "pepper")


@pytest.mark.parametrize(("content", "max_tokens"), [("a", 60), ("word " * 60, None), ("word " * 5000, None)])
def test_too_long_a_conversation_is_refused_in_the_known_words(
    client: Client, llm: FakeLLM, content: str, max_tokens: int | None
) -> None:
    answered = client.chat(content, max_tokens=max_tokens)
    assert (answered.status, answered.error["code"]) == (400, "context_length_exceeded")
    assert answered.error["message"].startswith(
        f"This model's maximum context length is {LIMITS.max_model_len} tokens. However, you requested "
    )
    assert " in the messages, " in answered.error["message"]
    assert llm.asked == []


def test_names_that_are_served_are_echoed_and_others_refused(client: Client) -> None:
    for name in ("served", "org/model-v2", "org/model"):
        assert client.chat(model=name).json["model"] == name
    answered = client.chat(model="org/modle-v2")
    assert (answered.status, answered.error["code"]) == (404, "model_not_found")
    assert "`org/model-v2`" in answered.error["message"]


def test_ignored_fields_are_told(client: Client, server: Server) -> None:
    answered = client.chat(prediction={"content": ""}, made_up=1)
    assert answered.status == 200
    assert answered.headers["x-ignored-params"] == "prediction,made_up"
    strict = serve(strict_params=True).client.chat(made_up=1)
    assert (strict.status, strict.error["param"]) == (400, "made_up")


def test_template_that_refuses_is_the_requests_fault() -> None:
    llm = FakeLLM()
    template = llm.text.chat_template
    assert template is not None
    refusing = type(template)("{{ raise_exception('users speak first') }}", llm.text.tokenizer)
    answered = serve(FakeLLM(TextModel("m", llm.text.tokenizer, refusing, {}))).client.chat()
    assert (answered.status, answered.error["param"]) == (400, "messages")
    assert "users speak first" in answered.error["message"]


def test_model_without_a_template_does_not_converse() -> None:
    text = FakeLLM().text
    answered = serve(FakeLLM(TextModel("m", text.tokenizer, None, {}))).client.chat()
    assert (answered.status, answered.error["param"]) == (400, "messages")
    assert "no chat template" in answered.error["message"]


@pytest.mark.parametrize(
    ("refusal", "status", "code"),
    [
        (QueueFullError("64 requests wait", retry_after_s=2.5), 429, "rate_limit_exceeded"),
        (QueueTimeoutError("waited too long", retry_after_s=1.0), 503, "overloaded"),
        (EngineDeadError("the engine has ended"), 503, "engine_dead"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_refusals_of_the_engine_are_statuses(
    client: Client, llm: FakeLLM, refusal: Any, status: int, code: str, stream: bool
) -> None:
    llm.refuse = refusal
    answered = client.chat(stream=stream)
    assert (answered.status, answered.error["code"]) == (status, code)
    assert answered.headers["content-type"] == "application/json"
    if status == 429:
        assert (answered.headers["retry-after"], answered.headers["retry-after-ms"]) == ("3", "2500")


def test_answer_that_fails_is_a_fault_of_the_server(
    client: Client, llm: FakeLLM, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL)
    llm.say = lambda prompt, choice: Said([5, 6], "error", "logits are not numbers")
    answered = client.chat()
    assert (answered.status, answered.error["code"]) == (500, "generation_failed")
    llm.say = lambda prompt, choice: Said([5, 6], "abort")
    answered = client.chat()
    assert (answered.status, answered.error["code"]) == (503, "shutting_down")


def test_half_characters_become_whole_or_replaced(client: Client, llm: FakeLLM) -> None:
    llm.say = lambda prompt, choice: Said([*llm.tokens("ä🙂")[:-1]], "length")
    content = client.chat().json["choices"][0]["message"]["content"]
    assert content == "ä\ufffd"
