"""GGUF files: the same facts as the format's own reader gives, and a clear error for anything that is not sound."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import gguf
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pelton.errors import CheckpointError, ModelError, ModelNotFoundError, UnsupportedModelError
from pelton.weights.checkpoint import Checkpoint, open_checkpoint
from tests.weights.files import GgufBytes, gguf_string, write_gguf

U32, BOOL, STRING, ARRAY = 4, 7, 8, 9


@pytest.fixture
def small(tmp_path: Path) -> Path:
    return write_gguf(tmp_path / "small.gguf")


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return write_gguf(tmp_path_factory.mktemp("sound") / "sound.gguf").read_bytes()


def look_at_everything(checkpoint: Checkpoint) -> None:
    for key in checkpoint.metadata:
        checkpoint.metadata[key]
    for tensor in checkpoint.tensors.values():
        assert 0 <= tensor.offset <= tensor.offset + tensor.nbytes <= tensor.file.stat().st_size
    checkpoint.fingerprint()


def test_metadata_keeps_types_and_order(small: Path) -> None:
    metadata = open_checkpoint(small).metadata
    assert list(metadata)[:3] == ["general.architecture", "flag", "epsilon"]
    assert metadata["flag"] is True
    assert metadata["epsilon"] == struct.unpack("<f", struct.pack("<f", 1e-5))[0]
    assert metadata["large"] == 1 << 40
    assert metadata["negative"] == -3
    assert metadata["text"] == "żółw 🐢"
    assert metadata["strings"] == ["a", "", "bc"]
    assert list(metadata["integers"]) == [1, -2, 3]
    assert list(metadata["floats"]) == [0.5, 1.5]
    assert list(metadata["flags"]) == [True, False]
    assert "absent" not in metadata
    assert metadata.get("absent", 7) == 7


def test_numbers_stay_packed(small: Path) -> None:
    floats = open_checkpoint(small).metadata["floats"]
    assert isinstance(floats, memoryview)
    assert (floats.format, floats.itemsize, floats.readonly) == ("f", 4, True)


def test_tensors_agree_with_the_formats_own_reader(small: Path) -> None:
    reader = gguf.GGUFReader(small)
    tensors = open_checkpoint(small).tensors
    assert list(tensors) == [tensor.name for tensor in reader.tensors]
    for expected in reader.tensors:
        tensor = tensors[expected.name]
        assert tensor.shape == tuple(int(size) for size in reversed(expected.shape))
        assert tensor.format == expected.tensor_type.name.lower()
        raw = small.read_bytes()[tensor.offset : tensor.offset + tensor.nbytes]
        assert raw == expected.data.tobytes()


def test_vectors_can_be_read(small: Path) -> None:
    expected = gguf.GGUFReader(small).tensors[0].data
    assert list(open_checkpoint(small).read_vector("weight.norm")) == expected.tolist()


def test_vectors_in_blocks_are_refused(small: Path) -> None:
    with pytest.raises(UnsupportedModelError, match=r"`weight.matrix`.*`q4_0`"):
        open_checkpoint(small).read_vector("weight.matrix")


def test_every_truncation_is_an_error(small: Path) -> None:
    whole = small.read_bytes()
    end = max(tensor.offset + tensor.nbytes for tensor in open_checkpoint(small).tensors.values())
    for size in range(end):  # what follows is padding
        os.truncate(small, size)
        with pytest.raises(CheckpointError, match=r"small.gguf"):
            open_checkpoint(small)
        small.write_bytes(whole)


def one_tensor() -> GgufBytes:
    return GgufBytes().tensor("a", [4])


MALFORMED: dict[str, tuple[Callable[[], GgufBytes], str]] = {
    "two tensors of one name": (lambda: one_tensor().tensor("a", [4], offset=32), "tensor `a` occurs twice"),
    "two keys of one name": (
        lambda: GgufBytes().key("k", BOOL, b"\0").key("k", BOOL, b"\0"),
        "key `k` occurs twice",
    ),
    "overlap": (lambda: GgufBytes().tensor("a", [12]).tensor("b", [4], offset=32), "`a` and `b` overlap"),
    "beyond the end": (lambda: GgufBytes().tensor("a", [8], offset=64), "tensor `a` does not lie within the file"),
    "offset that wraps": (lambda: GgufBytes().tensor("a", [8], offset=2**64 - 32), "does not lie within the file"),
    "unaligned": (lambda: GgufBytes().tensor("a", [1], offset=4), "not aligned"),
    "size that wraps": (lambda: GgufBytes().tensor("a", [2**32, 2**32]), "larger than its file"),
    "no values": (lambda: GgufBytes().tensor("a", [4, 0]), "a dimension of size 0"),
    "no dimensions": (lambda: GgufBytes().tensor("a", []), "has 0 dimensions"),
    "too many dimensions": (lambda: GgufBytes().tensor("a", [1] * 5), "has 5 dimensions"),
    "broken row": (lambda: GgufBytes().tensor("a", [33], kind=2), "not a multiple of the 32 in a block of `q4_0`"),
    "no name": (lambda: GgufBytes().tensor("", [4]), "is 0 bytes long"),
    "name that is no text": (lambda: GgufBytes().tensor(b"\xff", [4]), "a tensor's name is not valid UTF-8"),
    "key that is no text": (lambda: GgufBytes().key(b"\xff", BOOL, b"\0"), "a key is not valid UTF-8"),
    "value of no type": (lambda: GgufBytes().key("k", 13, b""), "unknown value type 13"),
    "array of arrays": (
        lambda: GgufBytes().key("k", ARRAY, struct.pack("<IQ", ARRAY, 0)),
        "key `k` is an array of arrays",
    ),
    "endless array": (lambda: GgufBytes().key("k", ARRAY, struct.pack("<IQ", STRING, 2**61)), "claims"),
    "half truth": (lambda: GgufBytes().key("k", BOOL, b"\2"), "neither 0 nor 1"),
    "odd alignment": (lambda: GgufBytes().key("general.alignment", U32, struct.pack("<I", 24)), "not a power of two"),
    "no alignment": (lambda: GgufBytes().key("general.alignment", U32, bytes(4)), "is 0, not a power of two"),
    "alignment of another type": (lambda: GgufBytes().key("general.alignment", BOOL, b"\1"), "not an unsigned"),
}


@pytest.mark.parametrize("case", MALFORMED)
def test_malformed_header_says_what_is_wrong(case: str, tmp_path: Path) -> None:
    make, message = MALFORMED[case]
    with pytest.raises(CheckpointError, match=message):
        open_checkpoint(make().write(tmp_path / "bad.gguf"))


def test_sound_hand_made_header_is_read(tmp_path: Path) -> None:
    """The judge of the cases above: the same writer makes a file that is accepted."""
    sound = one_tensor().tensor("b", [2, 3], offset=32).key("general.alignment", U32, struct.pack("<I", 32))
    checkpoint = open_checkpoint(sound.write(tmp_path / "good.gguf"))
    assert checkpoint.tensors["b"].shape == (3, 2)
    assert checkpoint.nbytes == 16 + 24


@pytest.mark.parametrize(
    ("version", "message"),
    [(1, "GGUF version 1"), (4, "GGUF version 4"), (3 << 24, "big-endian")],
)
def test_other_versions_are_named(version: int, message: str, tmp_path: Path) -> None:
    header = one_tensor()
    header.version = struct.pack("<I", version)
    with pytest.raises(UnsupportedModelError, match=message):
        open_checkpoint(header.write(tmp_path / "other.gguf"))


def test_version_2_is_read(tmp_path: Path) -> None:
    header = one_tensor()
    header.version = struct.pack("<I", 2)
    assert list(open_checkpoint(header.write(tmp_path / "old.gguf")).tensors) == ["a"]


def test_unknown_tensor_type_is_named_by_number(tmp_path: Path) -> None:
    path = GgufBytes().tensor("blk.0.w", [32], kind=99).write(tmp_path / "new.gguf")
    with pytest.raises(UnsupportedModelError, match=r"tensor `blk.0.w` has the unknown type number 99"):
        open_checkpoint(path)


def test_other_kinds_of_file_are_told(tmp_path: Path) -> None:
    path = tmp_path / "page.gguf"
    path.write_text("<html>Not found</html>")
    with pytest.raises(CheckpointError, match="does not start with `GGUF`"):
        open_checkpoint(path)


@pytest.mark.parametrize("counts", [(2**64 - 1, 0), (0, 2**64 - 1), (2**20, 1), (1, 2**16)])
def test_absurd_counts_are_refused_before_anything_is_reserved(counts: tuple[int, int], tmp_path: Path) -> None:
    header = one_tensor()
    header.counts = counts
    with pytest.raises(CheckpointError, match=r"more than its .* bytes can hold"):
        open_checkpoint(header.write(tmp_path / "bad.gguf"))


def test_string_that_is_no_text_is_an_error_when_it_is_asked_for(tmp_path: Path) -> None:
    path = one_tensor().key("text", STRING, gguf_string(b"\xff")).write(tmp_path / "bad.gguf")
    metadata = open_checkpoint(path).metadata
    with pytest.raises(CheckpointError, match="key `text`"):
        metadata["text"]


@given(data=st.data())
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_mutated_file_is_read_or_refused(data: st.DataObject, sound: bytes, tmp_path: Path) -> None:
    raw = bytearray(sound)
    for _ in range(data.draw(st.integers(1, 4))):
        position = data.draw(st.integers(0, len(raw) - 1))
        replacement = data.draw(st.binary(min_size=1, max_size=9))
        raw[position : position + len(replacement)] = replacement
    path = tmp_path / "mutated.gguf"
    path.write_bytes(raw)
    with suppress(ModelError):
        look_at_everything(open_checkpoint(path))


def test_shards_act_like_one_file(tmp_path: Path) -> None:
    paths = [
        write_gguf(tmp_path / f"big-{number + 1:05d}-of-00003.gguf", shard=(number, 3, 6), name=f"part{number}")
        for number in range(3)
    ]
    for opened in (*paths, tmp_path):
        checkpoint = open_checkpoint(opened)
        assert checkpoint.path == paths[0]
        assert list(checkpoint.files) == paths
        assert len(checkpoint.tensors) == 6
        assert checkpoint.tensors["part2.norm"].file == paths[2]


def test_missing_shard_is_named(tmp_path: Path) -> None:
    first = write_gguf(tmp_path / "big-00001-of-00002.gguf", shard=(0, 2, 4))
    with pytest.raises(ModelNotFoundError, match=r"`big-00002-of-00002.gguf`"):
        open_checkpoint(first)


@pytest.mark.parametrize(
    ("second", "message"),
    [
        ({"shard": (0, 2, 4), "name": "b"}, "should be shard 1 of 2"),
        ({"shard": (1, 3, 4), "name": "b"}, "should be shard 1 of 2"),
        ({"shard": None, "name": "b"}, "should be shard 1 of 2"),
        ({"shard": (1, 2, 4), "name": "a"}, "tensor `a.norm` is also in"),
    ],
)
def test_shards_that_do_not_belong_together_are_refused(
    second: dict[str, object], message: str, tmp_path: Path
) -> None:
    first = write_gguf(tmp_path / "big-00001-of-00002.gguf", shard=(0, 2, 4), name="a")
    write_gguf(tmp_path / "big-00002-of-00002.gguf", **second)  # type: ignore[arg-type]
    with pytest.raises(CheckpointError, match=message):
        open_checkpoint(first)


def test_shards_must_hold_all_tensors(tmp_path: Path) -> None:
    first = write_gguf(tmp_path / "big-00001-of-00001.gguf", shard=(0, 1, 2))
    assert len(open_checkpoint(first).tensors) == 2
    both = [
        write_gguf(tmp_path / f"all-{number + 1:05d}-of-00002.gguf", shard=(number, 2, 9), name=str(number))
        for number in range(2)
    ]
    with pytest.raises(CheckpointError, match=r"`split.tensors.count` is 9, but the shards hold 4"):
        open_checkpoint(both[0])


def test_directory_with_one_model_opens_it(small: Path) -> None:
    write_gguf(small.parent / "mmproj-small.gguf")
    assert open_checkpoint(small.parent).path == small


def test_directory_with_several_models_lists_them(small: Path) -> None:
    write_gguf(small.parent / "other.gguf")
    with pytest.raises(ModelNotFoundError, match=r"(?s)several models.*other\.gguf.*small\.gguf"):
        open_checkpoint(small.parent)


def test_missing_path_is_not_found(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError, match="nowhere"):
        open_checkpoint(tmp_path / "nowhere.gguf")


def test_file_that_changed_after_its_header_was_read_is_refused(small: Path) -> None:
    checkpoint = open_checkpoint(small)
    write_gguf(small, seed=1)
    with pytest.raises(CheckpointError, match="changed after its header was read"), checkpoint.open(small):
        pass


def test_file_that_vanished_is_told(small: Path) -> None:
    checkpoint = open_checkpoint(small)
    small.unlink()
    with pytest.raises(CheckpointError, match="can't be opened any more"):
        checkpoint.fingerprint()


def test_fingerprint_follows_the_header_and_not_the_path(small: Path, tmp_path: Path) -> None:
    fingerprint = open_checkpoint(small).fingerprint()
    assert open_checkpoint(write_gguf(tmp_path / "copy.gguf")).fingerprint() == fingerprint
    assert open_checkpoint(write_gguf(tmp_path / "other.gguf", name="other")).fingerprint() != fingerprint


@pytest.mark.model
def test_large_vocabulary_is_read(gemma3_path: Path) -> None:
    checkpoint = open_checkpoint(gemma3_path)
    assert len(checkpoint.metadata["tokenizer.ggml.tokens"]) == 262_144
    assert len(checkpoint.metadata["tokenizer.ggml.scores"]) == 262_144
    assert len(checkpoint.tensors) == 236
