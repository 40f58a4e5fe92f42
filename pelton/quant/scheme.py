"""What a weight format is: blocks of a fixed number of values in a fixed number of bytes, and what these mean.

Knows no files and no devices. numpy is handed in by the caller: the product needs none.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

# (np, blocks) -> values. blocks: [blocks, block_bytes] uint8. values: [blocks, block_values] float32.
UnpackBlocks = Callable[[Any, Any], Any]


class Scheme(msgspec.Struct, frozen=True):
    """A weight format, by the name that TensorInfo.format carries.

    unpack_blocks: the meaning, bitwise as the format's own dequantiser computes it in float32; None for formats that
    are recognised (their bytes can be checked, and `explain` can name them) but not read.
    """

    name: str
    block_values: int
    block_bytes: int
    unpack_blocks: UnpackBlocks | None

    @property
    def bits_per_value(self) -> float:
        return 8 * self.block_bytes / self.block_values

    def nbytes(self, n: int, k: int) -> int:
        """Bytes of a matrix [n, k]. k is a multiple of block_values."""
        assert k % self.block_values == 0, f"rows of {k} values are not blocks of {self.block_values}"
        return n * (k // self.block_values) * self.block_bytes

    def unpack(self, np: Any, raw: Any, n: int, k: int) -> Any:
        """The reference: [n, k] float32 from the bytes of a file (any buffer of nbytes(n, k) bytes)."""
        assert self.unpack_blocks is not None, f"`{self.name}` has no reference"
        blocks = np.frombuffer(raw, np.uint8)
        assert blocks.size == self.nbytes(n, k), f"{blocks.size} bytes are not [{n}, {k}] of `{self.name}`"
        return self.unpack_blocks(np, blocks.reshape(-1, self.block_bytes)).reshape(n, k)
