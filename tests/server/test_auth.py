"""Who may ask: every route, every state of the key, every way to write the path; names and origins without a key."""

from __future__ import annotations

import itertools
import logging
from pathlib import Path
from typing import Any

import pytest

from pelton.config import ServerSettings
from pelton.errors import UsageError
from pelton.server import health, openapi, tokenization
from pelton.server.app import Route
from pelton.server.auth import ApiKeys, choose_keys, is_loopback, make_guard
from pelton.server.openai import ROUTES as OPENAI_ROUTES
from tests.server.serving import request, run, running

KEY = "right-key-1234"
ALL_ROUTES = [*OPENAI_ROUTES, *tokenization.ROUTES, *openapi.ROUTES, *health.ROUTES]
OPEN = {"/live", "/ready", "/health"}
WRONG = [
    [],
    ["Authorization: Bearer wrong"],
    ["Authorization: Bearer"],
    ["Authorization: Bearer "],
    [f"Authorization: Basic {KEY}"],
    [f"Authorization: {KEY}"],
    [f"Authorization: Bearer {KEY}x"],
    [f"Authorization: Bearer {KEY[:-1]}"],
    [f"Authorization: Bearer {KEY} x"],
    [f"X-Api-Key: x{KEY}"],
    [f"X-Api-Key: Bearer {KEY}"],
    [f"Cookie: api_key={KEY}"],
    ["Authorization: Bearer \xff\xfe"],
]
RIGHT = [[f"Authorization: Bearer {KEY}"], [f"authorization: bEARER  {KEY} "], [f"x-api-key: {KEY}"]]


def spellings(path: str) -> list[str]:
    """Ways to write a path that some server might take for it."""
    name = path.lstrip("/")
    encoded = "".join(f"%{ord(letter):02x}" for letter in name)
    return [
        *(path, path + "/", "/" + path, "/." + path, "/live/.." + path, f"/live/%2e%2e{path}", f"/live%2f..{path}"),
        *("/" + encoded, "/%2F" + name, path.upper(), path + "%00", path + "%20", path + "?x=/live", path + "#/live"),
        *(path + ";/live", path + "/live", "/live" + path, "/health/.." + path, "http://localhost" + path),
        path.replace("/", "%2f")[3:].join(("/", "")),
    ]


def test_every_route_but_three_needs_the_key_however_its_path_is_written() -> None:
    calls: list[str] = []

    def noted(route: Route) -> Route:
        async def handler(request: Any, context: Any) -> Any:
            calls.append(route.path)
            raise AssertionError("no handler is reached without a key")

        return Route(route.methods, route.path, handler, route.is_open, needs_model=False)

    routes = [route if route.path in OPEN else noted(route) for route in ALL_ROUTES]
    assert {route.path for route in ALL_ROUTES if route.is_open} == OPEN

    async def test() -> None:
        async with running(routes, keys=[KEY, "other-key"]) as server:
            for route in routes:
                path = route.path.replace("{model_id:path}", "a/b:c")
                for method, spelling in itertools.product((*route.methods, "HEAD", "OPTIONS", "PUT"), spellings(path)):
                    async with await server.connect() as client:
                        await client.send(request(method, spelling, "Connection: close", "Content-Length: 0"))
                        head = await client.reader.readuntil(b"\r\n\r\n")
                        status = int(head.split()[1])
                    is_open = path in OPEN and method in ("GET", "HEAD")
                    assert status in ((401, 400, 200) if is_open else (401, 400)), (method, spelling, status)
            for route, wrong in itertools.product(routes, WRONG):
                path = route.path.replace("{model_id:path}", "a/b:c")
                [answer] = await server.ask(request(route.methods[0], path, "Connection: close", *wrong))
                if path in OPEN:
                    assert answer.status == 200
                else:
                    assert (answer.status, answer.code) == (401, "invalid_api_key"), (path, wrong)
                    assert answer.headers["www-authenticate"].startswith("bearer")

    run(test())
    assert calls == []


def test_the_right_key_opens_every_route() -> None:
    async def test() -> None:
        async with running(keys=["other-key", KEY]) as server:
            for right in RIGHT:
                assert (await server.get("/hello", *right)).status == 200
                assert (await server.get("/none", *right)).status == 404
                assert (await server.post("/hello", b"", *right)).status == 405
            assert (await server.get("/hello", "X-Api-Key: wrong", *RIGHT[0])).status == 200
            assert (await server.get("/none")).status == 401

    run(test())


def test_a_wrong_key_is_answered_before_the_body_is_sent() -> None:
    async def test() -> None:
        async with running(keys=[KEY]) as server:
            [answer] = await server.ask(request("POST", "/size", "Content-Length: 1000000"))
            assert answer.status == 401

    run(test())


def test_keys_are_held_as_hashes_and_found_by_number() -> None:
    keys = ApiKeys(["a-key", "b-key"])
    assert [keys.find(text) for text in (b"a-key", b"b-key", b"c-key", b"")] == [0, 1, None, None]
    assert "a-key" not in repr(vars(keys))


