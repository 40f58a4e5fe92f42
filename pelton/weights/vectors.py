"""Small stored vectors (norms, biases, frequencies) as Python floats. Matrices are packed natively; see load."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence


def _f32(raw: bytes) -> Sequence[float]:
    return struct.unpack(f"<{len(raw) // 4}f", raw)


def _f16(raw: bytes) -> Sequence[float]:
    return struct.unpack(f"<{len(raw) // 2}e", raw)


def _bf16(raw: bytes) -> Sequence[float]:
    """bfloat16 is the upper half of a float32."""
    widened = bytearray(2 * len(raw))
    widened[2::4] = raw[0::2]
    widened[3::4] = raw[1::2]
    return _f32(bytes(widened))


# By format; each is exact.
VECTOR_READERS: Mapping[str, Callable[[bytes], Sequence[float]]] = {"f32": _f32, "f16": _f16, "bf16": _bf16}
