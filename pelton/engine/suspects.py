"""Whom to fail when what computes breaks again and again, and whom to spare. It knows request ids only.

A request that runs when the engine breaks gets a strike, and loses its strikes with its next token: it is past the
place. With two strikes it is a suspect, and suspects are tried one at a time while all that is new waits: if the engine
breaks once more, the one on trial has done it. So a request that breaks the engine wherever it runs costs three breaks,
and costs nobody else the answer.
"""

from __future__ import annotations

from collections.abc import Iterable

MAX_STRIKES = 2
# A request that breaks the engine at ever another token is never struck twice at one place: some end there must be.
MAX_BREAKS = 8


class Suspects:
    def __init__(self) -> None:
        self._strikes: dict[str, int] = {}
        self._breaks: dict[str, int] = {}

    @property
    def on_trial(self) -> str | None:
        """The request that must run next, and before any other is started; None if all may run."""
        return next((request_id for request_id, count in self._strikes.items() if count >= MAX_STRIKES), None)

    def broke(self, running: Iterable[str]) -> list[str]:
        """The engine broke while these ran. Those of them that are to be failed; they are forgotten."""
        running = list(running)
        tried = [request_id for request_id in running if self._strikes.get(request_id, 0) >= MAX_STRIKES]
        if len(tried) == 1:
            guilty = tried  # the others have nothing to do with it
        else:
            guilty = [request_id for request_id in running if self._strike(request_id, is_alone=len(running) == 1)]
        for request_id in guilty:
            self.forget(request_id)
        return guilty

    def advanced(self, request_id: str) -> None:
        """It got a token: what it was suspected of did not happen again."""
        self._strikes.pop(request_id, None)

    def forget(self, request_id: str) -> None:
        """It has ended."""
        self._strikes.pop(request_id, None)
        self._breaks.pop(request_id, None)

    def _strike(self, request_id: str, *, is_alone: bool) -> bool:
        """Whether this one was one too many."""
        strikes = self._strikes[request_id] = self._strikes.get(request_id, 0) + 1
        breaks = self._breaks[request_id] = self._breaks.get(request_id, 0) + 1
        return breaks >= MAX_BREAKS or (is_alone and strikes >= MAX_STRIKES)
