"""`/v1/models`: which names may be asked for."""

from __future__ import annotations

import difflib

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from pelton.server.context import ServerContext
from pelton.server.errors import ApiError
from pelton.server.openai.documents import Model, ModelList


async def list_models(request: Request, context: ServerContext) -> Response:
    models = ModelList(data=[_model(model_id, context) for model_id in context.model_ids])
    return Response(msgspec.json.encode(models), media_type="application/json")


async def retrieve_model(request: Request, context: ServerContext) -> Response:
    model_id = served_model(request.path_params["model_id"], context)
    return Response(msgspec.json.encode(_model(model_id, context)), media_type="application/json")


def served_model(name: str | None, context: ServerContext) -> str:
    """The model's name in answers: as it was asked for, the first if it was not. Raises ApiError (404)."""
    if not name:
        return context.model_ids[0]
    if name in context.model_ids or name == context.llm.text.name:
        return name
    nearest = difflib.get_close_matches(name[:256], context.model_ids, n=1, cutoff=0.0)
    raise ApiError(
        404,
        f"the model `{name[:200]}` does not exist; the nearest that is served is `{nearest[0]}`",
        code="model_not_found",
        param="model",
    )


def _model(model_id: str, context: ServerContext) -> Model:
    return Model(
        id=model_id,
        created=context.created_s,
        root=context.llm.text.name,
        max_model_len=context.llm.limits.max_model_len,
    )