@pytest.mark.parametrize(
    ("host", "status"),
    [
        *((name, 200) for name in ("localhost", "LOCALHOST:80", "127.0.0.1", "127.0.0.1:8000", "[::1]", "[::1]:8000")),
        *((name, 403) for name in ("evil.example", "localhost.evil.example", "127.0.0.2", "evil.example:8000")),
        *((name, 403) for name in ("[::1", "localhost@evil.example:1", "", "user@evil.example", "[::ffff:1]")),
    ],
)
def test_without_a_key_only_our_own_names_are_answered(host: str, status: int) -> None:
    async def test() -> None:
        async with running() as server:
            for path in ("/hello", "/open", "/none"):
                data = request("GET", path, "Connection: close").replace(b"Host: localhost", f"Host: {host}".encode())
                [answer] = await server.ask(data)
                assert (answer.status == 403) == (status == 403)
                if status == 403:
                    assert answer.code == "host_not_allowed"
        async with running(keys=[KEY]) as server:  # behind a proxy: who has the key is no stranger
            data = request("GET", "/hello", "Connection: close", *RIGHT[0])
            [answer] = await server.ask(data.replace(b"Host: localhost", f"Host: {host}".encode()))
            assert answer.status == 200

    run(test())


@pytest.mark.parametrize(
    ("origin", "status"),
    [
        ("https://evil.example", 403),
        ("http://127.0.0.1.evil.example", 403),
        ("http://[", 403),
        ("null", 403),
        ("http://localhost:3000", 200),
        ("app://desktop", 200),
        ("https://friend.example", 200),
    ],
)
def test_pages_of_others_may_not_ask_without_a_key(origin: str, status: int) -> None:
    async def test() -> None:
        async with running(cors_origin=("https://friend.example",)) as server:
            assert (await server.get("/hello", f"Origin: {origin}")).status == status

    run(test())


def test_a_browser_is_told_what_pages_of_named_origins_may_do() -> None:
    preflight = ("Access-Control-Request-Method: POST", "Access-Control-Request-Headers: authorization,x-api-key")
    friend = "Origin: https://friend.example"

    async def test() -> None:
        async with running(cors_origin=("https://friend.example",), keys=[KEY]) as server:
            [answer] = await server.ask(request("OPTIONS", "/size", friend, *preflight, "Connection: close"))
            assert answer.status == 204
            assert answer.headers["access-control-allow-origin"] == "https://friend.example"
            assert answer.headers["access-control-allow-methods"] == "post"
            assert answer.headers["access-control-allow-headers"] == "authorization,x-api-key"
            for answer in (await server.get("/hello", friend, *RIGHT[0]), await server.get("/hello", friend)):
                assert answer.headers["access-control-allow-origin"] == "https://friend.example"
                assert answer.headers["vary"] == "origin"
                assert "access-control-allow-credentials" not in answer.headers
            stranger = "Origin: https://evil.example"
            [answer] = await server.ask(request("OPTIONS", "/size", stranger, *preflight, "Connection: close"))
            assert answer.status == 401
            answer = await server.get("/hello", stranger, *RIGHT[0])
            assert "access-control-allow-origin" not in answer.headers
        async with running() as server:
            answer = await server.get("/hello", "Origin: http://localhost:3000")
            assert not [name for name in answer.headers if name.startswith("access-control")]

    run(test())


def test_which_addresses_are_this_machines_alone() -> None:
    assert all(is_loopback(host) for host in ("127.0.0.1", "127.8.9.1", "::1", "localhost"))
    assert not any(is_loopback(host) for host in ("0.0.0.0", "::", "10.0.0.1", "example.org", "localhost.example", ""))


def test_an_address_that_others_reach_needs_a_key() -> None:
    outside = ServerSettings(host="0.0.0.0")
    [key], is_made_up = choose_keys(outside, None)
    assert is_made_up
    assert len(key) > 40
    assert choose_keys(outside, None)[0] != [key]
    assert choose_keys(outside, "given-key") == (["given-key"], False)
    assert choose_keys(ServerSettings(host="0.0.0.0", no_auth=True), None) == ([], False)
    assert choose_keys(ServerSettings(), None) == ([], False)
    assert choose_keys(ServerSettings(), "given-key") == (["given-key"], False)
    assert make_guard(outside, [key]).keys is not None
    assert make_guard(ServerSettings(host="0.0.0.0", no_auth=True), []).allowed_hosts is None


def test_keys_come_from_a_file(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = tmp_path / "keys"
    file.write_text("# ours\none-key\n\n  two-key  \n")
    file.chmod(0o600)
    with caplog.at_level(logging.WARNING):
        assert choose_keys(ServerSettings(api_key_file=file), None) == (["one-key", "two-key"], False)
        assert not caplog.records
        file.chmod(0o644)
        choose_keys(ServerSettings(api_key_file=file), None)
    assert "can be read by other users" in caplog.text
    assert "one-key" not in caplog.text


@pytest.mark.parametrize(
    "content", [b"", b"# none\n", b"\xff\xfe", b"with space\n", "schlüssel\n".encode(), b"a\x07\n"]
)
def test_a_file_without_usable_keys_is_an_error(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "keys"
    file.write_bytes(content)
    file.chmod(0o600)
    with pytest.raises(UsageError):
        choose_keys(ServerSettings(api_key_file=file), None)
    with pytest.raises(UsageError, match="can't be read"):
        choose_keys(ServerSettings(api_key_file=tmp_path / "none"), None)


def test_a_key_and_no_auth_contradict_each_other() -> None:
    with pytest.raises(UsageError, match="no_auth"):
        choose_keys(ServerSettings(no_auth=True), "given-key")
