"""The weight formats of GGUF: legacy, K, ternary, and small floats, each as a reference in a few array expressions.

Sizes agree with the native table (csrc/gguf.cc). Layouts: ggml's block structs. All scales named d, m, dmin are
float16 unless said otherwise; arithmetic is float32, in the order of ggml's dequantisers, so results agree bitwise.
"""

from __future__ import annotations

from typing import Any

from pelton.quant.scheme import Scheme

K_BLOCK = 256  # values in a block of the K formats

# Codes of IQ4_NL and IQ4_XS: a fixed table of 16 levels, denser near zero.
IQ4_LEVELS = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
# Codes of MXFP4 and NVFP4: E2M1, doubled so that they are whole; the scales are halved instead.
E2M1_DOUBLED = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)


def _half(np: Any, field: Any) -> Any:
    """[blocks, 2 * i] bytes as [blocks, i] float16 values in float32."""
    return np.ascontiguousarray(field).view(np.float16).astype(np.float32)


def _split(np: Any, blocks: Any, *sizes: int) -> list[Any]:
    """The fields of a block, by their sizes in bytes; the last takes the rest."""
    return list(np.split(blocks, np.cumsum(sizes), axis=1))


def _fields(np: Any, packed: Any, bits: int, group: int) -> Any:
    """Codes of `bits` bits: within each `group` bytes first the lowest bits of all, then the next, ... as uint8.

    This is the order of all nibbles and bit pairs in GGUF: "halves", not neighbours.
    """
    shifts = np.arange(0, 8, bits, dtype=np.uint8).reshape(1, 1, -1, 1)
    spread = packed.reshape(len(packed), -1, 1, group) >> shifts
    return (spread & np.uint8((1 << bits) - 1)).reshape(len(packed), -1)


def _bits(np: Any, packed: Any) -> Any:
    """One bit per value, lowest first, as uint8."""
    return np.unpackbits(packed, axis=1, bitorder="little")


