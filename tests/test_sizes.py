"""Sizes as people read them."""

from __future__ import annotations

import pytest

from pelton.sizes import format_bytes

MIB = 1 << 20


@pytest.mark.parametrize(
    ("nbytes", "text"), [(640, "640 B"), (24576, "24.0 KiB"), (5 * MIB, "5.0 MiB"), (5305000000, "4.94 GiB")]
)
def test_bytes_are_written_for_comparison(nbytes: int, text: str) -> None:
    assert format_bytes(nbytes) == text
