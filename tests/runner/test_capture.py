"""Captures and teacher-forced logits: the same values whatever the steps they come from."""

from __future__ import annotations

import numpy as np
import pytest

from pelton import _native
from pelton.errors import ContextLengthError, UsageError
from pelton.runner.capture import capture, forward_logits
from tests.graph.tiny_model import HIDDEN, VOCABULARY
from tests.runner.tiny_program import MAX_CONTEXT, tiny_program

IDS = [index * 7 % VOCABULARY for index in range(70)]
LAST = "layers.1.add_2"


def test_logits_come_for_every_position_in_order() -> None:
    with tiny_program() as program:
        rows = [(position, row.tolist()) for position, row in forward_logits(program, IDS)]
        first = [row.tolist() for _, row in forward_logits(program, IDS[:40])]
    assert [position for position, _ in rows] == list(range(70))
    assert all(len(row) == VOCABULARY and np.all(np.isfinite(row)) for _, row in rows)
    # What stands behind a position can't change it, nor can the steps, which end elsewhere.
    assert [row for _, row in rows[:40]] == first


def test_captured_values_have_a_row_per_token() -> None:
    with tiny_program(capture=frozenset({LAST, "head"})) as program:
        found = capture(program, IDS, [LAST, "head"])
        logits = [row.tolist() for _, row in forward_logits(program, IDS)]
    assert np.array(found[LAST]).shape == (70, HIDDEN)
    assert found["head"] == logits


def test_what_was_not_kept_cannot_be_captured() -> None:
    with tiny_program() as program:
        with pytest.raises(UsageError, match=f"`{LAST}` is not a value of this program"):
            capture(program, IDS, [LAST])
        with pytest.raises(UsageError, match="token `50` is outside the vocabulary of `50`"):
            capture(program, [50], [])
        with pytest.raises(ContextLengthError, match=f"`129` tokens; .* a context of `{MAX_CONTEXT}`"):
            list(forward_logits(program, [0] * (MAX_CONTEXT + 1)))


def test_a_program_closes_while_a_row_is_looked_at() -> None:
    """As when a loop over logits breaks off: what broke it is the error to tell."""
    before = _native.memory_ledger()
    with tiny_program() as program:
        rows = forward_logits(program, IDS)
        _, row = next(rows)
        expected = row.tolist()
        program.close()
        assert row.tolist() == expected
        program.close()
    del row, rows, program
    assert _native.memory_ledger() == before
