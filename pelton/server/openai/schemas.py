"""What clients of OpenAI's API may send: every field typed and bounded. It knows nothing of what is done with them.

`null` means absent everywhere. A field that is not here is ignored by name or refused (decode.py), never silently.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from pelton.sampling_params import (
    MAX_CHOICES,
    MAX_LOGIT_BIAS,
    MAX_LOGPROBS,
    MAX_STOP_CHARACTERS,
    MAX_STOP_STRINGS,
)

# More than any of them fits into the largest body that is read, or means anything; they bound work before it is done.
MAX_MESSAGES = 4096
MAX_PARTS = 1024
MAX_TOOL_CALLS = 128
MAX_PROMPTS = 1024
MAX_PROMPT_TOKENS = 1 << 20
MAX_STOP_TOKEN_IDS = 128
MAX_NAME_CHARACTERS = 256
MAX_TEMPLATE_ARGUMENTS = 32
MAX_TEMPLATE_TEXT_CHARACTERS = 1024

Name = Annotated[str, Meta(max_length=MAX_NAME_CHARACTERS)]
TokenId = Annotated[int, Meta(ge=0, le=(1 << 31) - 1)]
TokenCount = Annotated[int, Meta(ge=1, le=(1 << 31) - 1)]
StopString = Annotated[str, Meta(min_length=1, max_length=MAX_STOP_CHARACTERS)]
Penalty = Annotated[float, Meta(ge=-2.0, le=2.0)]
NumLogprobs = Annotated[int, Meta(ge=0, le=MAX_LOGPROBS)]
# Plain values only: a template can't be handed anything that it could run or that grows.
TemplateArguments = Annotated[
    dict[
        Annotated[str, Meta(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,63}$")],
        bool | int | float | Annotated[str, Meta(max_length=MAX_TEMPLATE_TEXT_CHARACTERS)] | None,
    ],
    Meta(max_length=MAX_TEMPLATE_ARGUMENTS),
]


class StreamOptions(Struct, kw_only=True):
    """include_usage: a last chunk with the usage. continuous_usage_stats: every chunk carries it, as known so far."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class ModelRequest(Struct, kw_only=True):
    """model: any of the served names; the first if there is none."""

    model: Annotated[str, Meta(max_length=1024)] | None = None


class GenerationRequest(ModelRequest, kw_only=True):
    """What both kinds of completion take. Defaults are the model's own generation settings, then OpenAI's.

    cache_salt:             requests share cached prefixes only with those of equal salt.
    truncate_prompt_tokens: keep only the prompt's last tokens, as many; -1: as many as the context holds.
    prompt_logprobs:        log-probabilities of the prompt's tokens; not for streams.
    return_token_ids:       token ids of prompt and answer beside the text.
    priority:               lower goes first.
    timings:                how long the parts took, under llama-server's names.
    deadline_ms:            give up after so long.
    """

    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: Annotated[int, Meta(ge=1, le=MAX_CHOICES)] | None = None
    temperature: Annotated[float, Meta(ge=0.0, le=100.0)] | None = None
    top_p: Annotated[float, Meta(gt=0.0, le=1.0)] | None = None
    top_k: Annotated[int, Meta(ge=-1, le=(1 << 31) - 1)] | None = None
    min_p: Annotated[float, Meta(ge=0.0, le=1.0)] | None = None
    repetition_penalty: Annotated[float, Meta(gt=0.0, le=100.0)] | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    logit_bias: (
        Annotated[dict[TokenId, Annotated[float, Meta(ge=-100.0, le=100.0)]], Meta(max_length=MAX_LOGIT_BIAS)] | None
    ) = None
    seed: Annotated[int, Meta(ge=-(1 << 63), le=(1 << 63) - 1)] | None = None
    stop: StopString | Annotated[list[StopString], Meta(max_length=MAX_STOP_STRINGS)] | None = None
    stop_token_ids: Annotated[list[TokenId], Meta(max_length=MAX_STOP_TOKEN_IDS)] | None = None
    min_tokens: Annotated[int, Meta(ge=0, le=(1 << 31) - 1)] | None = None
    ignore_eos: bool | None = None
    include_stop_str_in_output: bool | None = None
    skip_special_tokens: bool | None = None
    prompt_logprobs: NumLogprobs | None = None
    truncate_prompt_tokens: Annotated[int, Meta(ge=-1, le=(1 << 31) - 1)] | None = None
    return_token_ids: bool | None = None
    cache_salt: Annotated[str, Meta(max_length=MAX_NAME_CHARACTERS)] | None = None
    priority: Annotated[int, Meta(ge=-(1 << 31), le=(1 << 31) - 1)] | None = None
    deadline_ms: Annotated[int, Meta(ge=1, le=86_400_000)] | None = None
    timings: bool | None = None
    user: Name | None = None


