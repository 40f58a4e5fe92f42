"""Each format's reference equals the dequantiser of the `gguf` package, bit for bit, on any bytes at all."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

from pelton.errors import UnsupportedModelError
from pelton.quant.detect import scheme_of
from pelton.quant.gguf_types import GGUF_SCHEMES
from pelton.quant.scheme import Scheme

NUMBERS = {"f64": "<f8", "i8": "i1", "i16": "<i2", "i32": "<i4", "i64": "<i8"}
NOT_JUDGED = {"q1_0", "q2_0", *NUMBERS}  # the package has no dequantiser; judged below
READ = [scheme for scheme in GGUF_SCHEMES.values() if scheme.unpack_blocks is not None]


def random_bytes(scheme: Scheme, num_blocks: int) -> bytes:
    return np.random.default_rng(7).integers(0, 256, num_blocks * scheme.block_bytes, np.uint8).tobytes()


def assert_same_bits(actual: np.ndarray, expected: np.ndarray) -> None:
    """Of NaNs only that they are NaN: their bits depend on the order of a product's factors."""
    assert actual.dtype == np.float32
    same = actual.view(np.uint32) == expected.astype(np.float32).view(np.uint32)
    assert np.all(same | (np.isnan(actual) & np.isnan(expected)))


@pytest.mark.parametrize("scheme", [item for item in READ if item.name not in NOT_JUDGED], ids=lambda item: item.name)
def test_reference_equals_the_formats_own_dequantiser(scheme: Scheme) -> None:
    rows, blocks = 3, 40
    raw = random_bytes(scheme, rows * blocks)
    with np.errstate(all="ignore"):  # random scales include infinities and NaNs
        expected = gguf.quants.dequantize(
            np.frombuffer(raw, np.uint8).reshape(rows, -1), GGMLQuantizationType[scheme.name.upper()]
        )
        actual = scheme.unpack(np, raw, rows, blocks * scheme.block_values)
    assert_same_bits(actual, expected)


@pytest.mark.parametrize("name", NUMBERS)
def test_plain_numbers_are_converted(name: str) -> None:
    values = np.array([[1, -2, 3], [0, 100, -128]], NUMBERS[name])
    assert_same_bits(GGUF_SCHEMES[name].unpack(np, values.tobytes(), 2, 3), values.astype(np.float32))


def test_one_bit_is_a_sign() -> None:
    """q1_0: float16 scale, then a bit per value, lowest first."""
    scale = np.float16(0.75)
    raw = scale.tobytes() + b"\x05" + bytes(15)
    expected = np.full((1, 128), -0.75, np.float32)
    expected[0, [0, 2]] = 0.75
    assert_same_bits(GGUF_SCHEMES["q1_0"].unpack(np, raw, 1, 128), expected)


def test_two_bits_are_minus_one_to_two() -> None:
    """q2_0: float16 scale, then four neighbours in a byte, lowest bits first."""
    raw = np.float16(0.5).tobytes() + bytes([0b11100100]) + bytes(15)
    expected = np.full((1, 64), -0.5, np.float32)
    expected[0, :4] = [-0.5, 0.0, 0.5, 1.0]
    assert_same_bits(GGUF_SCHEMES["q2_0"].unpack(np, raw, 1, 64), expected)


@pytest.mark.parametrize("name", GGUF_SCHEMES)
def test_sizes_are_those_of_the_format(name: str) -> None:
    scheme = GGUF_SCHEMES[name]
    kind = getattr(GGMLQuantizationType, name.upper(), None)
    if kind is None:
        assert name == "q2_0"  # newer than the package
    elif name != "q8_1":  # the package counts two of its four-byte fields, ggml's struct has two-byte ones
        assert GGML_QUANT_SIZES[kind] == (scheme.block_values, scheme.block_bytes)
    assert scheme.name == name


def test_every_type_of_the_package_is_known() -> None:
    assert {kind.name.lower() for kind in GGMLQuantizationType} <= GGUF_SCHEMES.keys()


@pytest.mark.parametrize("name", ["iq2_xxs", "q8_k", "f8_e4m3", "nonsense"])
def test_format_that_is_not_read_is_named_with_its_tensor(name: str) -> None:
    with pytest.raises(UnsupportedModelError, match=rf"tensor `blk\.0\.w` is stored as `{name}`"):
        scheme_of(name, "blk.0.w")


def test_wrong_amount_of_bytes_is_noticed() -> None:
    with pytest.raises(AssertionError, match="are not"):
        GGUF_SCHEMES["q4_0"].unpack(np, bytes(19), 1, 32)
    with pytest.raises(AssertionError, match="not blocks of 32"):
        GGUF_SCHEMES["q4_0"].nbytes(1, 33)


def test_bits_per_value() -> None:
    assert GGUF_SCHEMES["q4_k"].bits_per_value == 4.5
