"""One request's progress on its way to who asked for it: kept in order, merged while nobody reads, replayed after a
crash of the engine. It knows no process and no text."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import msgspec

from pelton.engine.batch import TokenLogprobs
from pelton.engine.messages import AddRequest
from pelton.engine.request import Progress, RequestTimes
from pelton.errors import PeltonError


class EngineStream:
    """An async iterator of Progress. Close it, whether it has ended or not.

    What nobody reads is merged into one Progress per choice, so that it never takes more than the answer itself.
    """

    def __init__(self, request: AddRequest, on_close: Callable[[EngineStream], None]) -> None:
        self.request = request
        self.has_started = False
        # In the engine process that lives now:
        self.is_sent = False
        self.is_running = False
        self._on_close = on_close
        self._said: list[list[int]] = [list(said) for said in request.output_token_ids] or [
            [] for _ in range(request.sampling.n)
        ]
        self._open = set(range(request.sampling.n))
        self._arrived_s = time.monotonic()
        self._started_s: float | None = None
        self._first_token_s: dict[int, float] = {}  # by choice
        self._is_continued = False
        self._num_prompt_logprobs = 0  # told so far
        self._num_repeated = 0  # of them, those that a continued request will tell again
        self._unread: dict[int, Progress] = {}
        self._error: PeltonError | None = None
        self._reader: asyncio.Future[None] | None = None

    @property
    def request_id(self) -> str:
        return self.request.request_id

    @property
    def num_open(self) -> int:
        """Choices that have not ended."""
        return len(self._open)

    @property
    def is_over(self) -> bool:
        """Nothing more will come; some may be unread."""
        return not self._open or self._error is not None

    @property
    def ended_choices(self) -> list[int]:
        return [choice for choice in range(self.request.sampling.n) if choice not in self._open]

    def continued(self) -> AddRequest:
        """The request as it is to be given to a new engine; with the ended choices, which are to be aborted."""
        self._num_repeated = self._num_prompt_logprobs
        self._is_continued = True
        return msgspec.structs.replace(self.request, output_token_ids=[list(said) for said in self._said])

    def start(self) -> None:
        """It has a slot in the engine that runs now."""
        self.has_started = self.is_running = True
        self._started_s = self._started_s or time.monotonic()

    def take(self, progress: Progress) -> None:
        """Takes in what a step brought."""
        choice = progress.choice
        if choice not in self._open or self._error is not None:
            return
        if progress.prompt_logprobs:
            progress = self._without_repeated(progress)
        if progress.token_ids:
            self._said[choice] += progress.token_ids
            self._first_token_s.setdefault(choice, time.monotonic())
        if progress.times is not None and self._is_continued:
            progress = msgspec.structs.replace(progress, times=self._own_times(choice, progress.times))
        if progress.finish_reason is not None:
            self._open.discard(choice)
        earlier = self._unread.get(choice)
        self._unread[choice] = progress if earlier is None else _merge(earlier, progress)
        self._wake()

    def end_choice(self, choice: int) -> None:
        """Its reader has seen enough of a choice; nothing more of it will come."""
        self._open.discard(choice)
        self._wake()

    def times_of(self, choice: int) -> RequestTimes | None:
        """Of a choice that ends now because its reader has seen enough of it; as seen from here."""
        if self._started_s is None:
            return None
        return RequestTimes(self._arrived_s, self._started_s, self._first_token_s.get(choice), time.monotonic())

    def end(self, reason: str | PeltonError) -> None:
        """Ends what is open: with finish_reason "abort", or by raising an error once all that came is read."""
        if isinstance(reason, PeltonError):
            self._error = self._error or reason
        else:
            for choice in sorted(self._open):
                self.take(Progress(self.request_id, choice, [], finish_reason="abort"))
        self._wake()

    def close(self) -> None:
        self._open.clear()
        self._unread.clear()
        self._on_close(self)

    def __aiter__(self) -> EngineStream:
        return self

    async def __anext__(self) -> Progress:
        while not self._unread:
            if self._error is not None:
                raise self._error
            if not self._open:
                raise StopAsyncIteration
            self._reader = asyncio.get_running_loop().create_future()
            await self._reader
        return self._unread.pop(next(iter(self._unread)))

    def _wake(self) -> None:
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)

    def _own_times(self, choice: int, times: RequestTimes) -> RequestTimes:
        """As seen from here: the engine that ended it knows nothing of those before."""
        return RequestTimes(
            self._arrived_s,
            self._started_s or times.started_s,
            self._first_token_s.get(choice),
            times.finished_s,
            times.num_preemptions,
        )

    def _without_repeated(self, progress: Progress) -> Progress:
        told = progress.prompt_logprobs or []
        repeated = min(self._num_repeated, len(told))
        self._num_repeated -= repeated
        self._num_prompt_logprobs += len(told) - repeated
        return msgspec.structs.replace(progress, prompt_logprobs=told[repeated:] or None) if repeated else progress


def _merge(first: Progress, second: Progress) -> Progress:
    """Both in one; the lists are the stream's own."""
    first.token_ids.extend(second.token_ids)
    return msgspec.structs.replace(
        second,
        token_ids=first.token_ids,
        logprobs=_joined(first.logprobs, second.logprobs),
        prompt_logprobs=_joined(first.prompt_logprobs, second.prompt_logprobs),
    )


def _joined(first: list[TokenLogprobs] | None, second: list[TokenLogprobs] | None) -> list[TokenLogprobs] | None:
    if first and second:
        first.extend(second)
    return first or second
