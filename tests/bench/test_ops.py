"""Every kernel of a model is timed at every number of rows, and told as a share of a ceiling of this machine."""

from __future__ import annotations

import pytest

from bench import machine, ops


def test_each_operation_has_a_row_per_number_of_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "BANDWIDTH_BYTES", 4 << 20)
    monkeypatch.setattr(machine, "PEAK_TURNS", 1)
    monkeypatch.setattr(ops, "COLD_BYTES", 64 << 10)
    shape = ops.Shape("tiny", 64, 96, 2, 1, 32, 160, "silu", ("q4_0", "q4_k", "bf16"))
    bench = ops.Bench(threads=1, counts=[1, 16], repeats=1)
    try:
        rows = list(bench.rows(shape))
    finally:
        bench.close()
    assert all(row.seconds > 0 and row.share > 0 for row in rows)
    timed = {(row.operation, row.format, row.rows) for row in rows}
    for format in ("q4_0", "bf16"):
        for operation in ("query", "key", "attention out", "down", "gate and up"):
            assert {(operation, format, 1), (operation, format, 16)} <= timed
        assert ("head", format, 1) in timed
    assert not any(row.format == "q4_k" for row in rows)  # its groups do not divide this shape
    assert {row.rows for row in rows if row.operation in ("attention at 512", "norm, quantise")} == {1, 16}
    assert "| tiny | head | bf16 | 1 |" in ops.table(
        rows, {"cpu": "x", "threads": 1, "level": "x", "commit": "0" * 40, "repeats": 1, "command": "x"}, bench.limits
    )
