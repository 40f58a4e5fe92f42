"""The tokenizer over HTTP, as remote tokenizers of evaluations use it."""

from __future__ import annotations

from typing import Any

import pytest

from tests.server.openai.conftest import Client, serve
from tests.server.openai.fake_llm import FakeLLM


@pytest.fixture
def llm() -> FakeLLM:
    return FakeLLM()


@pytest.fixture
def client(llm: FakeLLM) -> Client:
    return serve(llm).client


def test_text_becomes_tokens_and_back(client: Client, llm: FakeLLM) -> None:
    text = "Hello ä🙂 <|im_end|>"
    document = client.post("/tokenize", prompt=text, add_special_tokens=False).json
    assert document["tokens"] == llm.text.tokenizer.encode(text, parse_special=True)
    assert document["count"] == len(document["tokens"])
    assert document["max_model_len"] == llm.limits.max_model_len
    assert client.post("/detokenize", tokens=document["tokens"]).json == {"prompt": text}


def test_tokens_are_spelled_on_request(client: Client) -> None:
    assert client.post("/tokenize", prompt="hi", return_token_strs=True).json["token_strs"] == ["hi"]


def test_conversations_become_tokens_as_chat_makes_them(client: Client, llm: FakeLLM) -> None:
    messages = [{"role": "user", "content": "Hi"}]
    client.chat(messages=messages)
    assert client.post("/tokenize", messages=messages).json["tokens"] == llm.asked[0].prompt
    without = client.post("/tokenize", messages=messages, add_generation_prompt=False).json
    assert without["count"] < len(llm.asked[0].prompt)


def test_text_longer_than_any_context_is_counted(client: Client) -> None:
    assert client.post("/tokenize", prompt="a " * 10_000).json["count"] > 10_000


def test_what_remote_tokenizers_ask_for_is_there(client: Client) -> None:
    document = client.get("/tokenizer_info").json
    assert (document["bos_token"], document["eos_token"], document["pad_token"]) == (
        None,
        "<|im_end|>",
        "<|endoftext|>",
    )
    assert "<|im_start|>" in document["chat_template"]


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/tokenize", {}),
        ("/tokenize", {"prompt": "a", "messages": [{"role": "user", "content": "a"}]}),
        ("/tokenize", {"prompt": ["a"]}),
        ("/tokenize", {"messages": []}),
        ("/tokenize", {"messages": [{"role": "user", "content": "a"}], "chat_template_kwargs": {"tools": "a"}}),
        ("/detokenize", {}),
        ("/detokenize", {"tokens": [-1]}),
        ("/detokenize", {"tokens": ["a"]}),
        ("/detokenize", {"tokens": [2**31 - 1]}),
    ],
)
def test_nonsense_is_refused(client: Client, path: str, fields: dict[str, Any]) -> None:
    assert client.post(path, **fields).status == 400
