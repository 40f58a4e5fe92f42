"""From the messages of a request to what chat templates read; it knows no template."""

from __future__ import annotations

from typing import Any

import msgspec

from pelton.server.openai.decode import bad_request
from pelton.server.openai.schemas import (
    AssistantMessage,
    Content,
    DeveloperMessage,
    Message,
    SystemMessage,
    TextPart,
    ToolCall,
    ToolMessage,
    UserMessage,
)
from pelton.text.chat_template import ChatTemplate


def template_call(
    messages: list[Message],
    template: ChatTemplate | None,
    *,
    add_generation_prompt: bool | None,
    continue_final_message: bool | None,
    chat_template_kwargs: dict[str, Any] | None,
) -> dict[str, Any]:
    """What `encode_chat` takes. An answer begins a new message, unless it is told to continue one or to do neither.

    Raises ApiError (400) as template_messages does, and if it is told to do both.
    """
    if continue_final_message and add_generation_prompt:
        raise bad_request(
            "`continue_final_message` continues a message, `add_generation_prompt` begins one", "continue_final_message"
        )
    knows_developer = template is not None and "developer" in template.source
    return {
        "messages": template_messages(messages, knows_developer=knows_developer),
        "add_generation_prompt": not continue_final_message and add_generation_prompt is not False,
        "continue_final_message": bool(continue_final_message),
        "chat_template_kwargs": chat_template_kwargs or {},
    }


def template_messages(messages: list[Message], *, knows_developer: bool) -> list[dict[str, Any]]:
    """Dicts with `role` and a text `content`, and what else the message has.

    knows_developer: whether the template has heard of the role `developer`; else it is the same as `system`.
    Raises ApiError (400) for arguments of a tool call that are no JSON object.
    """
    return [_template_message(message, index, knows_developer) for index, message in enumerate(messages)]


def _template_message(message: Message, index: int, knows_developer: bool) -> dict[str, Any]:
    match message:
        case SystemMessage():
            found = {"role": "system", "content": _text(message.content)}
        case DeveloperMessage():
            found = {"role": "developer" if knows_developer else "system", "content": _text(message.content)}
        case UserMessage():
            found = {"role": "user", "content": _text(message.content)}
        case AssistantMessage():
            found = _assistant_message(message, index)
        case ToolMessage():
            found = {"role": "tool", "content": _text(message.content)}
            if message.tool_call_id is not None:
                found["tool_call_id"] = message.tool_call_id
    if message.name is not None:
        found["name"] = message.name
    return found


def _assistant_message(message: AssistantMessage, index: int) -> dict[str, Any]:
    """Without content there is an empty one: a template that prints it prints nothing."""
    content = message.refusal if message.content is None else message.content
    found: dict[str, Any] = {"role": "assistant", "content": _text(content or "")}
    reasoning = message.reasoning if message.reasoning_content is None else message.reasoning_content
    if reasoning is not None:
        found["reasoning_content"] = reasoning
    if message.tool_calls:
        found["tool_calls"] = [
            _tool_call(call, f"messages[{index}].tool_calls[{number}].function.arguments")
            for number, call in enumerate(message.tool_calls)
        ]
    return found


def _tool_call(call: ToolCall, path: str) -> dict[str, Any]:
    """Templates write arguments as they like, so they get them as an object."""
    try:
        arguments = msgspec.json.decode(call.function.arguments or "{}", type=dict[str, Any])
    except (msgspec.DecodeError, RecursionError, UnicodeError):
        raise bad_request(f"`{path}` is not a JSON object", path) from None
    found = {"type": "function", "function": {"name": call.function.name, "arguments": arguments}}
    return found if call.id is None else {"id": call.id, **found}


def _text(content: Content) -> str:
    if isinstance(content, str):
        return content
    return "\n".join(part.text if isinstance(part, TextPart) else part.refusal for part in content)