# --- messages -----------------------------------------------------------------------


class TextPart(Struct, tag_field="type", tag="text"):
    text: str


class RefusalPart(Struct, tag_field="type", tag="refusal"):
    refusal: str


Content = str | Annotated[list[TextPart | RefusalPart], Meta(min_length=1, max_length=MAX_PARTS)]


class FunctionCall(Struct):
    """arguments: a JSON object, as text."""

    name: Name
    arguments: str


class ToolCall(Struct):
    function: FunctionCall
    id: Name | None = None
    type: Literal["function"] = "function"


class SystemMessage(Struct, tag_field="role", tag="system"):
    content: Content
    name: Name | None = None


class DeveloperMessage(Struct, tag_field="role", tag="developer"):
    content: Content
    name: Name | None = None


class UserMessage(Struct, tag_field="role", tag="user"):
    content: Content
    name: Name | None = None


class AssistantMessage(Struct, tag_field="role", tag="assistant"):
    """reasoning_content, reasoning: the same thing under its two names in use."""

    content: Content | None = None
    name: Name | None = None
    refusal: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: Annotated[list[ToolCall], Meta(max_length=MAX_TOOL_CALLS)] | None = None


class ToolMessage(Struct, tag_field="role", tag="tool"):
    content: Content
    tool_call_id: Name | None = None
    name: Name | None = None


Message = SystemMessage | DeveloperMessage | UserMessage | AssistantMessage | ToolMessage
Messages = Annotated[list[Message], Meta(min_length=1, max_length=MAX_MESSAGES)]


# --- requests -----------------------------------------------------------------------


class ChatCompletionRequest(GenerationRequest, kw_only=True):
    """max_tokens is the old name of max_completion_tokens."""

    messages: Messages
    max_tokens: TokenCount | None = None
    max_completion_tokens: TokenCount | None = None
    logprobs: bool | None = None
    top_logprobs: NumLogprobs | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: TemplateArguments | None = None
    reasoning_effort: Name | None = None
    parallel_tool_calls: bool | None = None
    store: bool | None = None
    metadata: Annotated[dict[str, Any], Meta(max_length=64)] | None = None
    service_tier: Name | None = None
    safety_identifier: Name | None = None
    prompt_cache_key: Name | None = None


class CompletionRequest(GenerationRequest, kw_only=True):
    """prompt: a text, token ids, or a list of either: one choice (or n) for each.

    max_tokens: 0 asks for nothing new; with `echo` and `logprobs` it scores the prompt.
    best_of:    accepted if it is `n`.
    """

    prompt: (
        str
        | Annotated[
            list[str | TokenId | Annotated[list[TokenId], Meta(min_length=1, max_length=MAX_PROMPT_TOKENS)]],
            Meta(min_length=1, max_length=MAX_PROMPT_TOKENS),
        ]
    )
    max_tokens: Annotated[int, Meta(ge=0, le=(1 << 31) - 1)] | None = None
    best_of: Annotated[int, Meta(ge=1, le=MAX_CHOICES)] | None = None
    echo: bool | None = None
    logprobs: NumLogprobs | None = None
