"""The application over an engine that says what tests tell it to, and a client without a network."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from pelton.async_llm import AsyncLLM
from pelton.config import ServerSettings
from pelton.server import openapi, tokenization
from pelton.server.app import Application
from pelton.server.context import ServerContext
from pelton.server.openai import ROUTES
from tests.server.openai.fake_llm import FakeLLM


@dataclass
class Answered:
    """One answer. may_go_on: unless set, the client does not read it."""

    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    writes: list[bytes] = field(default_factory=list)
    is_complete: bool = False
    may_go_on: asyncio.Event | None = None

    @property
    def body(self) -> bytes:
        """All of it so far."""
        return b"".join(self.writes)

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> Any:
        return self.json["error"]

    @property
    def events(self) -> list[Any]:
        """The documents of a stream, without its end mark, which must be there."""
        frames = self.body.decode().split("\n\n")
        assert frames.pop() == ""
        assert frames.pop() == "data: [DONE]"
        return [json.loads(frame.removeprefix("data: ")) for frame in frames if not frame.startswith(":")]


class Client:
    """Calls the application as a server would. leave: set it, and the client is gone."""

    def __init__(self, application: Application) -> None:
        self.application = application

    async def send(
        self,
        method: str,
        path: str,
        body: bytes = b"",
        *,
        leave: asyncio.Event | None = None,
        into: Answered | None = None,
    ) -> Answered:
        answered = into or Answered()
        unread = [{"type": "http.request", "body": body, "more_body": False}]
        gone = leave or asyncio.Event()

        async def receive() -> Any:
            if unread:
                return unread.pop()
            await gone.wait()
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            if message["type"] == "http.response.start":
                answered.status = message["status"]
                answered.headers = {name.decode(): value.decode() for name, value in message["headers"]}
            else:
                if answered.may_go_on is not None:
                    await answered.may_go_on.wait()
                assert not answered.is_complete, "nothing comes after the end"
                answered.writes.append(message["body"])
                answered.is_complete = not message.get("more_body", False)

        scope = {
            "type": "http",
            "method": method,
            "path": path,
            "raw_path": path.encode(),
            "query_string": b"",
            "root_path": "",
            "headers": [(b"content-type", b"application/json")],
        }
        await self.application(scope, receive, send)
        return answered

    def get(self, path: str) -> Answered:
        return asyncio.run(self.send("GET", path))

    def post(self, path: str, **fields: Any) -> Answered:
        return asyncio.run(self.send("POST", path, json.dumps(fields).encode()))

    def post_bytes(self, path: str, body: bytes) -> Answered:
        return asyncio.run(self.send("POST", path, body))

    def chat(self, content: Any = "Hi", **fields: Any) -> Answered:
        fields.setdefault("messages", [{"role": "user", "content": content}])
        return self.post("/v1/chat/completions", **fields)

    def complete(self, prompt: Any = "Once", **fields: Any) -> Answered:
        return self.post("/v1/completions", prompt=prompt, **fields)


@dataclass
class Server:
    llm: FakeLLM
    client: Client
    context: ServerContext


def serve(llm: FakeLLM | None = None, **settings: Any) -> Server:
    llm = llm or FakeLLM()
    context = ServerContext(cast(AsyncLLM, llm), ServerSettings(**settings), ("served", "org/model-v2"))
    application = Application([*ROUTES, *tokenization.ROUTES, *openapi.ROUTES], context)
    return Server(llm, Client(application), context)


@pytest.fixture
def server() -> Server:
    return serve()


@pytest.fixture
def client(server: Server) -> Client:
    return server.client


@pytest.fixture
def llm(server: Server) -> FakeLLM:
    return server.llm
