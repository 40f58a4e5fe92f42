"""The names of weight formats and what a program must know of each: integer codes or floats, and their group of K."""

from __future__ import annotations

import msgspec


class Format(msgspec.Struct, frozen=True):
    """is_integer: the product takes quantised activations. group: K must be a multiple of it."""

    name: str
    is_integer: bool
    group: int


FORMATS = {
    item.name: item
    for item in (
        Format("f32", False, 1),
        Format("f16", False, 1),
        Format("bf16", False, 1),
        Format("q4_0", True, 32),
        Format("q4_1", True, 32),
        Format("q5_0", True, 32),
        Format("q5_1", True, 32),
        Format("q8_0", True, 32),
        Format("q2_k", True, 256),
        Format("q3_k", True, 256),
        Format("q4_k", True, 256),
        Format("q5_k", True, 256),
        Format("q6_k", True, 256),
    )
}
