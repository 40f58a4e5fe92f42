"""Reads a request: the body decoded, the model known, what has no effect noted for the log and the answer's headers."""

from __future__ import annotations

from typing import Generic, TypeVar

import msgspec
from starlette.requests import Request

from pelton.server.context import ServerContext, record_of
from pelton.server.openai.decode import decode_request
from pelton.server.openai.models import served_model
from pelton.server.openai.schemas import ModelRequest

T = TypeVar("T", bound=ModelRequest)


class Incoming(msgspec.Struct, Generic[T], frozen=True):
    """model: its name in the answer. headers: of the answer."""

    request: T
    model: str
    headers: dict[str, str]


async def read_request(http_request: Request, context: ServerContext, type_: type[T]) -> Incoming[T]:
    """Raises ApiError: 400 for a body that is wrong, 404 for a model that is not served."""
    body = await http_request.body()
    request, ignored = decode_request(body, type_, is_strict=context.settings.strict_params)
    model = served_model(request.model, context)
    record = record_of(http_request)
    record.model, record.ignored_params = model, ignored
    return Incoming(request, model, {"X-Ignored-Params": ",".join(ignored)} if ignored else {})
