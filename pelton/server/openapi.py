"""`/openapi.json`: the document of the API, made from the types that requests are decoded to."""

from __future__ import annotations

from functools import cache
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

import pelton
from pelton.server.app import Route
from pelton.server.context import ServerContext
from pelton.server.openai.documents import ChatCompletion, Completion, ErrorAnswer, Model, ModelList
from pelton.server.openai.schemas import ChatCompletionRequest, CompletionRequest
from pelton.server.tokenization import (
    DetokenizeAnswer,
    DetokenizeRequest,
    TokenizeAnswer,
    TokenizeRequest,
    TokenizerInfo,
)


class Operation(msgspec.Struct, frozen=True):
    """One route's document. path: with parameters as OpenAPI writes them. can_stream: the answer may be events."""

    method: str
    path: str
    summary: str
    answer: type[msgspec.Struct]
    request: type[msgspec.Struct] | None = None
    can_stream: bool = False


OPERATIONS = [
    Operation("get", "/v1/models", "The models that may be asked for", ModelList),
    Operation("get", "/v1/models/{model_id}", "One model", Model),
    Operation(
        "post",
        "/v1/chat/completions",
        "The assistant's next message in a conversation",
        ChatCompletion,
        ChatCompletionRequest,
        can_stream=True,
    ),
    Operation(
        "post", "/v1/completions", "What follows one or many prompts", Completion, CompletionRequest, can_stream=True
    ),
    Operation("post", "/tokenize", "The token ids of a text or a conversation", TokenizeAnswer, TokenizeRequest),
    Operation("post", "/detokenize", "The text of token ids", DetokenizeAnswer, DetokenizeRequest),
    Operation("get", "/tokenizer_info", "What there is to know of the tokenizer", TokenizerInfo),
]


@cache
def document() -> dict[str, Any]:
    """OpenAPI 3.1."""
    types = {operation.answer for operation in OPERATIONS} | {ErrorAnswer}
    types |= {operation.request for operation in OPERATIONS if operation.request is not None}
    ordered = sorted(types, key=lambda each: each.__name__)
    _, components = msgspec.json.schema_components(ordered, ref_template="#/components/schemas/{name}")
    paths: dict[str, Any] = {}
    for operation in OPERATIONS:
        paths.setdefault(operation.path, {})[operation.method] = _described(operation)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Pelton", "version": pelton.__version__},
        "security": [{"key": []}],
        "paths": paths,
        "components": {"schemas": components, "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}}},
    }


def _described(operation: Operation) -> dict[str, Any]:
    content: dict[str, Any] = _json_of(operation.answer)
    if operation.can_stream:
        content["text/event-stream"] = {"schema": {"type": "string"}}
    described: dict[str, Any] = {
        "summary": operation.summary,
        "responses": {
            "200": {"description": "The answer", "content": content},
            "default": {"description": "What is wrong", "content": _json_of(ErrorAnswer)},
        },
    }
    if operation.request is not None:
        described["requestBody"] = {"required": True, "content": _json_of(operation.request)}
    if "{model_id}" in operation.path:
        described["parameters"] = [{"name": "model_id", "in": "path", "required": True, "schema": {"type": "string"}}]
    return described


def _json_of(type_: type[msgspec.Struct]) -> dict[str, Any]:
    return {"application/json": {"schema": {"$ref": f"#/components/schemas/{type_.__name__}"}}}


async def openapi(request: Request, context: ServerContext) -> Response:
    return Response(msgspec.json.encode(document()), media_type="application/json")


ROUTES = [Route(("GET",), "/openapi.json", openapi, needs_model=False)]
