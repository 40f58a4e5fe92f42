"""Which models there are."""

from __future__ import annotations

from tests.server.openai.conftest import Client
from tests.server.openai.fake_llm import LIMITS


def test_served_names_are_listed(client: Client) -> None:
    document = client.get("/v1/models").json
    assert document["object"] == "list"
    assert [model["id"] for model in document["data"]] == ["served", "org/model-v2"]
    assert document["data"][0]["root"] == "org/model"
    assert document["data"][0]["max_model_len"] == LIMITS.max_model_len


def test_one_model_is_found_by_any_of_its_names(client: Client) -> None:
    for name in ("served", "org/model-v2", "org/model"):
        assert client.get(f"/v1/models/{name}").json["id"] == name


def test_unknown_model_is_404_with_the_nearest(client: Client) -> None:
    answered = client.get("/v1/models/srved")
    assert (answered.status, answered.error["code"], answered.error["param"]) == (404, "model_not_found", "model")
    assert "`served`" in answered.error["message"]
    assert len(client.get("/v1/models/" + "x" * 5000).body) < 2048
