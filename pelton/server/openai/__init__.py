"""OpenAI's API: the routes of its dialect."""

from __future__ import annotations

from pelton.server.app import Route
from pelton.server.openai.chat import create_chat_completion
from pelton.server.openai.completions import create_completion
from pelton.server.openai.models import list_models, retrieve_model

ROUTES = [
    Route(("GET",), "/v1/models", list_models),
    Route(("GET",), "/v1/models/{model_id:path}", retrieve_model),
    Route(("POST",), "/v1/chat/completions", create_chat_completion),
    Route(("POST",), "/v1/completions", create_completion),
]
