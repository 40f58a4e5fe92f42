"""The document of the API is true: every route, every type, every bound."""

from __future__ import annotations

from typing import Any

import msgspec

from pelton.server import openai, openapi, tokenization
from pelton.server.openai.schemas import ChatCompletionRequest, CompletionRequest
from tests.server.openai.conftest import serve


def references(value: Any) -> set[str]:
    if isinstance(value, dict):
        found = {value["$ref"]} if isinstance(value.get("$ref"), str) else set()
        return found.union(*map(references, value.values()))
    return set().union(*map(references, value)) if isinstance(value, list) else set()


def test_document_is_served_whole() -> None:
    document = serve().client.get("/openapi.json").json
    assert document == msgspec.json.decode(msgspec.json.encode(openapi.document()))
    assert document["openapi"] == "3.1.0"
    known = {f"#/components/schemas/{name}" for name in document["components"]["schemas"]}
    assert references(document) <= known


def test_every_route_is_described() -> None:
    described = {(method.upper(), path) for path, methods in openapi.document()["paths"].items() for method in methods}
    routes = {
        (method, route.path.replace(":path}", "}"))
        for route in [*openai.ROUTES, *tokenization.ROUTES]
        for method in route.methods
    }
    assert described == routes


def test_every_request_field_is_described_with_its_bounds() -> None:
    schemas = openapi.document()["components"]["schemas"]
    for type_ in (ChatCompletionRequest, CompletionRequest):
        properties = schemas[type_.__name__]["properties"]
        assert set(properties) == set(type_.__struct_fields__)
    n = schemas["ChatCompletionRequest"]["properties"]["n"]
    assert {"type": "integer", "minimum": 1, "maximum": 16} in n["anyOf"]
