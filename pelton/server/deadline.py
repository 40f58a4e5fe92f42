"""A moment after which nobody waits any more for what an iterator says next; it knows not of what."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import TypeVar

T = TypeVar("T")


class Deadline:
    """One timer for all items of an iterator: `asyncio.timeout` around each would cost more than the item."""

    def __init__(self, seconds: float) -> None:
        self._timer = asyncio.get_running_loop().call_later(seconds, self.pass_now)
        self._waiting: asyncio.Task[object] | None = None
        self._has_passed = False

    async def next_of(self, items: AsyncIterator[T]) -> T | None:
        """None at the end. Raises TimeoutError once the moment has passed, in the middle of the wait if need be."""
        if self._has_passed:
            raise TimeoutError
        task = asyncio.current_task()
        assert task is not None, "awaited outside of a task"
        num_cancelled = task.cancelling()
        self._waiting = task
        try:
            return await anext(items, None)
        except asyncio.CancelledError:
            if self._has_passed and task.uncancel() <= num_cancelled:  # by us, and by nobody else
                raise TimeoutError from None
            raise
        finally:
            self._waiting = None

    def pass_now(self) -> None:
        """Ends the wait that is on, and every later one."""
        if not self._has_passed:
            self._has_passed = True
            if self._waiting is not None:
                self._waiting.cancel()

    def cancel(self) -> None:
        """Nobody waits any more."""
        self._timer.cancel()
