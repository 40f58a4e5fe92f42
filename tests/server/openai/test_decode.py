"""Bytes in, typed requests out; every fault is a 400 that names its field, within 2 KB."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pelton.server.errors import ApiError, error_body
from pelton.server.openai.decode import REFUSED, decode_request
from pelton.server.openai.schemas import ChatCompletionRequest, CompletionRequest

HELLO = [{"role": "user", "content": "Hi"}]


def decode(*, is_strict: bool = False, **fields: Any) -> tuple[ChatCompletionRequest, tuple[str, ...]]:
    body = json.dumps({"messages": HELLO, **fields}).encode()
    return decode_request(body, ChatCompletionRequest, is_strict=is_strict)


def refused(body: bytes | None = None, **fields: Any) -> ApiError:
    given = json.dumps({"messages": HELLO, **fields}).encode() if body is None else body
    with pytest.raises(ApiError) as caught:
        decode_request(given, ChatCompletionRequest)
    error = caught.value
    assert error.status == 400
    assert error.type == "invalid_request_error"
    assert len(error_body(error)) <= 2048
    return error


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"nonsense",
        b'{"messages": [',
        b"\xff\xfe",
        b'{"messages": [{"role": "user", "content": "\xc3\x28"}]}',
        b'{"messages": [{"role": "user", "content": "\\ud800"}]}',
        b'{"temperature": NaN}',
        b'{"messages": [{"role": "user", "content": "Hi"}], "x": ' + b"[" * 10_000 + b"]" * 10_000 + b"}",
    ],
)
def test_what_is_not_json_is_told_as_such(body: bytes) -> None:
    assert refused(body).code == "invalid_json"


@pytest.mark.parametrize(
    ("fields", "param", "code"),
    [
        ({"messages": None}, "messages", "invalid_type"),
        ({"messages": []}, "messages", "invalid_value"),
        ({"messages": ["Hi"]}, "messages[0]", "invalid_type"),
        ({"messages": [{"content": "Hi"}]}, "messages[0].role", "missing_required_parameter"),
        ({"messages": [{"role": "user"}]}, "messages[0].content", "missing_required_parameter"),
        ({"messages": [{"role": "wizard", "content": ""}]}, "messages[0].role", "invalid_value"),
        ({"messages": [*HELLO, {"role": "user", "content": 5}]}, "messages[1].content", "invalid_type"),
        ({"messages": [*HELLO, {"role": "user", "content": None}]}, "messages[1].content", "invalid_type"),
        ({"temperature": "hot"}, "temperature", "invalid_type"),
        ({"temperature": -1}, "temperature", "invalid_value"),
        ({"top_p": 0}, "top_p", "invalid_value"),
        ({"n": 17}, "n", "invalid_value"),
        ({"n": 1.5}, "n", "invalid_type"),
        ({"n": True}, "n", "invalid_type"),
        ({"seed": 1 << 63}, "seed", "invalid_value"),
        ({"seed": 10**400}, "seed", "invalid_value"),
        ({"max_tokens": 0}, "max_tokens", "invalid_value"),
        ({"stop": ""}, "stop", "invalid_value"),
        ({"stop": ["a"] * 17}, "stop", "invalid_value"),
        ({"stop": ["a", None]}, "stop[1]", "invalid_type"),
        ({"stop": "x" * 1025}, "stop", "invalid_value"),
        ({"top_logprobs": 21}, "top_logprobs", "invalid_value"),
        ({"logit_bias": {"five": 1}}, "logit_bias", "invalid_type"),
        ({"logit_bias": {"5": 101}}, "logit_bias[...]", "invalid_value"),
        ({"logit_bias": {str(token): 1 for token in range(1025)}}, "logit_bias", "invalid_value"),
        ({"stream_options": {"include_usage": 1}}, "stream_options.include_usage", "invalid_type"),
        ({"chat_template_kwargs": {"a": {"b": 1}}}, "chat_template_kwargs[...]", "invalid_type"),
        ({"chat_template_kwargs": {"a b": 1}}, "chat_template_kwargs", "invalid_value"),
    ],
)
def test_wrong_type_or_range_names_the_field(fields: dict[str, Any], param: str, code: str) -> None:
    error = refused(**fields)
    assert (error.param, error.code) == (param, code)


@pytest.mark.parametrize("kind", ["image_url", "input_audio", "file", "video_url"])
def test_parts_that_are_not_text_are_refused_by_name(kind: str) -> None:
    error = refused(messages=[{"role": "user", "content": [{"type": kind, kind: {"url": "data:,"}}]}])
    assert error.param == "messages[0].content[0].type"
    assert kind in error.message
    assert "`text`" in error.message


def test_null_is_absence() -> None:
    names = [name for name in ChatCompletionRequest.__struct_fields__ if name != "messages"]
    request, ignored = decode(**dict.fromkeys(names), **dict.fromkeys(REFUSED), made_up=None)
    assert request == decode()[0]
    assert ignored == ()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("tools", [{"type": "function", "function": {"name": "f"}}]),
        ("tool_choice", "required"),
        ("tool_choice", {"type": "function", "function": {"name": "f"}}),
        ("functions", [{"name": "f"}]),
        ("response_format", {"type": "json_object"}),
        ("response_format", {"type": "json_schema", "json_schema": {"name": "a", "schema": {}}}),
        ("structured_outputs", {"choice": ["a", "b"]}),
        ("guided_json", {}),
        ("guided_choice", ["a"]),
        ("guided_regex", "a+"),
        ("grammar", "root ::= 'a'"),
        ("chat_template", "{{ messages }}"),
        ("bad_words", ["a"]),
        ("allowed_token_ids", [1]),
        ("modalities", ["text", "audio"]),
    ],
)
def test_what_would_change_the_answer_is_refused_not_ignored(name: str, value: Any) -> None:
    error = refused(**{name: value})
    assert (error.param, error.code) == (name, "unsupported_parameter")


def test_values_that_ask_for_nothing_are_taken() -> None:
    for name, neutral in REFUSED.items():
        for value in neutral:
            assert decode(**{name: value})[1] == ()


def test_tools_that_may_not_be_called_need_not_be_known() -> None:
    assert decode(tools=[{"type": "function", "function": {"name": "f"}}], tool_choice="none")[1] == ()


def test_unknown_fields_are_named_once_wherever_they_are() -> None:
    part = {"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}}
    messages = [{"role": "user", "content": [part, part], "weight": 1}, {"role": "user", "content": "b", "weight": 0}]
    _, ignored = decode(
        messages=messages, prediction={"content": ""}, stream_options={"include_obfuscation": True}, z=None
    )
    assert ignored == (
        "messages[].content[].cache_control",
        "messages[].weight",
        "prediction",
        "stream_options.include_obfuscation",
    )


def test_strict_servers_refuse_unknown_fields() -> None:
    with pytest.raises(ApiError) as caught:
        decode(is_strict=True, prediction={"content": ""})
    assert (caught.value.status, caught.value.param, caught.value.code) == (400, "prediction", "unknown_parameter")


def test_names_that_are_no_names_do_not_reach_the_header() -> None:
    _, ignored = decode_request(
        json.dumps({"prompt": "", "a\r\nset-cookie: b": 1, "ä": 1, "x" * 100: 1}).encode(), CompletionRequest
    )
    assert ignored == ("(unprintable)",)


def test_header_of_ignored_fields_is_bounded() -> None:
    _, ignored = decode(**{f"field_{number:050}": number for number in range(1000)})
    assert len(ignored) <= 17
    assert ignored[-1] == "(more)"
    assert sum(map(len, ignored)) < 1200


def test_errors_do_not_amplify() -> None:
    for value in ("x" * 1_000_000, "\x01" * 100_000, "\U0001f642" * 100_000):
        refused(messages=[{"role": value, "content": ""}])
        refused(messages=[{"role": "user", "content": ""}], response_format=value)


def test_many_message_fields_fit() -> None:
    request, ignored = decode(
        messages=[
            {"role": "developer", "content": "a", "name": "n"},
            {"role": "assistant", "content": None, "refusal": None, "annotations": None, "audio": None},
            {
                "role": "assistant",
                "tool_calls": [{"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}],
                "reasoning": "r",
            },
            {"role": "tool", "content": [{"type": "text", "text": "a"}], "tool_call_id": "1"},
        ]
    )
    assert len(request.messages) == 4
    assert ignored == ()


@pytest.mark.parametrize("prompt", ["a", ["a", "b"], [1, 2], [[1], [2, 3]]])
def test_prompts_of_all_four_kinds(prompt: Any) -> None:
    assert decode_request(json.dumps({"prompt": prompt}).encode(), CompletionRequest)[0].prompt == prompt
