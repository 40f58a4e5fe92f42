"""What the tests of linear products share: random weights of every format, packing, kernel runs, quantised rows."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize

from pelton import _native

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]

FORMATS = ["f32", "f16", "bf16", "q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "q2_k", "q3_k", "q4_k", "q5_k", "q6_k"]
FLOAT_FORMATS = FORMATS[:3]
INTEGER_FORMATS = FORMATS[3:]
K_QUANTS = FORMATS[8:]
LEVELS = [name for name, usable, _ in _native.levels() if usable]

NO_MODE, OUTLIER, EXACT = 0, 1, 2
UNIT_ROUNDOFF = 2.0**-24

# Byte offsets of the half-precision numbers in a block: the scale, then the minimum (or its scale) where there is one.
_HALVES = {
    "q4_0": [0],
    "q4_1": [0, 2],
    "q5_0": [0],
    "q5_1": [0, 2],
    "q8_0": [0],
    "q2_k": [80, 82],
    "q3_k": [108],
    "q4_k": [0, 2],
    "q5_k": [0, 2],
    "q6_k": [208],
}


def modes(format: str) -> list[int]:
    return [NO_MODE] if format in FLOAT_FORMATS else [OUTLIER, EXACT]


def format_number(format: str) -> int:
    """As in csrc/formats.h."""
    return FORMATS.index(format)


@dataclass(frozen=True)
class Weights:
    """A random matrix [n, k] of a format: the file's bytes, what they mean, and the packed panels."""

    format: str
    n: int
    k: int
    raw: Bytes
    packed: _native.Buffer

    @property
    def values(self) -> Floats:
        return _dequantised(self.format, self.raw, self.n, self.k)

    def magnitudes(self) -> Doubles:
        """|scale * code| + |minimum| of each weight: what rounding errors of a product are relative to."""
        values = self.values.astype(np.float64)
        if len(_HALVES.get(self.format, [])) < 2:
            return np.abs(values)
        without_minimum = self.raw.copy().reshape(self.n, -1, _block_bytes(self.format))
        offset = _HALVES[self.format][1]
        without_minimum[:, :, offset : offset + 2] = 0
        scaled = _dequantised(self.format, without_minimum.reshape(self.n, -1), self.n, self.k).astype(np.float64)
        return np.abs(scaled) + np.abs(values - scaled)


