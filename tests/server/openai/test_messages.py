"""Messages become what chat templates read."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from pelton.server.errors import ApiError
from pelton.server.openai.messages import template_messages
from pelton.server.openai.schemas import Message


def rendered(*messages: dict[str, Any], knows_developer: bool = False) -> list[dict[str, Any]]:
    return template_messages(msgspec.convert(messages, list[Message]), knows_developer=knows_developer)


def test_text_parts_are_lines_of_one_text() -> None:
    content = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert rendered({"role": "user", "content": content, "name": "ann"}) == [
        {"role": "user", "content": "a\nb", "name": "ann"}
    ]


def test_developer_is_system_to_templates_that_have_not_heard_of_it() -> None:
    message = {"role": "developer", "content": "Be brief."}
    assert rendered(message)[0]["role"] == "system"
    assert rendered(message, knows_developer=True)[0]["role"] == "developer"


def test_assistant_without_content_says_nothing_or_its_refusal() -> None:
    assert rendered({"role": "assistant", "content": None})[0]["content"] == ""
    assert rendered({"role": "assistant", "refusal": "No."})[0]["content"] == "No."
    parts = [{"type": "refusal", "refusal": "No."}]
    assert rendered({"role": "assistant", "content": parts})[0]["content"] == "No."


def test_reasoning_has_one_name_in_templates() -> None:
    for name in ("reasoning", "reasoning_content"):
        assert rendered({"role": "assistant", "content": "a", name: "r"})[0]["reasoning_content"] == "r"


def test_tool_calls_have_their_arguments_as_objects() -> None:
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"a": [1]}'}}
    (message, answer) = rendered(
        {"role": "assistant", "tool_calls": [call, {"function": {"name": "g", "arguments": ""}}]},
        {"role": "tool", "content": "5", "tool_call_id": "1"},
    )
    assert message["tool_calls"] == [
        {"id": "1", "type": "function", "function": {"name": "f", "arguments": {"a": [1]}}},
        {"type": "function", "function": {"name": "g", "arguments": {}}},
    ]
    assert answer == {"role": "tool", "content": "5", "tool_call_id": "1"}


@pytest.mark.parametrize("arguments", ["[1]", "{", "nonsense", '{"a":' * 5000])
def test_arguments_that_are_no_object_are_refused_by_name(arguments: str) -> None:
    with pytest.raises(ApiError) as caught:
        rendered(
            {"role": "user", "content": ""},
            {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": arguments}}]},
        )
    assert caught.value.status == 400
    assert caught.value.param == "messages[1].tool_calls[0].function.arguments"
