"""Generated bodies: whatever a field holds, the answer is one or an error of the client's, small and in one shape.

Beside them a stream is open all the time; it must say every token that it would have said alone.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import pytest

from pelton.server.openai.decode import REFUSED
from pelton.server.openai.schemas import ChatCompletionRequest, CompletionRequest
from pelton.server.tokenization import DetokenizeRequest, TokenizeRequest
from tests.server.openai.conftest import Answered, serve

pytestmark = pytest.mark.timeout(1200)  # at full count
MAX_ERROR_BYTES = 2048

PATHS: dict[str, tuple[Any, dict[str, Any]]] = {
    "/v1/chat/completions": (ChatCompletionRequest, {"messages": [{"role": "user", "content": "Hi"}]}),
    "/v1/completions": (CompletionRequest, {"prompt": "Hi"}),
    "/tokenize": (TokenizeRequest, {"prompt": "Hi"}),
    "/detokenize": (DetokenizeRequest, {"tokens": [5]}),
}
JUNK: list[Any] = [
    None,
    True,
    False,
    0,
    1,
    -1,
    2,
    16,
    17,
    1 << 31,
    (1 << 63) - 1,
    -(1 << 63),
    1 << 64,
    10**30,
    0.0,
    -0.0,
    0.5,
    1e-320,
    1e308,
    "",
    "a",
    "\x00",
    "\ud800",
    "🙂" * 50,
    "x" * 3000,
    "<|im_end|>",
    "5",
    "auto",
    "none",
    "text",
    [],
    [None],
    [1],
    ["a"],
    [[1], [2]],
    [[]],
    ["a", 1],
    ["a"] * 20,
    {},
    {"a": 1},
    {"5": 1.0},
    {"type": "text"},
    {"type": "json_object"},
    {"include_usage": True},
    {"role": "user"},
    [{"role": "user", "content": None}],
    [{"role": "assistant", "content": None}],
    [{"role": "tool", "content": "a"}],
    [{"role": "user", "content": [{"type": "text", "text": "a"}]}],
    [{"role": "user", "content": [{"type": "image_url"}]}],
    [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "["}}]}],
    [{"function": {"name": "f"}}],
    [[[[[[1]]]]]],
]
# Values that each field takes, so that not every body is refused for its first fault.
TAKEN: dict[str, list[Any]] = {
    "messages": [[{"role": "system", "content": "a"}, {"role": "user", "content": [{"type": "text", "text": "ä🙂"}]}]],
    "prompt": ["", "ä🙂" * 20, ["a", "b"], [5, 6], [[5], [6, 7]]],
    "tokens": [[], [5, 6, 7]],
    "n": [1, 3, 16],
    "temperature": [0, 0.5, 2],
    "stop": ["e", ["l", "you"]],
    "logprobs": [True, 0, 5, 20],
    "top_logprobs": [0, 20],
    "logit_bias": [{}, {"5": 100, "6": -100}],
    "max_tokens": [0, 1, 5],
    "max_completion_tokens": [1, 5],
    "seed": [0, -1],
    "stream_options": [{"include_usage": True}, {"continuous_usage_stats": True}],
    "truncate_prompt_tokens": [-1, 1, 5],
    "prompt_logprobs": [0, 2],
    "cache_salt": ["", "a"],
    "min_tokens": [0, 1],
    "model": ["served", "org/model"],
    "metadata": [{"a": "b"}],
    "user": ["a"],
    "chat_template_kwargs": [{}, {"a": True, "b": "c"}],
    **{name: [*neutral, None] for name, neutral in REFUSED.items()},
}


def taken(generator: random.Random, name: str) -> Any:
    return generator.choice(TAKEN.get(name, [True, False, 1, None]))


def nested(generator: random.Random) -> Any:
    value = generator.choice(JUNK)
    for _ in range(generator.randrange(4)):
        value = [value] if generator.random() < 0.5 else {generator.choice(("a", "role", "type", "5")): value}
    return value


def fields_of(path: str) -> list[str]:
    type_ = PATHS[path][0]
    return [*type_.__struct_fields__, *REFUSED, "made_up"]


def mutated_text(generator: random.Random, body: bytes) -> bytes:
    """Bytes cut out, doubled, put in or changed."""
    data = bytearray(body)
    for _ in range(generator.randint(1, 4)):
        start = generator.randrange(len(data) + 1)
        end = min(len(data), start + generator.randrange(1, 12))
        match generator.randrange(4):
            case 0:
                del data[start:end]
            case 1:
                data[start:start] = data[start:end]
            case 2:
                data[start:start] = generator.choice((b"\xff", b"\x00", b'"', b"{", b"[", b"1e999", b"\\u0000", b"NaN"))
            case _:
                data[start:end] = generator.randbytes(end - start)
    return bytes(data)


def generated(generator: random.Random) -> tuple[str, bytes]:
    path = generator.choice(list(PATHS))
    names = fields_of(path)
    document: dict[str, Any] = dict(PATHS[path][1])
    document["stream"] = generator.choice((True, False, None))
    for _ in range(generator.randint(1, 3)):
        name = generator.choice(names)
        document[name] = taken(generator, name) if generator.random() < 0.8 else nested(generator)
    if generator.random() < 0.05:
        del document[generator.choice(list(document))]
    body = json.dumps(document).encode()
    return path, mutated_text(generator, body) if generator.random() < 0.2 else body


def check(path: str, body: bytes, answered: Answered) -> None:
    what = f"{path} {body[:400]!r} -> {answered.status} {answered.body[:400]!r}"
    assert answered.is_complete, what
    if b'"code":"timeout"' in answered.body and b"deadline_ms" in body:
        return  # it asked for no more time
    assert answered.status in (200, 400, 404), what
    if answered.status != 200:
        assert len(answered.body) <= MAX_ERROR_BYTES, what
        assert set(answered.error) == {"message", "type", "param", "code"}, what
        assert answered.error["type"] == "invalid_request_error", what
    elif answered.headers["content-type"] == "application/json":
        assert isinstance(answered.json, dict), what
    else:
        assert answered.events, what


def run_beside_a_live_stream(cases: Sequence[tuple[str, bytes]]) -> Counter[int]:
    """How often each status was answered. The stream gets a token per case, so it lives through all of them."""

    async def scenario() -> Counter[int]:
        server = serve()
        llm, client = server.llm, server.client
        llm.limits = msgspec.structs.replace(llm.limits, max_model_len=1 << 20)
        live_prompt = llm.tokens("live")
        text = "every token " * (len(cases) // 3 + 1)
        steps = asyncio.Semaphore(0)
        say = llm.say

        async def turn(prompt: list[int]) -> None:
            if prompt == live_prompt:
                await steps.acquire()

        llm.say = lambda prompt, choice: llm.said(text) if prompt == live_prompt else say(prompt, choice)
        llm.turn = turn
        live = Answered()
        body = json.dumps({"prompt": "live", "stream": True, "max_tokens": len(text)}).encode()
        task = asyncio.create_task(client.send("POST", "/v1/completions", body, into=live))
        statuses: Counter[int] = Counter()
        for path, case in cases:
            steps.release()
            answered = await client.send("POST", path, case)
            check(path, case, answered)
            statuses[answered.status] += 1
        assert not task.done()
        for _ in range(len(text)):
            steps.release()
        await task
        assert "".join(event["choices"][0]["text"] for event in live.events) == text
        assert llm.num_open == 0
        return statuses

    return asyncio.run(scenario())


def test_no_body_is_a_fault_of_the_server(case_count: Callable[[int, int], int]) -> None:
    generator = random.Random(20260301)
    statuses = run_beside_a_live_stream([generated(generator) for _ in range(case_count(2000, 20_000))])
    assert min(statuses[200], statuses[400]) > sum(statuses.values()) / 10, "both kinds of case are generated"


@pytest.mark.parametrize("path", list(PATHS))
def test_every_field_takes_every_kind_of_junk_without_a_fault(path: str, case_count: Callable[[int, int], int]) -> None:
    generator = random.Random(path)
    valid, names = PATHS[path][1], fields_of(path)
    pairs = [(name, junk) for name in names for junk in generator.sample(JUNK, case_count(8, len(JUNK)))]
    run_beside_a_live_stream([(path, json.dumps({**valid, name: junk}).encode()) for name, junk in pairs])
