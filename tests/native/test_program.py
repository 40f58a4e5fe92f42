"""Programs and step inputs: what is refused, and that callers from several threads do not disturb each other."""

from __future__ import annotations

import array
import threading
from typing import Any

import pytest

from pelton import _native


def step_input(**changes: Any) -> _native.StepInput:
    arguments: dict[str, Any] = {
        "token_ids": [5, 6, 7],
        "positions": [16, 17, 0],
        "sequences": [(0, 2, 16, [[0, 1]]), (2, 1, 0, [[2]])],
        "logit_rows": [1, 2],
        "kv_pool": _native.Buffer(3 * 64, "test kv"),
    }
    return _native.StepInput(**(arguments | changes))


def test_step_whose_parts_fit_is_accepted() -> None:
    step_input()
    step_input(sequences=[(0, 2, 16, []), (2, 1, 0, [])], kv_pool=None)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"positions": [16, 17]}, "as many positions"),
        ({"sequences": [(0, 2, 16, [[0, 1]])]}, "cover all rows"),
        ({"sequences": [(1, 2, 16, [[0, 1]]), (0, 1, 0, [[2]])]}, "in order"),
        ({"sequences": [(0, 3, -1, [[0]])]}, "negative"),
        ({"sequences": [(0, 2, 16, [[0]]), (2, 1, 0, [[2]])]}, "shorter"),
        ({"sequences": [(0, 2, 16, [[0, 3]]), (2, 1, 0, [[2]])]}, "outside"),
        ({"kv_pool": None}, "outside"),
        ({"logit_rows": [3]}, "logit row"),
        ({"logit_rows": [-1]}, "logit row"),
        ({"logit_rows": [0] * 33}, "head tile"),
    ],
)
def test_step_whose_parts_do_not_fit_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        step_input(**changes)


def test_given_back_blocks_may_be_named() -> None:
    step_input(sequences=[(0, 2, 16, [[0xFFFFFFFF, 1]]), (2, 1, 0, [[2]])])


def test_nodes_that_can_not_be_are_refused() -> None:
    program = _native.Program(_native.Team(1), "generic")
    with pytest.raises(ValueError, match="no kernel `x`"):
        program.add("x", 0, [], [], [])
    with pytest.raises(ValueError, match="dim is `2`"):
        program.add("add", 2, [], [], [])
    with pytest.raises(ValueError, match="17 pointers"):
        program.add("add", 0, [0] * 17, [], [])
    program.add("add", 1, [], [], [])
    with pytest.raises(ValueError, match="after a head node"):
        program.add("add", 0, [], [], [])
    with pytest.raises(IndexError):
        program.run(step_input(), 0, 2)


def test_concurrent_runs_take_turns() -> None:
    """Each run doubles and shifts 8 rows in 40 dependent nodes; a run that another one entered would mix them."""
    columns, rows, depth = 16, 8, 40
    team = _native.Team(2)
    data = _native.Buffer(rows * columns * 4, "test rows")
    one = _native.Buffer(rows * columns * 4, "test rows")
    memoryview(one).cast("f")[:] = array.array("f", [1.0] * (rows * columns))
    program = _native.Program(team, "generic")
    for _ in range(depth):
        program.add("add", 0, [data.address, one.address, data.address], [columns, columns, columns, columns], [])
    step = _native.StepInput(list(range(rows)), list(range(rows)), [(0, rows, 0, [])], [], None)

    def call() -> None:
        for _ in range(50):
            program.run(step)

    threads = [threading.Thread(target=call) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(memoryview(data).cast("f").tolist()) == {3.0 * 50 * depth}


def test_profile_names_every_node() -> None:
    buffer = _native.Buffer(64, "test rows")
    program = _native.Program(_native.Team(1), "generic")
    for _ in range(3):
        program.add("add", 0, [buffer.address] * 3, [16] * 4, [])
    step = _native.StepInput([1], [0], [(0, 1, 0, [])], [], None)
    profile = program.profile(step)
    assert [name for name, _ in profile] == ["add"] * 3
    assert all(seconds >= 0 for _, seconds in profile)
