"""Loading is strict: one use or a reason for each tensor, one source for each parameter, and the file's exact bytes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from pelton import _native
from pelton.errors import CheckpointError, UnsupportedModelError
from pelton.models.architecture import Binding, Ignored
from pelton.quant.gguf_types import GGUF_SCHEMES
from pelton.weights.checkpoint import Checkpoint, open_checkpoint
from pelton.weights.load import PackRequest, Resolution, load, resolve
from tests.weights.files import GgufBytes, write_gguf

BINDINGS = [Binding("norm", "weight.norm"), Binding("matrix", "weight.matrix")]
PARAMETERS: dict[str, tuple[int, ...]] = {"norm": (4,), "matrix": (3, 32)}


@pytest.fixture
def checkpoint(tmp_path: Path) -> Checkpoint:
    return open_checkpoint(write_gguf(tmp_path / "small.gguf"))


@pytest.fixture
def team() -> Iterator[_native.Team]:
    team = _native.Team(2)
    yield team
    team.close()


def stored(tensors: dict[str, Any], directory: Path) -> Checkpoint:
    save_file(tensors, directory / "model.safetensors")
    (directory / "config.json").write_text("{}")
    return open_checkpoint(directory)


def load_vector(checkpoint: Checkpoint, binding: Binding, n: int, team: _native.Team) -> list[float]:
    buffer = _native.Buffer(64 + 4 * n, "test")
    resolution = resolve(checkpoint, [binding], [Ignored("*", "not asked for")], {binding.parameter: (n,)})
    load(checkpoint, resolution, [PackRequest(binding.parameter, "vector", buffer, 64)], team)
    assert bytes(memoryview(buffer)[:64]) == bytes(64)
    return memoryview(buffer)[64:].cast("f").tolist()


def load_matrix(checkpoint: Checkpoint, resolution: Resolution, team: _native.Team) -> np.ndarray:
    """The only matrix of a resolution, packed at an offset, then unpacked."""
    (source,) = (source for source in resolution.sources.values() if len(source.pieces[0].tensor.shape) == 2)
    n, k = source.pieces[0].tensor.shape
    buffer = _native.Buffer(128 + _native.packed_bytes(source.pieces[0].tensor.format, n, k), "test")
    requests = [PackRequest(source.parameter, "panels", buffer, 128)]
    rest = _native.Buffer(4096, "test")
    requests += [PackRequest(name, "vector", rest, 0) for name in resolution.sources if name != source.parameter]
    load(checkpoint, resolution, requests, team)
    return np.frombuffer(_native.unpack(source.pieces[0].tensor.format, buffer, 128, n, k), np.float32).reshape(n, k)


def test_matrix_is_the_files_to_the_bit(checkpoint: Checkpoint, team: _native.Team) -> None:
    tensor = checkpoint.tensors["weight.matrix"]
    raw = tensor.file.read_bytes()[tensor.offset : tensor.offset + tensor.nbytes]
    expected = GGUF_SCHEMES["q4_0"].unpack(np, raw, 3, 32)
    actual = load_matrix(checkpoint, resolve(checkpoint, BINDINGS, [], PARAMETERS), team)
    assert np.array_equal(actual.view(np.uint32), expected.view(np.uint32))


def test_rows_can_be_reordered(checkpoint: Checkpoint, team: _native.Team) -> None:
    plain = load_matrix(checkpoint, resolve(checkpoint, BINDINGS, [], PARAMETERS), team)
    order = (2, 0, 1)
    bindings = [BINDINGS[0], Binding("matrix", "weight.matrix", row_order=order)]
    assert np.array_equal(
        load_matrix(checkpoint, resolve(checkpoint, bindings, [], PARAMETERS), team), plain[[2, 0, 1]]
    )
    expected = checkpoint.read_vector("weight.norm")
    vector = load_vector(checkpoint, Binding("norm", "weight.norm", row_order=(3, 1, 0, 2)), 4, team)
    assert vector == [expected[3], expected[1], expected[0], expected[2]]


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_vectors_become_float32(dtype: Any, tmp_path: Path, team: _native.Team) -> None:
    values = np.array([1.5, -0.1, 6e-8, 65504], dtype)
    checkpoint = stored({"norm": values}, tmp_path)
    assert load_vector(checkpoint, Binding("norm", "norm"), 4, team) == values.astype(np.float32).tolist()


def test_one_is_added_in_float32(tmp_path: Path, team: _native.Team) -> None:
    values = np.array([0.1, -1.0, 1e-9, 3e7], np.float32)
    expected = (values + np.float32(1)).tolist()
    checkpoint = stored({"norm": values}, tmp_path)
    assert load_vector(checkpoint, Binding("norm", "norm", add_one=True), 4, team) == expected


def test_parameter_may_be_wanted_twice(checkpoint: Checkpoint, team: _native.Team) -> None:
    buffer = _native.Buffer(32, "test")
    resolution = resolve(checkpoint, [BINDINGS[0]], [Ignored("*", "unused")], {"norm": (4,)})
    load(checkpoint, resolution, [PackRequest("norm", "vector", buffer, offset) for offset in (0, 16)], team)
    assert bytes(memoryview(buffer)[:16]) == bytes(memoryview(buffer)[16:])


def test_parameter_without_a_place_is_noticed(checkpoint: Checkpoint, team: _native.Team) -> None:
    with pytest.raises(AssertionError, match=r"no place was asked for 2 parameters \(`norm`, `matrix`\)"):
        load(checkpoint, resolve(checkpoint, BINDINGS, [], PARAMETERS), [], team)


def test_left_over_tensors_are_named(checkpoint: Checkpoint) -> None:
    with pytest.raises(CheckpointError, match=r"has 1 tensor \(`weight\.matrix`\) that the model does not use"):
        resolve(checkpoint, BINDINGS[:1], [Ignored("other.*", "elsewhere")], {"norm": (4,)})


def test_a_renamed_tensor_is_named_on_both_sides(checkpoint: Checkpoint) -> None:
    bindings = [BINDINGS[0], Binding("matrix", "weight.table")]
    message = r"lacks 1 tensor \(`weight\.table`\) and has 1 tensor \(`weight\.matrix`\) that the model does not use"
    with pytest.raises(CheckpointError, match=message) as caught:
        resolve(checkpoint, bindings, [], PARAMETERS)
    assert "other names" in str(caught.value.hint)


def test_long_lists_of_names_are_cut(tmp_path: Path) -> None:
    header = GgufBytes()
    header.data = bytes(32 * 9)
    for index in range(9):
        header.tensor(f"t{index}", [1], offset=32 * index)
    with pytest.raises(CheckpointError, match=r"has 9 tensors \(`t0`, `t1`, `t2`, `t3`, `t4`, …\)"):
        resolve(open_checkpoint(header.write(tmp_path / "many.gguf")), [], [], {})


def test_ignored_tensors_keep_their_reasons(checkpoint: Checkpoint) -> None:
    ignored = [Ignored("weight.m*", "first"), Ignored("*", "second")]
    resolution = resolve(checkpoint, BINDINGS[:1], ignored, {"norm": (4,)})
    assert resolution.ignored == {"weight.matrix": "first"}
    assert resolution.sources["norm"].pieces[0].tensor.name == "weight.norm"


def test_patterns_are_not_case_blind(checkpoint: Checkpoint) -> None:
    with pytest.raises(CheckpointError, match="does not use"):
        resolve(checkpoint, BINDINGS[:1], [Ignored("WEIGHT.*", "x")], {"norm": (4,)})


def test_missing_tensor_is_named(checkpoint: Checkpoint) -> None:
    bindings = [*BINDINGS, Binding("head", "output.weight")]
    with pytest.raises(CheckpointError, match=r"lacks 1 tensor \(`output\.weight`\)"):
        resolve(checkpoint, bindings, [], {**PARAMETERS, "head": (3, 32)})


def test_parameter_without_a_binding_is_named(checkpoint: Checkpoint) -> None:
    with pytest.raises(CheckpointError, match=r"lacks 1 parameter \(`head`\)"):
        resolve(checkpoint, BINDINGS, [], {**PARAMETERS, "head": (3, 32)})


def test_tensor_is_used_once(checkpoint: Checkpoint) -> None:
    bindings = [*BINDINGS, Binding("head", "weight.matrix")]
    with pytest.raises(CheckpointError, match="would fill both `matrix` and `head`"):
        resolve(checkpoint, bindings, [], {**PARAMETERS, "head": (3, 32)})


def test_tensor_can_be_shared_by_rows_and_a_parameter_put_together(checkpoint: Checkpoint) -> None:
    halves = [
        Binding("first", "weight.matrix", num_rows=2),
        Binding("second", "weight.matrix", tensor_row=2),
        Binding("norm", "weight.norm", num_rows=1, parameter_row=3),
        Binding("norm", "weight.norm", tensor_row=1),
    ]
    found = resolve(checkpoint, halves, [], {"norm": (4,), "first": (2, 32), "second": (1, 32)})
    assert [(piece.tensor_row, piece.num_rows) for piece in found.sources["norm"].pieces] == [(1, 3), (0, 1)]
    assert [found.sources[name].pieces[0].tensor_row for name in ("first", "second")] == [0, 2]


def test_scattered_rows_of_a_tensor_fill_several_parameters(checkpoint: Checkpoint, team: _native.Team) -> None:
    plain = load_matrix(checkpoint, resolve(checkpoint, BINDINGS, [], PARAMETERS), team)
    shapes = {"norm": (4,), "outer": (2, 32), "inner": (1, 32)}
    outer, inner = Binding("outer", "weight.matrix", (2, 0)), Binding("inner", "weight.matrix", (1,))
    resolution = resolve(checkpoint, [BINDINGS[0], outer, inner], [], shapes)
    assert sorted(resolution.sources) == ["inner", "norm", "outer"]
    buffers = {name: _native.Buffer(4096, "test") for name in resolution.sources}
    layouts = {name: "vector" if name == "norm" else "panels" for name in buffers}
    load(checkpoint, resolution, [PackRequest(name, layouts[name], buffers[name], 0) for name in buffers], team)
    for name, rows in (("outer", [2, 0]), ("inner", [1])):
        found = np.frombuffer(_native.unpack("q4_0", buffers[name], 0, len(rows), 32), np.float32)
        assert np.array_equal(found.reshape(-1, 32), plain[rows])
    again = Binding("inner", "weight.matrix", (0,))
    with pytest.raises(CheckpointError, match="would fill both `outer` and `inner`"):
        resolve(checkpoint, [BINDINGS[0], outer, again], [], shapes)


def test_scattered_values_of_a_vector_fill_several_parameters(tmp_path: Path, team: _native.Team) -> None:
    checkpoint = stored({"bias": np.arange(6, dtype=np.float32)}, tmp_path)
    orders = {"outer": (5, 0, 4), "inner": (3, 1, 2)}
    bindings = [Binding(name, "bias", order) for name, order in orders.items()]
    resolution = resolve(checkpoint, bindings, [], dict.fromkeys(orders, (3,)))
    buffers = {name: _native.Buffer(12, "test") for name in orders}
    load(checkpoint, resolution, [PackRequest(name, "vector", buffers[name], 0) for name in orders], team)
    for name, order in orders.items():
        assert np.frombuffer(buffers[name], np.float32)[:3].tolist() == list(order)


def test_row_that_nobody_reads_is_told(checkpoint: Checkpoint) -> None:
    bindings = [BINDINGS[0], Binding("matrix", "weight.matrix", num_rows=2)]
    with pytest.raises(CheckpointError, match=r"`weight.matrix` of .* has `3` rows, and nothing uses row `2`"):
        resolve(checkpoint, bindings, [], {**PARAMETERS, "matrix": (2, 32)})


def test_pieces_that_leave_a_gap_are_told(checkpoint: Checkpoint) -> None:
    bindings = [BINDINGS[0], Binding("matrix", "weight.matrix", parameter_row=16)]
    with pytest.raises(CheckpointError, match="do not make up the `19` of `matrix`"):
        resolve(checkpoint, bindings, [], {**PARAMETERS, "matrix": (19, 32)})


def test_other_shape_is_told(checkpoint: Checkpoint) -> None:
    with pytest.raises(CheckpointError, match=r"has shape \[3, 32\], but `matrix` needs \[32, 3\]"):
        resolve(checkpoint, BINDINGS, [], {**PARAMETERS, "matrix": (32, 3)})


@pytest.mark.parametrize(
    ("kind", "k", "name"), [(16, 256, "iq2_xxs"), (39, 32, "mxfp4"), (26, 4, "i32")], ids=["table", "small", "integer"]
)
def test_matrix_in_a_format_that_is_not_read_is_named(kind: int, k: int, name: str, tmp_path: Path) -> None:
    header = GgufBytes().tensor("w", [k, 1], kind=kind)
    header.data = bytes(256)
    checkpoint = open_checkpoint(header.write(tmp_path / "new.gguf"))
    with pytest.raises(UnsupportedModelError, match=f"tensor `w` .*is stored as `{name}`"):
        resolve(checkpoint, [Binding("w", "w")], [], {"w": (1, k)})


def test_vector_in_blocks_is_named(tmp_path: Path) -> None:
    header = GgufBytes().tensor("w", [32], kind=2)
    checkpoint = open_checkpoint(header.write(tmp_path / "blocks.gguf"))
    with pytest.raises(UnsupportedModelError, match=r"tensor `w` .*`q4_0`"):
        resolve(checkpoint, [Binding("w", "w")], [], {"w": (32,)})


def test_file_that_shrinks_while_it_is_read_is_an_error(
    checkpoint: Checkpoint, team: _native.Team, monkeypatch: pytest.MonkeyPatch
) -> None:
    resolution = resolve(checkpoint, BINDINGS, [], PARAMETERS)
    tensor = checkpoint.tensors["weight.matrix"]
    open_file = Checkpoint.open

    @contextmanager
    def shrink_meanwhile(self: Checkpoint, file: Path) -> Iterator[int]:
        with open_file(self, file) as fd:
            os.truncate(tensor.file, tensor.offset + tensor.nbytes - 1)
            yield fd

    monkeypatch.setattr(Checkpoint, "open", shrink_meanwhile)
    with pytest.raises(CheckpointError, match=r"ends within tensor `weight\.matrix`"):
        load_matrix(checkpoint, resolution, team)


def test_mistakes_of_a_model_file_are_assertions(checkpoint: Checkpoint) -> None:
    with pytest.raises(AssertionError, match="which the model does not have"):
        resolve(checkpoint, [Binding("nothing", "weight.norm")], [], {})
    with pytest.raises(AssertionError, match="two bindings fill `norm`"):
        resolve(checkpoint, [BINDINGS[0], BINDINGS[0]], [], PARAMETERS)
    with pytest.raises(AssertionError, match="names a row twice"):
        resolve(checkpoint, [Binding("norm", "weight.norm", row_order=(0, 0, 1, 2))], [], PARAMETERS)
    with pytest.raises(AssertionError, match="is no vector to be changed"):
        resolve(checkpoint, [Binding("matrix", "weight.matrix", add_one=True)], [], PARAMETERS)
