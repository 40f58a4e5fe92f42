"""`/tokenize`, `/detokenize`, `/tokenizer_info`: the vocabulary, for clients that count or cut tokens themselves.

Shapes as in vLLM, which lm-eval's remote tokenizer reads.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType
from starlette.requests import Request
from starlette.responses import Response

from pelton.errors import ChatTemplateError
from pelton.server.app import Route
from pelton.server.context import ServerContext
from pelton.server.openai.decode import bad_request
from pelton.server.openai.incoming import read_request
from pelton.server.openai.messages import template_call
from pelton.server.openai.schemas import MAX_PROMPT_TOKENS, Messages, ModelRequest, TemplateArguments, TokenId


class TokenizeRequest(ModelRequest, kw_only=True):
    """Either a prompt or messages. add_special_tokens: BOS and EOS as the model wants them; only for a prompt."""

    prompt: str | None = None
    messages: Messages | None = None
    add_special_tokens: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: TemplateArguments | None = None
    return_token_strs: bool | None = None


class TokenizeAnswer(Struct, kw_only=True):
    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | UnsetType = UNSET


class DetokenizeRequest(ModelRequest, kw_only=True):
    tokens: Annotated[list[TokenId], Meta(max_length=MAX_PROMPT_TOKENS)]


class DetokenizeAnswer(Struct):
    prompt: str


class TokenizerInfo(Struct, kw_only=True):
    """Of tokenizer_config.json, as far as it says something of this model. chat_template: null if it has none."""

    tokenizer_class: str = "PreTrainedTokenizerFast"
    vocab_size: int
    model_max_length: int
    bos_token: str | None
    eos_token: str | None
    pad_token: str | None
    add_bos_token: bool
    add_eos_token: bool
    chat_template: str | None


async def tokenize(http_request: Request, context: ServerContext) -> Response:
    incoming = await read_request(http_request, context, TokenizeRequest)
    tokens = await _token_ids(incoming.request, context)
    answer = TokenizeAnswer(count=len(tokens), max_model_len=context.llm.limits.max_model_len, tokens=tokens)
    if incoming.request.return_token_strs:
        answer.token_strs = [context.llm.text.tokenizer.token_text(token_id) for token_id in tokens]
    return Response(msgspec.json.encode(answer), headers=incoming.headers, media_type="application/json")


async def _token_ids(request: TokenizeRequest, context: ServerContext) -> list[int]:
    """A text longer than any context is counted all the same: that is what a client may want to know."""
    text = context.llm.text
    if (request.prompt is None) == (request.messages is None):
        raise bad_request("give either `prompt` or `messages`", "prompt")
    if request.prompt is not None:
        encode = partial(
            text.tokenizer.encode,
            request.prompt,
            add_special=request.add_special_tokens is not False,
            parse_special=True,
        )
        return await asyncio.to_thread(encode)
    call = template_call(
        request.messages or [],
        text.chat_template,
        add_generation_prompt=request.add_generation_prompt,
        continue_final_message=request.continue_final_message,
        chat_template_kwargs=request.chat_template_kwargs,
    )
    try:
        return (await asyncio.to_thread(partial(text.encode_chat, **call)))[1]
    except ChatTemplateError as error:
        raise bad_request(error.message, "messages") from error


async def detokenize(http_request: Request, context: ServerContext) -> Response:
    incoming = await read_request(http_request, context, DetokenizeRequest)
    vocab_size = context.llm.limits.vocab_size
    if max(incoming.request.tokens, default=0) >= vocab_size:
        raise bad_request(f"`tokens` has ids outside `[0, {vocab_size})`", "tokens")
    decode = partial(context.llm.text.tokenizer.decode, incoming.request.tokens, skip_special=False)
    answer = DetokenizeAnswer(await asyncio.to_thread(decode))
    return Response(msgspec.json.encode(answer), headers=incoming.headers, media_type="application/json")


async def tokenizer_info(http_request: Request, context: ServerContext) -> Response:
    text = context.llm.text
    tokenizer = text.tokenizer

    def spelled(token_id: int | None) -> str | None:
        return None if token_id is None else tokenizer.token_text(token_id)

    info = TokenizerInfo(
        vocab_size=tokenizer.vocab_size,
        model_max_length=context.llm.limits.max_model_len,
        bos_token=spelled(tokenizer.bos_token_id),
        eos_token=spelled(tokenizer.eos_token_id),
        pad_token=spelled(tokenizer.pad_token_id),
        add_bos_token=tokenizer.add_bos,
        add_eos_token=tokenizer.add_eos,
        chat_template=None if text.chat_template is None else text.chat_template.source,
    )
    return Response(msgspec.json.encode(info), media_type="application/json")


ROUTES = [
    Route(("POST",), "/tokenize", tokenize),
    Route(("POST",), "/detokenize", detokenize),
    Route(("GET",), "/tokenizer_info", tokenizer_info),
]
