"""One timer for many waits: what it ends, and what it must not take for its own doing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from pelton.server.deadline import Deadline
from tests.server.serving import run


async def items(gate: asyncio.Event, count: int = 3) -> AsyncIterator[int]:
    for number in range(count):
        yield number
        await gate.wait()


def test_items_come_until_the_moment_and_then_none() -> None:
    async def test() -> None:
        gate = asyncio.Event()
        gate.set()
        deadline = Deadline(3600)
        iterator = items(gate)
        assert [await deadline.next_of(iterator) for _ in range(4)] == [0, 1, 2, None]
        deadline.pass_now()
        with pytest.raises(TimeoutError):
            await deadline.next_of(items(gate))
        deadline.cancel()

    run(test())


@pytest.mark.parametrize("seconds", [0.0, 0.01])
def test_the_moment_ends_a_wait(seconds: float) -> None:
    async def test() -> None:
        gate = asyncio.Event()
        deadline = Deadline(seconds)
        iterator = items(gate)
        await deadline.next_of(iterator)
        with pytest.raises(TimeoutError):
            await deadline.next_of(iterator)
        task = asyncio.current_task()
        assert task is not None
        assert task.cancelling() == 0
        await asyncio.sleep(0)  # nothing of the interruption is left to strike here

    run(test())


@pytest.mark.parametrize("is_passed", [False, True])
def test_who_cancels_the_waiting_task_is_obeyed(is_passed: bool) -> None:
    async def test() -> None:
        gate = asyncio.Event()
        deadline = Deadline(3600)
        iterator = items(gate)

        async def wait() -> None:
            await deadline.next_of(iterator)
            await deadline.next_of(iterator)

        waiting = asyncio.ensure_future(wait())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        waiting.cancel()
        if is_passed:
            deadline.pass_now()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        deadline.cancel()

    run(test())
