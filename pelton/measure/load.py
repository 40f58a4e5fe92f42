"""Puts load on a server and writes down when each request's tokens came. It knows the OpenAI dialect, no engine."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

import msgspec

from pelton.errors import DownloadError
from pelton.measure.sse_client import Endpoint, HttpError, post_events


class Ask(msgspec.Struct, frozen=True):
    """One request: a prompt (a text, or token ids) and how many tokens of answer it wants."""

    prompt: str | list[int]
    max_tokens: int


class Outcome(msgspec.Struct):
    """What came of one request; moments in seconds of `time.perf_counter`.

    moments:  when each event with text came. A server may put several tokens into one.
    error:    why it failed, with `status` if the server answered; None if it was answered in full.
    """

    sent: float
    moments: list[float] = msgspec.field(default_factory=list)
    ended: float = 0.0
    prompt_tokens: int = 0
    output_tokens: int = 0
    status: int | None = None
    error: str | None = None

    @property
    def first_token_s(self) -> float:
        return self.moments[0] - self.sent

    @property
    def total_s(self) -> float:
        return self.ended - self.sent

    @property
    def per_token_s(self) -> float | None:
        """Mean time per token after the first; None for a single token."""
        if self.output_tokens < 2:
            return None
        return (self.moments[-1] - self.moments[0]) / (self.output_tokens - 1)

    @property
    def gaps(self) -> list[float]:
        return [later - earlier for earlier, later in zip(self.moments, self.moments[1:], strict=False)]


class Target(msgspec.Struct, frozen=True):
    """Where and how to ask. dialect: "completions" or "chat". extra: fields that are added to every body."""

    endpoint: Endpoint
    model: str
    dialect: str
    headers: Mapping[str, str]
    extra: Mapping[str, Any]


def random_asks(count: int, prompt_tokens: int, output_tokens: int, *, as_text: bool, seed: int) -> list[Ask]:
    """Prompts that share nothing: random token ids of the range that nearly every vocabulary has, or random words."""
    generator = random.Random(seed)

    def prompt() -> str | list[int]:
        if as_text:
            return " ".join(generator.choice(_WORDS) for _ in range(prompt_tokens))
        return [generator.randrange(1000, 20000) for _ in range(prompt_tokens)]

    return [Ask(prompt(), output_tokens) for _ in range(count)]


_WORDS = ("time", "year", "people", "way", "day", "man", "thing", "life", "child", "world", "school", "state", "house")


async def ask(target: Target, wish: Ask, timeout_s: float) -> Outcome:
    """Sends one request and follows its stream. Never raises for what the server does."""
    outcome = Outcome(time.perf_counter())
    try:
        async with asyncio.timeout(timeout_s):
            async for event in _events(target, wish):
                _take(outcome, event)
        outcome.output_tokens = outcome.output_tokens or len(outcome.moments)
        if not outcome.moments:
            outcome.error = "no token came"
    except HttpError as error:
        outcome.status, outcome.error = error.status, error.message
    except DownloadError as error:
        outcome.error = error.message
    except TimeoutError:
        outcome.error = f"no end within {timeout_s} s"
    outcome.ended = time.perf_counter()
    return outcome


def _events(target: Target, wish: Ask) -> AsyncIterator[dict[str, Any]]:
    body: dict[str, Any] = {
        "model": target.model,
        "max_tokens": wish.max_tokens,
        "stream": True,
        "stream_options": {"include_usage": True},
        "temperature": 0,
        **target.extra,
    }
    if target.dialect == "chat":
        body["messages"] = [{"role": "user", "content": wish.prompt}]
        return post_events(target.endpoint, "/v1/chat/completions", target.headers, body)
    body["prompt"] = wish.prompt
    return post_events(target.endpoint, "/v1/completions", target.headers, body)


def _take(outcome: Outcome, event: Mapping[str, Any]) -> None:
    usage = event.get("usage")
    if usage:
        outcome.prompt_tokens = usage.get("prompt_tokens", 0)
        outcome.output_tokens = usage.get("completion_tokens", 0)
    if any(_text_of(choice) for choice in event.get("choices") or ()):
        outcome.moments.append(time.perf_counter())


def _text_of(choice: Mapping[str, Any]) -> str | None:
    """What the choice says in this event, in either dialect; thoughts count as well."""
    delta = choice.get("delta") or {}
    return choice.get("text") or delta.get("content") or delta.get("reasoning_content") or delta.get("reasoning")


async def closed_loop(target: Target, asks: Sequence[Ask], concurrency: int, timeout_s: float) -> list[Outcome]:
    """As many clients as `concurrency`, each with one request at a time, until all asks are answered."""
    waiting = iter(asks)
    outcomes: list[Outcome] = []

    async def client() -> None:
        for wish in waiting:
            outcomes.append(await ask(target, wish, timeout_s))

    await asyncio.gather(*(client() for _ in range(concurrency)))
    return outcomes


async def open_loop(target: Target, asks: Sequence[Ask], rate: float, timeout_s: float, seed: int) -> list[Outcome]:
    """Requests at random moments, `rate` per second on average, whether or not earlier ones are answered."""
    generator = random.Random(seed)
    tasks = []
    due = time.perf_counter()
    for wish in asks:
        due += generator.expovariate(rate)
        await asyncio.sleep(max(0.0, due - time.perf_counter()))
        tasks.append(asyncio.create_task(ask(target, wish, timeout_s)))
    return list(await asyncio.gather(*tasks))
