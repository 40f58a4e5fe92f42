"""From a typed request to how its tokens are chosen, and to how many of them fit; it knows no text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from pelton.errors import ContextLengthError, PeltonError, UsageError
from pelton.sampling_params import SamplingParams
from pelton.server.errors import ApiError
from pelton.server.openai.decode import bad_request
from pelton.server.openai.schemas import ChatCompletionRequest, CompletionRequest, GenerationRequest

# Of OpenAI's legacy completions.
COMPLETION_MAX_TOKENS = 16

# Same name and meaning in the request and in SamplingParams.
_COMMON = (
    "n",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "logit_bias",
    "seed",
    "stop_token_ids",
    "min_tokens",
    "ignore_eos",
    "include_stop_str_in_output",
    "skip_special_tokens",
    "prompt_logprobs",
)


class Wish(msgspec.Struct, frozen=True):
    """What the two kinds of request say differently, in one form.

    max_tokens:       as asked for, None if it was not.
    default_tokens:   how many there may be if it was not; fewer if the context has less room.
    logprobs:         alternatives to report beside each token of the answer; None: report nothing.
    prompt_logprobs:  the same for the prompt.
    """

    max_tokens: int | None
    default_tokens: int
    logprobs: int | None
    prompt_logprobs: int | None


def chat_wish(request: ChatCompletionRequest, default_tokens: int) -> Wish:
    """Raises ApiError (400) where two fields contradict each other."""
    old, new = request.max_tokens, request.max_completion_tokens
    if old is not None and new is not None and old != new:
        raise bad_request(
            f"`max_tokens` is `{old}` and `max_completion_tokens` `{new}`: they are one thing", "max_tokens"
        )
    if request.top_logprobs is not None and not request.logprobs:
        raise bad_request("`top_logprobs` needs `logprobs` to be true", "top_logprobs")
    logprobs = (request.top_logprobs or 0) if request.logprobs else None
    return Wish(old if new is None else new, default_tokens, logprobs, request.prompt_logprobs)


def completion_wish(request: CompletionRequest) -> Wish:
    """Raises ApiError (400) for a `best_of` that is not `n`.

    With `echo` the prompt's tokens have log-probabilities as the answer's have. Zero tokens are one that is not shown:
    the engine always draws one after the prompt.
    """
    if request.best_of is not None and request.best_of != (request.n or 1):
        raise bad_request("`best_of` is taken only if it is `n`", "best_of", code="unsupported_parameter")
    max_tokens = request.max_tokens
    prompt_logprobs = request.prompt_logprobs
    if request.echo and request.logprobs is not None:
        prompt_logprobs = max(request.logprobs, prompt_logprobs or 0)
    return Wish(
        max_tokens if max_tokens is None else max(max_tokens, 1),
        COMPLETION_MAX_TOKENS,
        request.logprobs,
        prompt_logprobs,
    )


def check_stream(request: GenerationRequest) -> None:
    """Raises ApiError (400) for what a stream can't tell, or only a stream can."""
    if request.stream_options is not None and not request.stream:
        raise bad_request("`stream_options` needs `stream` to be true", "stream_options")
    if request.stream and request.prompt_logprobs is not None:
        raise bad_request("`prompt_logprobs` is not available in a stream", "prompt_logprobs")


def truncate(request: GenerationRequest, token_ids: list[int], wish: Wish, max_model_len: int) -> list[int]:
    """The prompt's last tokens, if the request allows to drop the first."""
    keep = request.truncate_prompt_tokens
    if keep is None:
        return token_ids
    if keep == -1:
        keep = max(1, max_model_len - (wish.max_tokens or 1))
    return token_ids[-keep:] if keep else []


def sampling_params(
    request: GenerationRequest,
    wish: Wish,
    num_prompt_tokens: int,
    *,
    max_model_len: int,
    defaults: Mapping[str, Any],
) -> SamplingParams:
    """defaults: fields of SamplingParams that the model's files recommend; the request's own win.

    Raises ApiError (400) with code `context_length_exceeded` if prompt and answer don't fit together, or if two fields
    contradict each other.
    """
    room = max_model_len - num_prompt_tokens
    if room < (wish.max_tokens or 1):
        raise context_length_error(max_model_len, num_prompt_tokens, wish.max_tokens or 1)
    values = dict(defaults)
    values.update((name, value) for name in _COMMON if (value := getattr(request, name)) is not None)
    if request.stop is not None:
        values["stop"] = request.stop
    recommended = values.get("max_tokens") or wish.default_tokens
    values["max_tokens"] = min(recommended, room) if wish.max_tokens is None else wish.max_tokens
    values["logprobs"], values["prompt_logprobs"] = wish.logprobs, wish.prompt_logprobs
    try:
        return SamplingParams(**values)
    except UsageError as error:
        raise bad_request(error.message) from error


def context_length_error(max_model_len: int, num_prompt_tokens: int, num_answer_tokens: int) -> ApiError:
    """The wording is OpenAI's: clients look for it in the text."""
    return bad_request(
        f"This model's maximum context length is {max_model_len} tokens. However, you requested "
        f"{num_prompt_tokens + num_answer_tokens} tokens ({num_prompt_tokens} in the messages, {num_answer_tokens} in "
        "the completion). Please reduce the length of the messages or completion.",
        code="context_length_exceeded",
    )


def unencodable(error: PeltonError, param: str, wish: Wish, max_model_len: int) -> ApiError:
    """A text that is refused before its tokens are counted has more of them than fit; else the template refuses it."""
    if isinstance(error, ContextLengthError):
        return context_length_error(max_model_len, max_model_len + 1, wish.max_tokens or 1)
    return bad_request(error.message, param)
