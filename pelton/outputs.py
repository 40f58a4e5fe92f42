"""What a request came to, in the shapes of vLLM's offline API. Plain data; answer.py makes it."""

from __future__ import annotations

import msgspec

from pelton.engine.request import FinishReason, RequestTimes


class Logprob(msgspec.Struct):
    """rank: in the vocabulary, 1 for the most likely. decoded_token: the token's own text, which may be part of a
    character (then U+FFFD)."""

    logprob: float
    rank: int
    decoded_token: str


# The chosen token first, then the most likely ones in falling order; a token that is both is there once.
PositionLogprobs = dict[int, Logprob]


class CompletionOutput(msgspec.Struct):
    """One choice.

    token_ids:           with the end-of-sequence or stop token, if one came.
    text:                without them, and without the stop string unless include_stop_str_in_output.
    cumulative_logprob:  sum over token_ids, None unless logprobs were asked for.
    finish_reason:       "stop", "length" (max_tokens, or the context is full), "abort" or "error"; None while it runs.
    stop_reason:         the stop string or stop token that ended it; None for end-of-sequence and all else.
    error:               why finish_reason is "error".
    times:               when it was taken in, started, and so on; None while it runs, and from `LLM` if a stop string
                         ended it.
    """

    index: int
    text: str
    token_ids: list[int]
    cumulative_logprob: float | None = None
    logprobs: list[PositionLogprobs] | None = None
    finish_reason: FinishReason | None = None
    stop_reason: int | str | None = None
    error: str | None = None
    times: RequestTimes | None = None


class RequestOutput(msgspec.Struct):
    """One request.

    prompt:           None if it was given as token ids.
    prompt_logprobs:  one per prompt token, None for the first; None unless asked for.
    outputs:          one per choice; from `stream`, only choices that got something, with what is new.
    num_cached_tokens:  prompt tokens that the first choice found in the prefix cache.
    """

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    prompt_logprobs: list[PositionLogprobs | None] | None
    outputs: list[CompletionOutput]
    finished: bool
    num_cached_tokens: int = 0