def _scaled(np: Any, scales: Any, codes: Any) -> Any:
    """scales [blocks, groups] on codes [blocks, values]: each scale serves values / groups neighbours. float32."""
    spread = np.repeat(scales, codes.shape[1] // scales.shape[1], axis=1)
    return spread * codes.astype(np.float32)


def _spread(np: Any, scales: Any, num_values: int) -> Any:
    return np.repeat(scales, num_values // scales.shape[1], axis=1)


# ---- Floats and integers ----


def _plain(dtype: str) -> Any:
    def unpack(np: Any, blocks: Any) -> Any:
        return blocks.view(dtype).astype(np.float32)

    return unpack


def _bf16(np: Any, blocks: Any) -> Any:
    return (blocks.view("<u2").astype(np.uint32) << np.uint32(16)).view(np.float32)


# ---- Legacy: 32 values, one scale ----


def _q4_0(np: Any, blocks: Any) -> Any:
    d, codes = _split(np, blocks, 2)
    return _scaled(np, _half(np, d), _fields(np, codes, 4, 16).astype(np.int8) - 8)


def _q4_1(np: Any, blocks: Any) -> Any:
    d, m, codes = _split(np, blocks, 2, 2)
    return _scaled(np, _half(np, d), _fields(np, codes, 4, 16)) + _half(np, m)


def _q5_codes(np: Any, high: Any, low: Any) -> Any:
    return _fields(np, low, 4, 16) | (_bits(np, high) << np.uint8(4))


def _q5_0(np: Any, blocks: Any) -> Any:
    d, high, low = _split(np, blocks, 2, 4)
    return _scaled(np, _half(np, d), _q5_codes(np, high, low).astype(np.int8) - 16)


def _q5_1(np: Any, blocks: Any) -> Any:
    d, m, high, low = _split(np, blocks, 2, 2, 4)
    return _scaled(np, _half(np, d), _q5_codes(np, high, low)) + _half(np, m)


def _q8_0(np: Any, blocks: Any) -> Any:
    d, codes = _split(np, blocks, 2)
    return _scaled(np, _half(np, d), codes.view(np.int8))


# ---- K: 256 values, scales of scales ----


def _q2_k(np: Any, blocks: Any) -> Any:
    """scales[16] (low nibble: scale, high: minimum), codes[64], d, dmin; groups of 16."""
    scales, codes, d, dmin = _split(np, blocks, 16, 64, 2)
    scale = _half(np, d) * (scales & 15).astype(np.float32)
    minimum = _half(np, dmin) * (scales >> 4).astype(np.float32)
    return _scaled(np, scale, _fields(np, codes, 2, 32)) - _spread(np, minimum, K_BLOCK)


def _q3_k(np: Any, blocks: Any) -> Any:
    """hmask[32], codes[64], scales[12], d; groups of 16. A clear bit of hmask takes 4 off the code."""
    mask, low, scales, d = _split(np, blocks, 32, 64, 12)
    codes = _fields(np, low, 2, 32).astype(np.int8) - ((_fields(np, mask, 1, 32) ^ 1) << 2).astype(np.int8)
    # 6-bit scales: four low bits as two groups of 8 nibbles, two high bits as four groups of 4 pairs.
    packed = _fields(np, scales[:, :8], 4, 8) | (_fields(np, scales[:, 8:], 2, 4) << np.uint8(4))
    scale = _half(np, d) * (packed.astype(np.int8) - 32).astype(np.float32)
    return _scaled(np, scale, codes)


def _k_scales(np: Any, packed: Any) -> tuple[Any, Any]:
    """The 12 bytes of Q4_K and Q5_K: 8 scales and 8 minimums of 6 bits.

    The first four of each are the low six bits of bytes 0-3 and 4-7; the last four are the nibbles of bytes 8-11, with
    the high two bits of bytes 0-3 and 4-7 above them.
    """
    first, second, nibbles = packed[:, 0:4], packed[:, 4:8], packed[:, 8:12]
    scales = np.concatenate([first & 63, (nibbles & 15) | ((first >> 6) << 4)], axis=1)
    minimums = np.concatenate([second & 63, (nibbles >> 4) | ((second >> 6) << 4)], axis=1)
    return scales.astype(np.float32), minimums.astype(np.float32)


def _q4_k(np: Any, blocks: Any) -> Any:
    """d, dmin, scales[12], codes[128]; groups of 32."""
    d, dmin, packed, codes = _split(np, blocks, 2, 2, 12)
    scales, minimums = _k_scales(np, packed)
    values = _scaled(np, _half(np, d) * scales, _fields(np, codes, 4, 32))
    return values - _spread(np, _half(np, dmin) * minimums, K_BLOCK)


def _q5_k(np: Any, blocks: Any) -> Any:
    """d, dmin, scales[12], high[32], low[128]; groups of 32. Bit g of high[i] belongs to value i of group g."""
    d, dmin, packed, high, low = _split(np, blocks, 2, 2, 12, 32)
    scales, minimums = _k_scales(np, packed)
    codes = _fields(np, low, 4, 32) | (_fields(np, high, 1, 32) << np.uint8(4))
    values = _scaled(np, _half(np, d) * scales, codes)
    return values - _spread(np, _half(np, dmin) * minimums, K_BLOCK)


def _q6_k(np: Any, blocks: Any) -> Any:
    """low[128], high[64], scales int8[16], d; groups of 16."""
    low, high, scales, d = _split(np, blocks, 128, 64, 16)
    codes = _fields(np, low, 4, 64) | (_fields(np, high, 2, 32) << np.uint8(4))
    scale = _half(np, d) * scales.view(np.int8).astype(np.float32)
    return _scaled(np, scale, codes.astype(np.int8) - 32)


# ---- Tables and small floats ----


def _iq4_nl(np: Any, blocks: Any) -> Any:
    d, codes = _split(np, blocks, 2)
    return _scaled(np, _half(np, d), np.array(IQ4_LEVELS, np.int8)[_fields(np, codes, 4, 16)])


def _iq4_xs(np: Any, blocks: Any) -> Any:
    """d, high scale bits u16, low scale nibbles[4], codes[128]; groups of 32."""
    d, high, low, codes = _split(np, blocks, 2, 2, 4)
    low = np.stack([low & 15, low >> 4], axis=2).reshape(len(blocks), 8)
    high = (np.ascontiguousarray(high).view("<u2") >> np.arange(0, 16, 2, dtype=np.uint16)) & 3
    scales = _half(np, d) * ((low | (high << 4)).astype(np.int8) - 32).astype(np.float32)
    return _scaled(np, scales, np.array(IQ4_LEVELS, np.int8)[_fields(np, codes, 4, 16)])


def _mxfp4(np: Any, blocks: Any) -> Any:
    """One byte E8M0, codes[16]: code * 2^(e - 127); halved for the doubled table. 2^-128 and 2^-129 are subnormal."""
    exponent, codes = _split(np, blocks, 1)
    scale = np.ldexp(np.float32(1), exponent.astype(np.int32) - 128)
    return _scaled(np, scale.astype(np.float32), np.array(E2M1_DOUBLED, np.int8)[_fields(np, codes, 4, 16)])


def _nvfp4(np: Any, blocks: Any) -> Any:
    """Four UE4M3 scales, codes[32]; groups of 16: 8 low nibbles, then 8 high ones. 0x7F means 0."""
    scales, codes = _split(np, blocks, 4)
    exponent, mantissa = (scales >> 3).astype(np.int32) & 15, (scales & 7).astype(np.float32)
    normal = np.ldexp(1 + mantissa / 8, exponent - 7)
    scale = np.where(exponent == 0, np.ldexp(mantissa, -9), normal) / 2
    scale = np.where(scales == 0x7F, 0, scale).astype(np.float32)
    return _scaled(np, scale, np.array(E2M1_DOUBLED, np.int8)[_fields(np, codes, 4, 8)])


# ---- One bit to two ----


def _q1_0(np: Any, blocks: Any) -> Any:
    d, codes = _split(np, blocks, 2)
    return _scaled(np, _half(np, d), _bits(np, codes).astype(np.int8) * 2 - 1)


def _q2_0(np: Any, blocks: Any) -> Any:
    """Unlike the others, neighbours share a byte."""
    d, codes = _split(np, blocks, 2)
    return _scaled(np, _half(np, d), _fields(np, codes, 2, 1).astype(np.int8) - 1)


def _tq2_0(np: Any, blocks: Any) -> Any:
    codes, d = _split(np, blocks, 64)
    return _scaled(np, _half(np, d), _fields(np, codes, 2, 32).astype(np.int8) - 1)


def _tq1_0(np: Any, blocks: Any) -> Any:
    """codes[48], more[4], d: five digits to base 3 in a byte, as a fixed-point fraction; four in each of `more`."""
    fives, fours, d = _split(np, blocks, 48, 4)
    digits = [
        _digits(np, fives[:, :32], 5),
        _digits(np, fives[:, 32:], 5),
        _digits(np, fours, 4),
    ]
    return _scaled(np, _half(np, d), np.concatenate(digits, axis=1).astype(np.int8) - 1)


def _digits(np: Any, packed: Any, count: int) -> Any:
    """Digit i of all bytes, then digit i + 1: the whole part of 3 * fraction after i multiplications modulo 256."""
    powers = np.array([3**i for i in range(count)], np.uint8).reshape(1, -1, 1)
    fraction = packed.reshape(len(packed), 1, -1) * powers
    return ((fraction.astype(np.uint16) * 3) >> 8).reshape(len(packed), -1)


def _scheme(name: str, block_values: int, block_bytes: int, unpack: Any = None) -> tuple[str, Scheme]:
    return name, Scheme(name, block_values, block_bytes, unpack)


GGUF_SCHEMES: dict[str, Scheme] = dict(
    (
        _scheme("f32", 1, 4, _plain("<f4")),
        _scheme("f16", 1, 2, _plain("<f2")),
        _scheme("bf16", 1, 2, _bf16),
        _scheme("f64", 1, 8, _plain("<f8")),
        _scheme("i8", 1, 1, _plain("i1")),
        _scheme("i16", 1, 2, _plain("<i2")),
        _scheme("i32", 1, 4, _plain("<i4")),
        _scheme("i64", 1, 8, _plain("<i8")),
        _scheme("q4_0", 32, 18, _q4_0),
        _scheme("q4_1", 32, 20, _q4_1),
        _scheme("q5_0", 32, 22, _q5_0),
        _scheme("q5_1", 32, 24, _q5_1),
        _scheme("q8_0", 32, 34, _q8_0),
        _scheme("q2_k", 256, 84, _q2_k),
        _scheme("q3_k", 256, 110, _q3_k),
        _scheme("q4_k", 256, 144, _q4_k),
        _scheme("q5_k", 256, 176, _q5_k),
        _scheme("q6_k", 256, 210, _q6_k),
        _scheme("iq4_nl", 32, 18, _iq4_nl),
        _scheme("iq4_xs", 256, 136, _iq4_xs),
        _scheme("mxfp4", 32, 17, _mxfp4),
        _scheme("nvfp4", 64, 36, _nvfp4),
        _scheme("q1_0", 128, 18, _q1_0),
        _scheme("q2_0", 64, 18, _q2_0),
        _scheme("tq1_0", 256, 54, _tq1_0),
        _scheme("tq2_0", 256, 66, _tq2_0),
        # Activations, which no file should hold.
        _scheme("q8_1", 32, 36),
        _scheme("q8_k", 256, 292),
        # These index code books of 256 to 2048 entries.
        _scheme("iq1_s", 256, 50),
        _scheme("iq1_m", 256, 56),
        _scheme("iq2_xxs", 256, 66),
        _scheme("iq2_xs", 256, 74),
        _scheme("iq2_s", 256, 82),
        _scheme("iq3_xxs", 256, 98),
        _scheme("iq3_s", 256, 110),
    )
)
