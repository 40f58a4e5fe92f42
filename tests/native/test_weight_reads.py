"""Reading weights: every value arrives where it belongs, and the tensor that a file is too short for is named."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from pelton import _native


@pytest.fixture(scope="module")
def team() -> Iterator[_native.Team]:
    team = _native.Team(3)
    yield team
    team.close()


def file_with(path: Path, data: bytes, offset: int = 0) -> int:
    path.write_bytes(b"\xff" * offset + data)
    return os.open(path, os.O_RDONLY)


def packed_then_unpacked(
    team: _native.Team, matrix: npt.NDArray[np.float32], fd: int, offset: int, row_order: list[int] | None = None
) -> npt.NDArray[np.float32]:
    n, k = matrix.shape
    destination = _native.Buffer(_native.packed_bytes("f32", n, k) + 64, "test weights")
    reads = _native.WeightReads()
    reads.add_matrix("f32", fd, offset, n, k, destination, 64, row_order)
    reads.run(team)
    assert not any(memoryview(destination)[:64])
    return np.frombuffer(_native.unpack("f32", destination, 64, n, k), np.float32).reshape(n, k)


def matrix_reads(fd: int, destination: _native.Buffer, n: int = 3, k: int = 100) -> _native.WeightReads:
    reads = _native.WeightReads()
    reads.add_matrix("f32", fd, 0, n, k, destination, 0)
    return reads


# One row; a last panel that is not full; many pieces; rows of which 16 do not fit into a thread's scratch memory.
@pytest.mark.parametrize(("n", "k"), [(1, 1), (37, 5), (1000, 300), (20, 40_000)])
def test_every_row_arrives(team: _native.Team, tmp_path: Path, n: int, k: int) -> None:
    matrix = np.random.default_rng(n).random((n, k), np.float32)
    fd = file_with(tmp_path / "weights", matrix.tobytes(), offset=3)
    assert np.array_equal(packed_then_unpacked(team, matrix, fd, 3), matrix)
    os.close(fd)


# Near each other, as within attention heads; and so far apart that rows are read one by one.
@pytest.mark.parametrize(("n", "k", "distance"), [(96, 64, 32), (640, 4096, 640)])
def test_rows_are_reordered(team: _native.Team, tmp_path: Path, n: int, k: int, distance: int) -> None:
    matrix = np.random.default_rng(n).random((n, k), np.float32)
    generator = random.Random(n)
    row_order = list(range(n))
    for start in range(0, n, distance):
        part = row_order[start : start + distance]
        generator.shuffle(part)
        row_order[start : start + distance] = part
    fd = file_with(tmp_path / "weights", matrix.tobytes())
    assert np.array_equal(packed_then_unpacked(team, matrix, fd, 0, row_order), matrix[row_order])
    os.close(fd)


def test_many_tensors_of_several_files_are_read_at_once(team: _native.Team, tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    shapes = [(1, 3), (700, 200), (5, 7), (33, 4000), (16, 16)]
    matrices = [generator.random(shape, np.float32) for shape in shapes]
    fds = [file_with(tmp_path / str(index), matrix.tobytes(), offset=index) for index, matrix in enumerate(matrices)]
    bias = generator.random(50, np.float32)
    fds.append(file_with(tmp_path / "bias", bias.tobytes()))
    buffers = [_native.Buffer(_native.packed_bytes("f32", n, k), "test weights") for n, k in shapes]
    floats = _native.Buffer(bias.nbytes, "test floats")
    reads = _native.WeightReads()
    for index, ((n, k), buffer) in enumerate(zip(shapes, buffers, strict=True)):
        reads.add_matrix("f32", fds[index], index, n, k, buffer, 0)
        if index == 2:
            reads.add_vector("f32", fds[-1], 0, 50, floats, 0)
    reads.run(team)
    for (n, k), buffer, matrix in zip(shapes, buffers, matrices, strict=True):
        assert np.array_equal(np.frombuffer(_native.unpack("f32", buffer, 0, n, k), np.float32).reshape(n, k), matrix)
    assert bytes(memoryview(floats)) == bias.tobytes()
    for fd in fds:
        os.close(fd)


@pytest.mark.parametrize(("present", "missing"), [(0, 3 * 100 * 4), (799, 401), (1199, 1)])
def test_short_file_names_the_missing_bytes(team: _native.Team, tmp_path: Path, present: int, missing: int) -> None:
    fd = file_with(tmp_path / "weights", bytes(present))
    reads = matrix_reads(fd, _native.Buffer(_native.packed_bytes("f32", 3, 100), "test weights"))
    with pytest.raises(EOFError, match=f"ends {missing} bytes before"):
        reads.run(team)
    assert reads.failed == 0
    os.close(fd)


def test_tensor_that_can_not_be_read_is_named(team: _native.Team, tmp_path: Path) -> None:
    fd = file_with(tmp_path / "weights", bytes(400))
    floats = _native.Buffer(400, "test floats")
    reads = _native.WeightReads()
    for offset in (0, 100, 360, 200):  # 40 floats each: the third is cut off
        reads.add_vector("f32", fd, offset, 40, floats, 0)
    assert reads.failed is None
    with pytest.raises(EOFError, match="ends 120 bytes before"):
        reads.run(team)
    assert reads.failed == 2
    os.close(fd)


def test_read_error_is_an_os_error(team: _native.Team, tmp_path: Path) -> None:
    fd = os.open(tmp_path, os.O_RDONLY)  # a folder
    reads = matrix_reads(fd, _native.Buffer(_native.packed_bytes("f32", 3, 100), "test weights"))
    with pytest.raises(IsADirectoryError):
        reads.run(team)
    os.close(fd)


@pytest.mark.parametrize(
    ("format", "n", "k", "message"),
    [
        ("q9_9", 16, 32, "no weight format `q9_9`"),
        ("f32", 0, 32, "must be positive"),
        ("f32", 16, -1, "must be positive"),
        ("q4_0", 16, 33, "multiples of 32"),
        ("q4_k", 16, 128, "multiples of 256"),
        ("f32", 1 << 40, 1 << 40, "too large"),
        ("f32", (1 << 63) - 1, 1, "too large"),
    ],
)
def test_impossible_shapes_are_refused(format: str, n: int, k: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        _native.packed_bytes(format, n, k)


def test_nothing_is_written_outside_the_destination(tmp_path: Path) -> None:
    fd = file_with(tmp_path / "weights", bytes(4096))
    nbytes = _native.packed_bytes("f32", 16, 16)
    destination = _native.Buffer(nbytes, "test weights")
    reads = _native.WeightReads()
    for offset in (-4, 4, nbytes, (1 << 63) - 4):
        with pytest.raises(IndexError):
            reads.add_matrix("f32", fd, 0, 16, 16, destination, offset)
        with pytest.raises(IndexError):
            reads.add_vector("f32", fd, 0, nbytes // 4, destination, offset)
        with pytest.raises(IndexError):
            _native.unpack("f32", destination, offset, 16, 16)
    with pytest.raises(ValueError, match="destination_offset"):
        reads.add_vector("f32", fd, 0, 1, destination, 2)
    os.close(fd)


def test_buffer_that_was_closed_is_not_written(team: _native.Team, tmp_path: Path) -> None:
    fd = file_with(tmp_path / "weights", bytes(4096))
    destination = _native.Buffer(_native.packed_bytes("f32", 16, 16), "test weights")
    reads = matrix_reads(fd, destination, 16, 16)
    destination.close()
    with pytest.raises(BufferError, match="closed"):
        reads.run(team)
    os.close(fd)


@pytest.mark.parametrize("row_order", [[0], [0, 16, *range(2, 16)], [-1, *range(1, 16)]])
def test_impossible_row_orders_are_refused(tmp_path: Path, row_order: list[int]) -> None:
    fd = file_with(tmp_path / "weights", bytes(4096))
    destination = _native.Buffer(_native.packed_bytes("f32", 16, 16), "test weights")
    reads = _native.WeightReads()
    with pytest.raises(ValueError, match="row_order"):
        reads.add_matrix("f32", fd, 0, 16, 16, destination, 0, row_order)
    with pytest.raises(ValueError, match="row_order"):
        reads.add_vector("f32", fd, 0, 16, destination, 0, row_order)
    os.close(fd)


def test_single_floats_are_widened_exactly(team: _native.Team, tmp_path: Path) -> None:
    bits = np.arange(1 << 16, dtype=np.uint16)  # every half, NaNs included
    wanted = {
        "f16": bits.view(np.float16).astype(np.float32),
        "bf16": (bits.astype(np.uint32) << 16).view(np.float32),
    }
    for format, expected in wanted.items():
        fd = file_with(tmp_path / format, bits.tobytes(), offset=1)
        destination = _native.Buffer(4 * len(bits) + 4, "test floats")
        reads = _native.WeightReads()
        reads.add_vector(format, fd, 1, len(bits), destination, 4)
        reads.run(team)
        found = np.frombuffer(destination, np.float32)[1:]
        numbers = ~np.isnan(expected)
        assert np.array_equal(found[numbers].view(np.uint32), expected[numbers].view(np.uint32))
        assert np.all(np.isnan(found[~numbers]))
        os.close(fd)


def test_only_single_floats_make_vectors() -> None:
    destination = _native.Buffer(128, "test floats")
    reads = _native.WeightReads()
    for format in ("q8_0", "f64"):
        with pytest.raises(ValueError, match=format):
            reads.add_vector(format, 0, 0, 32, destination, 0)
    for count in (0, -1, 1 << 62):
        with pytest.raises(ValueError, match="count"):
            reads.add_vector("f32", 0, 0, count, destination, 0)
