"""Requests that broke the engine, by what they ask: refused for a while, since many clients try again by themselves."""

from __future__ import annotations

import hashlib

import msgspec

from pelton.engine.messages import AddRequest

_MAX_ENTRIES = 256
DURATION_S = 600.0


class Quarantine:
    def __init__(self) -> None:
        self._until_s: dict[bytes, float] = {}  # the oldest first

    def add(self, request: AddRequest, now_s: float) -> str:
        """Returns the name that the log may tell: a hash, which says nothing of the prompt."""
        key = _key(request)
        self._until_s.pop(key, None)
        self._until_s[key] = now_s + DURATION_S
        if len(self._until_s) > _MAX_ENTRIES:
            del self._until_s[next(iter(self._until_s))]
        return key.hex()

    def seconds_left(self, request: AddRequest, now_s: float) -> float:
        """How long such a request is refused; 0.0 if it is not."""
        if not self._until_s:
            return 0.0
        return max(0.0, self._until_s.get(_key(request), now_s) - now_s)


def _key(request: AddRequest) -> bytes:
    """Of the prompt and how it is to be answered; the seed that was drawn for it is chance."""
    asked = msgspec.msgpack.encode((request.prompt_token_ids, request.sampling))
    return hashlib.blake2b(asked, digest_size=16).digest()
