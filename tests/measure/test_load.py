"""The load test's client against a server of a few lines that answers what each test wants."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator

import pytest

from pelton.errors import UsageError
from pelton.measure.load import Ask, Target, ask, closed_loop, open_loop, random_asks
from pelton.measure.sse_client import Endpoint
from tests.measure.fake_server import Server, stream_of


@pytest.fixture
def server() -> Iterator[Server]:
    running = Server()
    yield running
    running.close()


def target(server: Server, dialect: str = "completions") -> Target:
    return Target(Endpoint.parse(server.url), "tiny", dialect, {"Authorization": "Bearer key"}, {"ignore_eos": True})


def test_a_stream_is_followed_wherever_the_network_cuts_it(server: Server) -> None:
    for cut in (1, 3, 1000):
        server.answers = lambda body, cut=cut: stream_of("a", "", "c", cut=cut)  # type: ignore[misc]
        outcome = asyncio.run(ask(target(server), Ask([1, 2, 3], 4), 10))
        assert outcome.error is None
        assert (len(outcome.moments), outcome.prompt_tokens, outcome.output_tokens) == (2, 5, 4)
        assert outcome.sent <= outcome.moments[0] <= outcome.moments[1] <= outcome.ended


def test_the_request_says_what_was_asked_for(server: Server) -> None:
    asyncio.run(ask(target(server), Ask([1, 2, 3], 4), 10))
    body = server.bodies[0]
    assert (body["prompt"], body["max_tokens"], body["stream"], body["ignore_eos"]) == ([1, 2, 3], 4, True, True)
    assert server.headers[0]["Authorization"] == "Bearer key"
    asyncio.run(ask(target(server, "chat"), Ask("hello", 4), 10))
    assert server.bodies[1]["messages"] == [{"role": "user", "content": "hello"}]


def test_a_chat_stream_counts_words_and_not_roles(server: Server) -> None:
    events = [{"role": "assistant", "content": ""}, {"content": "a"}, {"content": "b"}, {}]
    data = b"".join(b"data: %s\n\n" % json.dumps({"choices": [{"delta": delta}]}).encode() for delta in events)
    server.answers = lambda body: (200, [data, b"data: [DONE]\n\n"], True)
    outcome = asyncio.run(ask(target(server, "chat"), Ask("hello", 4), 10))
    assert (len(outcome.moments), outcome.output_tokens) == (2, 2)


@pytest.mark.parametrize("chunked", [True, False])
def test_a_refusal_is_told_with_the_servers_words(server: Server, chunked: bool) -> None:
    answer = json.dumps({"error": {"message": "queue is full"}}).encode()
    server.answers = lambda body: (429, [answer], chunked)
    if chunked:
        server.answers = lambda body: (429, [answer, b""], True)
    outcome = asyncio.run(ask(target(server), Ask("x", 1), 10))
    assert (outcome.status, outcome.error) == (429, "queue is full")


def test_an_error_within_a_stream_and_a_stream_that_breaks_off_are_failures(server: Server) -> None:
    server.answers = lambda body: (200, [b'data: {"error": {"message": "it broke"}}\n\n'], True)
    assert asyncio.run(ask(target(server), Ask("x", 1), 10)).error == "it broke"
    server.answers = lambda body: stream_of("a", done=False)
    assert "without `[DONE]`" in str(asyncio.run(ask(target(server), Ask("x", 1), 10)).error)


def test_no_server_is_a_failure_of_each_request(server: Server) -> None:
    server.close()
    gone = Target(Endpoint.parse("http://127.0.0.1:1"), "tiny", "completions", {}, {})
    assert "can't be reached" in str(asyncio.run(ask(gone, Ask("x", 1), 10)).error)


def test_both_loops_ask_everything_once(server: Server) -> None:
    asks = random_asks(9, 4, 2, as_text=False, seed=3)
    assert len({tuple(wish.prompt) for wish in asks}) == 9
    for outcomes in (
        asyncio.run(closed_loop(target(server), asks, 4, 10)),
        asyncio.run(open_loop(target(server), asks, 1e4, 10, 3)),
    ):
        assert [outcome.error for outcome in outcomes] == [None] * 9
    expected = sorted(wish.prompt for wish in asks) * 2
    assert sorted(body["prompt"] for body in server.bodies) == sorted(expected)


@pytest.mark.parametrize("url", ["ftp://host", "http://", "http://host:x", "http://host/?a=1", ""])
def test_what_is_no_address_of_a_server_is_refused(url: str) -> None:
    with pytest.raises(UsageError):
        Endpoint.parse(url)


def test_an_address_may_have_a_prefix_and_end_in_v1() -> None:
    assert str(Endpoint.parse("host:8000")) == "http://host:8000"
    assert str(Endpoint.parse("https://host/api/v1/")) == "https://host:443/api"
    assert str(Endpoint.parse("http://[::1]:80")) == "http://[::1]:80"
