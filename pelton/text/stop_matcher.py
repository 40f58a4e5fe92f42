"""Finds stop strings in text that comes in pieces; it knows no tokens."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from pelton.errors import UsageError
from pelton.sampling_params import MAX_STOP_CHARACTERS


class StopMatcher:
    """Watches a growing text for the first of several strings, wherever the pieces are cut.

    The string that is complete first matches; of two complete at the same character, the longer. Text is handed out as
    soon as it can't be the beginning of a match. An Aho-Corasick automaton: its time is linear in the text.
    """

    def __init__(self, stops: Sequence[str], *, include_stop: bool = False) -> None:
        """stops: not empty; no strings at all match nothing. include_stop: show the match too, and nothing after it."""
        longest = max(map(len, stops), default=0)
        if not all(stops) or longest > MAX_STOP_CHARACTERS:
            raise UsageError(f"a stop string has 1 to {MAX_STOP_CHARACTERS} characters")
        self._include_stop = include_stop
        # State n is a prefix of some stop string; 0 is the empty one.
        self._next: list[dict[str, int]] = [{}]
        self._depth: list[int] = [0]
        self._match: list[str | None] = [None]
        for stop in stops:
            self._insert(stop)
        self._fallback = self._find_fallbacks()
        self._state = 0
        self._held = ""
        self._matched: str | None = None

    def push(self, text: str) -> tuple[str, str | None]:
        """Add text; return what may be shown, and the stop string if one is complete now.

        After a match nothing more is shown.
        """
        if self._matched is not None:
            return "", self._matched
        if len(self._next) == 1:
            return text, None
        state = self._state
        for position, character in enumerate(text):
            while state and character not in self._next[state]:
                state = self._fallback[state]
            state = self._next[state].get(character, 0)
            stop = self._match[state]
            if stop is not None:
                seen = self._held + text[: position + 1]
                self._held, self._matched = "", stop
                return seen if self._include_stop else seen[: len(seen) - len(stop)], stop
        seen = self._held + text
        cut = len(seen) - self._depth[state]
        self._state, self._held = state, seen[cut:]
        return seen[:cut], None

    def finish(self) -> str:
        """Text held back for a match that never came. The text is over."""
        held, self._held, self._state = self._held, "", 0
        return held

    def _insert(self, stop: str) -> None:
        state = 0
        for character in stop:
            if character not in self._next[state]:
                self._next[state][character] = len(self._next)
                self._next.append({})
                self._depth.append(self._depth[state] + 1)
                self._match.append(None)
            state = self._next[state][character]
        self._match[state] = stop

    def _find_fallbacks(self) -> list[int]:
        """For each state the longest proper suffix that is a state too; breadth first, so shorter ones are ready."""
        fallback = [0] * len(self._next)
        queue = deque(self._next[0].values())
        while queue:
            state = queue.popleft()
            if self._match[state] is None:
                self._match[state] = self._match[fallback[state]]
            for character, following in self._next[state].items():
                candidate = fallback[state]
                while candidate and character not in self._next[candidate]:
                    candidate = fallback[candidate]
                fallback[following] = self._next[candidate].get(character, 0)
                queue.append(following)
        return fallback
