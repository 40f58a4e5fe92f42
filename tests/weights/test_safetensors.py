"""Safetensors: the same facts as the format's own library gives, and a clear error for what is not sound."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.numpy import save_file

from pelton.errors import CheckpointError, ModelError, ModelNotFoundError, UnsupportedModelError
from pelton.weights.checkpoint import open_checkpoint
from tests.weights.files import entry, safetensors_bytes

CONFIG = {"architectures": ["LlamaForCausalLM"], "hidden_size": 4}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    return tmp_path


def save(path: Path, **tensors: Any) -> Path:
    save_file(tensors, path)
    return path


def write(model: Path, header: Mapping[str, Any] | str, data: bytes = b"") -> Path:
    path = model / "model.safetensors"
    path.write_bytes(safetensors_bytes(header, data))
    return path


def test_tensors_agree_with_the_formats_own_library(model: Path) -> None:
    tensors: dict[str, Any] = {
        "weight": np.arange(12, dtype=np.float32).reshape(3, 4),
        "half": np.array([0.5, -2.0], np.float16),
        "ids": np.array([[1]], np.int64),
    }
    path = save(model / "model.safetensors", **tensors)
    checkpoint = open_checkpoint(model)
    assert checkpoint.kind == "safetensors"
    assert checkpoint.metadata == CONFIG
    assert checkpoint.tensors.keys() == tensors.keys()
    for name, values in tensors.items():
        tensor = checkpoint.tensors[name]
        assert tensor.shape == values.shape
        assert path.read_bytes()[tensor.offset : tensor.offset + tensor.nbytes] == values.tobytes()
    assert [checkpoint.tensors[name].format for name in tensors] == ["f32", "f16", "i64"]
    assert list(checkpoint.read_vector("half")) == [0.5, -2.0]


def test_bfloat16_vectors_are_exact(model: Path) -> None:
    values = (1.0, -0.3359375, 3.3895313892515355e38)
    raw = b"".join(struct.pack("<f", value)[2:] for value in values)
    write(model, {"norm": entry("BF16", [3], 0, 6)}, raw)
    assert tuple(open_checkpoint(model).read_vector("norm")) == values


def test_one_file_can_be_named(model: Path) -> None:
    path = save(model / "other.safetensors", a=np.zeros(2, np.float32))
    save(model / "model.safetensors", b=np.zeros(2, np.float32))
    assert list(open_checkpoint(path).tensors) == ["a"]


def test_sidecars_are_found(model: Path) -> None:
    save(model / "model.safetensors", a=np.zeros(2, np.float32))
    (model / "tokenizer.json").write_text("{}")
    (model / "README.md").write_text("")
    assert open_checkpoint(model).sidecars == {"tokenizer.json": model / "tokenizer.json"}


def test_every_truncation_is_an_error(model: Path) -> None:
    path = save(model / "model.safetensors", a=np.zeros(3, np.float32), b=np.zeros((2, 2), np.float16))
    whole = path.read_bytes()
    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        with pytest.raises(CheckpointError, match=r"model\.safetensors"):
            open_checkpoint(model)


def test_every_byte_of_the_header_survives_every_value(model: Path) -> None:
    whole = bytearray(safetensors_bytes({"a": entry("F32", [2], 0, 8), "b": entry("F16", [1], 8, 10)}, bytes(10)))
    path = model / "model.safetensors"
    for position in range(len(whole) - 10):
        original = whole[position]
        for value in (0, 0x22, 0x2D, 0x39, 0x5B, 0xFF):
            whole[position] = value
            path.write_bytes(whole)
            with suppress(ModelError):
                open_checkpoint(model)
        whole[position] = original


EIGHT = bytes(8)
MALFORMED: dict[str, tuple[Mapping[str, Any] | str, bytes, str]] = {
    "overlap": ({"a": entry("F32", [2], 0, 8), "b": entry("F32", [1], 4, 8)}, EIGHT, "`b` overlaps"),
    "gap": ({"a": entry("F32", [1], 4, 8)}, EIGHT, "`a` leaves a gap"),
    "unowned end": ({"a": entry("F32", [1], 0, 4)}, EIGHT, "its tensors end at byte"),
    "beyond the end": ({"a": entry("F32", [4], 0, 16)}, EIGHT, "its tensors end at byte"),
    "wrong size": ({"a": entry("F32", [3], 0, 8)}, EIGHT, "takes 8 bytes, but F32"),
    "size that wraps": ({"a": entry("F32", [2**62, 4], 0, 0)}, EIGHT, "takes 0 bytes"),
    "backwards": ({"a": entry("F32", [2], 8, 0)}, EIGHT, "takes -8 bytes"),
    "negative": ({"a": entry("F32", [-1, -2], 0, 8)}, EIGHT, "lacks a sound"),
    "fraction": ('{"a":{"dtype":"F32","shape":[2.0],"data_offsets":[0,8]}}', EIGHT, "lacks a sound"),
    "truth for a number": ('{"a":{"dtype":"F32","shape":[2,true],"data_offsets":[0,8]}}', EIGHT, "lacks a sound"),
    "no entry": ({"a": 1}, EIGHT, "lacks a sound"),
    "many dimensions": ({"a": entry("F32", [1] * 9, 0, 4)}, bytes(4), "has 9 dimensions"),
    "twice": ('{"a":1,"a":2}', EIGHT, "a name occurs twice"),
    "not an object": ("[]", EIGHT, "not an object"),
    "not JSON": ("{", EIGHT, "JSON can't be read"),
    "deep": ("[" * 100_000, EIGHT, "JSON can't be read"),
    "endless number": ('{"a":' + "9" * 10_000 + "}", EIGHT, "JSON can't be read"),
}


@pytest.mark.parametrize("case", MALFORMED)
def test_malformed_header_says_what_is_wrong(case: str, model: Path) -> None:
    header, data, message = MALFORMED[case]
    write(model, header, data)
    with pytest.raises(CheckpointError, match=message):
        open_checkpoint(model)


def test_header_length_is_bounded(model: Path) -> None:
    path = model / "model.safetensors"
    with path.open("wb") as file:
        file.write(struct.pack("<Q", 200_000_000))
        file.truncate(300_000_000)  # sparse
    with pytest.raises(CheckpointError, match="at most 100000000 are allowed"):
        open_checkpoint(model)
    path.write_bytes(struct.pack("<Q", 2**64 - 1))
    with pytest.raises(CheckpointError, match="does not lie within its 8 bytes"):
        open_checkpoint(model)


def test_unknown_dtype_is_named(model: Path) -> None:
    write(model, {"model.w": entry("F4", [2], 0, 1)}, b"\0")
    with pytest.raises(UnsupportedModelError, match=r"`model\.w`.*`F4`"):
        open_checkpoint(model)


@given(data=st.data())
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_arbitrary_headers_are_read_or_refused(data: st.DataObject, model: Path) -> None:
    numbers = st.integers(-2, 20) | st.sampled_from([2**31, 2**63 - 1, 2**64, True, None, 1.5])
    record = st.fixed_dictionaries(
        {
            "dtype": st.sampled_from(["F32", "F16", "BF16", "X"]),
            "shape": st.lists(numbers, max_size=3),
            "data_offsets": st.lists(numbers, max_size=3),
        }
    )
    header = data.draw(st.dictionaries(st.text(max_size=3), record | numbers, max_size=3))
    write(model, header, bytes(data.draw(st.integers(0, 24))))
    with suppress(ModelError):
        for tensor in open_checkpoint(model).tensors.values():
            assert tensor.offset + tensor.nbytes <= tensor.file.stat().st_size


def write_index(model: Path, weight_map: object) -> None:
    (model / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))


@pytest.fixture
def sharded(model: Path) -> Path:
    save(model / "model-00001-of-00002.safetensors", a=np.zeros(2, np.float32))
    save(model / "model-00002-of-00002.safetensors", b=np.ones(2, np.float32))
    return model


WHOLE_MAP = {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}


def test_shards_act_like_one_file(sharded: Path) -> None:
    write_index(sharded, WHOLE_MAP)
    checkpoint = open_checkpoint(sharded)
    assert sorted(checkpoint.tensors) == ["a", "b"]
    assert list(checkpoint.read_vector("b")) == [1.0, 1.0]
    assert len(checkpoint.files) == 2


@pytest.mark.parametrize(
    ("weight_map", "message"),
    [
        ({**WHOLE_MAP, "c": WHOLE_MAP["a"]}, r"tensor `c` is not in `model-00001-of-00002"),
        ({**WHOLE_MAP, "b": WHOLE_MAP["a"]}, "tensor `b` is not in"),
        ({"a": WHOLE_MAP["a"], "b": "model-00003.safetensors"}, r"`.*model-00003\.safetensors` is missing"),
        ({"a": "../model.safetensors"}, r"`\.\./model\.safetensors` is not the name of a file beside it"),
        ({"a": "/etc/passwd"}, "not the name of a file beside it"),
        ({"a": ".."}, "not the name of a file beside it"),
        ({"a": 1}, "no `weight_map`"),
        ([], "no `weight_map`"),
    ],
)
def test_index_that_does_not_fit_its_files_is_refused(sharded: Path, weight_map: object, message: str) -> None:
    write_index(sharded, weight_map)
    with pytest.raises(CheckpointError, match=message):
        open_checkpoint(sharded)


def test_tensor_that_the_index_leaves_out_is_named(sharded: Path) -> None:
    save(sharded / "model-00002-of-00002.safetensors", b=np.ones(2, np.float32), extra=np.ones(1, np.float32))
    write_index(sharded, WHOLE_MAP)
    with pytest.raises(CheckpointError, match="does not name tensor `extra`"):
        open_checkpoint(sharded)


def test_several_files_without_an_index_are_listed(sharded: Path) -> None:
    with pytest.raises(ModelNotFoundError, match=r"2 safetensors files.*model-00001.*model-00002"):
        open_checkpoint(sharded)


def test_pickled_weights_are_refused(model: Path) -> None:
    (model / "pytorch_model.bin").write_bytes(b"\x80\x04.")
    with pytest.raises(UnsupportedModelError, match=r"pytorch_model\.bin"):
        open_checkpoint(model)


def test_directory_without_weights_is_told(model: Path) -> None:
    with pytest.raises(ModelNotFoundError, match="no weights"):
        open_checkpoint(model)


def test_directory_without_config_is_told(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError, match=r"neither a \.gguf file nor a config\.json"):
        open_checkpoint(tmp_path)


@pytest.mark.parametrize("place", [("quantization_config",), ("text_config", "quantization_config")])
def test_quantised_config_is_refused_by_its_method(model: Path, place: tuple[str, ...]) -> None:
    config: dict[str, Any] = {"quant_method": "gptq", "bits": 4}
    for name in reversed(place):
        config = {name: config}
    (model / "config.json").write_text(json.dumps(config))
    save(model / "model.safetensors", a=np.zeros(2, np.float32))
    with pytest.raises(UnsupportedModelError, match="quant_method `gptq`"):
        open_checkpoint(model)


def test_fingerprint_follows_config_and_headers(model: Path) -> None:
    save(model / "model.safetensors", a=np.zeros(2, np.float32))
    first = open_checkpoint(model).fingerprint()
    assert open_checkpoint(model).fingerprint() == first
    (model / "config.json").write_text(json.dumps({**CONFIG, "hidden_size": 5}))
    assert open_checkpoint(model).fingerprint() != first
