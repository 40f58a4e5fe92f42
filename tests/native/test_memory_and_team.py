"""Buffers, the ledger and the team as Python sees them."""

from __future__ import annotations

import gc
import threading
import time

import pytest

from pelton import _native


def test_buffer_is_zeroed_writable_and_counted() -> None:
    buffer = _native.Buffer(3 << 20, "test buffer")
    assert buffer.nbytes == 3 << 20
    assert buffer.address % (2 << 20) == 0
    assert _native.memory_ledger()["test buffer"] == 3 << 20
    view = memoryview(buffer)
    assert (view.format, view.nbytes, view.readonly) == ("B", 3 << 20, False)
    assert not any(view[:: 1 << 12])
    view[5] = 7
    assert memoryview(buffer)[5] == 7


def test_closed_buffer_gives_its_memory_back() -> None:
    buffer = _native.Buffer(100, "test close")
    buffer.close()
    buffer.close()
    assert (buffer.nbytes, buffer.address) == (0, 0)
    assert "test close" not in _native.memory_ledger()
    with pytest.raises(BufferError, match="closed"):
        memoryview(buffer)


def test_buffer_with_views_is_not_closed() -> None:
    buffer = _native.Buffer(100, "test views")
    with memoryview(buffer), pytest.raises(BufferError, match="views"):
        buffer.close()
    buffer.close()


def test_forgotten_buffer_leaves_the_ledger() -> None:
    buffer = _native.Buffer(100, "test forgotten")
    view = memoryview(buffer)
    del buffer
    gc.collect()
    assert _native.memory_ledger()["test forgotten"] == 100
    view.release()
    del view
    gc.collect()
    assert "test forgotten" not in _native.memory_ledger()


@pytest.mark.parametrize("nbytes", [1 << 60, (1 << 63) - 1])
def test_refused_memory_is_a_memory_error(nbytes: int) -> None:
    with pytest.raises(MemoryError, match="test huge"):
        _native.Buffer(nbytes, "test huge")


def test_negative_size_is_refused() -> None:
    with pytest.raises(ValueError, match="-1"):
        _native.Buffer(-1, "test")


def test_team_refuses_impossible_counts() -> None:
    for num_threads in (0, -3, 100_000):
        with pytest.raises(ValueError, match=str(num_threads)):
            _native.Team(num_threads)


def test_closed_team_refuses_work() -> None:
    team = _native.Team(2)
    team.close()
    with pytest.raises(RuntimeError, match="closed"):
        _native.read_bandwidth(team, 1 << 20)


def test_bandwidth_is_positive_and_its_memory_is_given_back() -> None:
    with pytest.raises(ValueError, match="1 MiB"):
        _native.read_bandwidth(_native.Team(1), 1000)
    assert _native.read_bandwidth(_native.Team(2), 4 << 20) > 0
    assert "bandwidth" not in _native.memory_ledger()


def test_idle_team_uses_no_cpu() -> None:
    team = _native.Team(4)
    _native.read_bandwidth(team, 1 << 20)
    start = time.process_time()
    threading.Event().wait(0.5)
    # Parked within 4 x 4,000 pauses; a team that spins on would use 1.5 s or more on two cores: the bound is far
    # from both.
    assert time.process_time() - start < 0.1
