"""How sizes in bytes are written for people, everywhere alike; it knows nothing of what they measure."""

from __future__ import annotations


def format_bytes(nbytes: int) -> str:
    """`640 B`, `23.4 MiB`, `4.94 GiB`: to the precision that a reader needs to compare."""
    if nbytes < 1 << 10:
        return f"{nbytes} B"
    if nbytes < 1 << 20:
        return f"{nbytes / (1 << 10):.1f} KiB"
    if nbytes < 1 << 30:
        return f"{nbytes / (1 << 20):.1f} MiB"
    return f"{nbytes / (1 << 30):.2f} GiB"