def random_weights(format: str, n: int, k: int, seed: int = 0) -> Weights:
    generator = np.random.default_rng([seed, n, k, format_number(format)])
    normal = generator.standard_normal((n, k)).astype(np.float32)
    if format == "f32":
        raw = normal.view(np.uint8)
    elif format == "f16":
        raw = normal.astype(np.float16).view(np.uint8)
    elif format == "bf16":
        raw = (normal.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8)
    else:
        values, nbytes = GGML_QUANT_SIZES[_type(format)]
        blocks = generator.integers(0, 256, (n, k // values, nbytes), dtype=np.uint8)
        for offset in _HALVES[format]:
            halves = (generator.standard_normal((n, k // values, 1)) * 0.02).astype(np.float16)
            blocks[:, :, offset : offset + 2] = halves.view(np.uint8)
        raw = blocks.reshape(n, -1)
    return Weights(format, n, k, raw, packed(format, raw, n, k))


def packed(format: str, raw: Bytes, n: int, k: int) -> _native.Buffer:
    buffer = _native.Buffer(_native.packed_bytes(format, n, k), "test weights")
    team = _native.Team(1)
    with tempfile.TemporaryFile() as file:
        file.write(raw.tobytes())
        file.flush()
        reads = _native.WeightReads()
        reads.add_matrix(format, file.fileno(), 0, n, k, buffer, 0)
        reads.run(team)
    team.close()
    return buffer


def unpacked(weights: Weights) -> Floats:
    out = _native.unpack(weights.format, weights.packed, 0, weights.n, weights.k)
    return np.frombuffer(out, np.float32).reshape(weights.n, weights.k)


def random_rows(rows: int, k: int, seed: int = 0) -> Floats:
    """Rows with outliers, as real activations have them."""
    generator = np.random.default_rng([seed, rows, k])
    x = generator.standard_normal((rows, k)).astype(np.float32)
    x[:, ::29] *= 20
    return x


def run(
    level: str,
    kernel: str,
    rows: int,
    pointers: list[Any],
    sizes: list[int],
    values: list[float] | None = None,
    num_threads: int = 2,
    token_ids: list[int] | None = None,
) -> None:
    """One node over `rows` rows. pointers: arrays, buffers or None."""
    addresses = [0 if p is None else p.address if isinstance(p, _native.Buffer) else p.ctypes.data for p in pointers]
    team = _native.Team(num_threads)
    program = _native.Program(team, level)
    program.add(kernel, 0, addresses, sizes, values or [])
    step = _native.StepInput(token_ids or [0] * rows, list(range(rows)), [(0, rows, 0, [])], [], None)
    program.run(step)
    team.close()


def quantised(level: str, x: Floats, mode: int) -> Bytes:
    rows, k = x.shape
    blocks = np.empty((rows, k // 32, 128 if mode == EXACT else 64), np.uint8)
    run(level, "quantise", rows, [x, blocks], [k, k, mode])
    return blocks


def linear_input(level: str, x: Floats, mode: int) -> Floats | Bytes:
    return x if mode == NO_MODE else quantised(level, x, mode)


def linear(
    level: str, weights: Weights, x: Floats | Bytes, mode: int, rows: int | None = None, num_threads: int = 2
) -> Floats:
    rows = len(x) if rows is None else rows
    out = np.empty((rows, weights.n), np.float32)
    sizes = [weights.k, 1, mode, weights.k, format_number(weights.format), weights.n, weights.n, 0]
    run(level, "linear", rows, [x, weights.packed, out, None], sizes, num_threads=num_threads)
    return out


@dataclass(frozen=True)
class QuantisedRows:
    """What activation blocks hold: q [rows, groups, 32], and per group its scale and sums (see activation_blocks.h)."""

    q: npt.NDArray[np.int64]
    scale: Floats
    scaled_sum: Floats
    sum: npt.NDArray[np.int32]
    half_sum: npt.NDArray[np.int32]

    @property
    def values(self) -> Doubles:
        return (self.q * self.scale[..., None].astype(np.float64)).reshape(len(self.q), -1)


def read_blocks(blocks: Bytes, mode: int) -> QuantisedRows:
    low = blocks[..., :32].view(np.int8).astype(np.int64)
    high = np.zeros_like(low)
    if mode == EXACT:
        high = blocks[..., 32:64].view(np.int8).astype(np.int64)
        facts = blocks[..., 64:84]
    else:
        quad = np.ascontiguousarray(blocks[..., 36:40]).view(np.int32)
        lanes = 4 * quad.astype(np.int64) + np.arange(4)
        np.put_along_axis(high, lanes, blocks[..., 32:36].view(np.int8).astype(np.int64), -1)
        facts = blocks[..., 44:64]
    floats = np.ascontiguousarray(facts[..., :8]).view(np.float32)
    sums = np.ascontiguousarray(facts[..., 8:20]).view(np.int32)
    return QuantisedRows(low + 128 * high, floats[..., 0], floats[..., 1], sums[..., 0], sums[..., 1:])


def _type(format: str) -> GGMLQuantizationType:
    return GGMLQuantizationType[format.upper()]


def _block_bytes(format: str) -> int:
    return int(GGML_QUANT_SIZES[_type(format)][1])


def _dequantised(format: str, raw: Bytes, n: int, k: int) -> Floats:
    return np.asarray(dequantize(raw, _type(format)), np.float32).reshape(n, k)
