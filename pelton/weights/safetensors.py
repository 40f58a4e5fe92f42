"""Directories of safetensors with a config.json as checkpoints. Knows the container only; never unpickles anything.

File: u64 length of the header, the header (JSON: name -> dtype, shape, data_offsets), data without gaps.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeGuard

import msgspec

from pelton.errors import CheckpointError, ModelNotFoundError, UnsupportedModelError
from pelton.quant.detect import refuse_quantised
from pelton.weights.checkpoint import SIDECAR_NAMES, Checkpoint, FileIdentity, TensorInfo
from pelton.weights.description import CONFIG_NAME, Description, malformed, parse_json, read_json

MAX_HEADER_BYTES = 100_000_000  # the format's limit
MAX_DIMENSIONS = 8

DTYPE_BYTES = {
    "BOOL": 1,
    "U8": 1,
    "I8": 1,
    "F8_E4M3": 1,
    "F8_E5M2": 1,
    "F8_E8M0": 1,
    "U16": 2,
    "I16": 2,
    "F16": 2,
    "BF16": 2,
    "U32": 4,
    "I32": 4,
    "F32": 4,
    "U64": 8,
    "I64": 8,
    "F64": 8,
}


class _Part(msgspec.Struct, frozen=True):
    """One file's header."""

    path: Path
    identity: FileIdentity
    tensors: dict[str, TensorInfo]
    header_bytes: int


class SafetensorsCheckpoint(Checkpoint):
    kind = "safetensors"

    def __init__(self, path: Path, parts: list[_Part], config: Mapping[str, Any], sidecars: Mapping[str, Path]) -> None:
        super().__init__(path, {part.path: part.identity for part in parts})
        self.metadata = config
        self.sidecars = sidecars
        self.tensors = {name: tensor for part in parts for name, tensor in part.tensors.items()}
        self._header_bytes = {part.path: part.header_bytes for part in parts}

    @classmethod
    def open_directory(
        cls, directory: Path, weights: Path | None = None, asked: Description | None = None
    ) -> SafetensorsCheckpoint:
        """weights: the file to read, instead of what the directory's index or its only file says.

        asked: describes the model in place of the directory's config.json, which may be absent then.
        """
        config_path = directory / CONFIG_NAME
        if not config_path.is_file() and asked is not None:
            config_path = asked.path
        if not config_path.is_file():
            raise ModelNotFoundError(
                f"`{directory}` holds neither a .gguf file nor a config.json",
                hint="a model is a .gguf file, or a directory with config.json and .safetensors files",
            )
        config = read_json(config_path)
        refuse_quantised(config, str(directory))
        index = directory / "model.safetensors.index.json"
        if weights is not None:
            parts = [_read_part(weights)]
        elif index.is_file():
            parts = _read_index(index)
        else:
            parts = [_read_part(_only_file(directory))]
        sidecars = {name: directory / name for name in SIDECAR_NAMES if (directory / name).is_file()}
        checkpoint = cls(weights or directory, parts, config, sidecars)
        checkpoint.config = asked
        return checkpoint

    def fingerprint(self) -> str:
        import hashlib

        digest = hashlib.blake2b(digest_size=16)
        digest.update(json.dumps(self.metadata, sort_keys=True).encode())
        for file in self.files:
            with self.open(file) as fd:
                digest.update(f"{os.fstat(fd).st_size}\n".encode())
                digest.update(os.pread(fd, self._header_bytes[file], 0))
        return digest.hexdigest()


def _only_file(directory: Path) -> Path:
    usual = directory / "model.safetensors"
    if usual.is_file():
        return usual
    files = sorted(directory.glob("*.safetensors"))
    if len(files) == 1:
        return files[0]
    if files:
        names = ", ".join(f"`{file.name}`" for file in files[:8])
        raise ModelNotFoundError(
            f"`{directory}` has {len(files)} safetensors files and no `model.safetensors.index.json`: {names}",
            hint="name one file, or fetch the index",
        )
    pickled = [*directory.glob("*.bin"), *directory.glob("*.pt"), *directory.glob("*.pth")]
    if pickled:
        raise UnsupportedModelError(
            f"`{directory}` has only pickled weights (`{pickled[0].name}`), which can run code when they are loaded",
            hint="use a safetensors or GGUF version of the model",
        )
    raise ModelNotFoundError(f"`{directory}` has a config.json but no weights", hint="fetch the .safetensors files")


def _read_index(index: Path) -> list[_Part]:
    """The files of a sharded checkpoint; they must hold exactly the tensors that the index says."""
    weight_map = read_json(index).get("weight_map")
    if not isinstance(weight_map, dict) or not all(isinstance(name, str) for name in weight_map.values()):
        raise malformed(index, "it has no `weight_map` of names to files")
    for name in set(weight_map.values()):
        if Path(name).name != name or name in ("", ".", ".."):
            raise malformed(index, f"`{name}` is not the name of a file beside it")
    parts = [_read_part(index.with_name(name)) for name in sorted(set(weight_map.values()))]
    held = {name: part.path.name for part in parts for name in part.tensors}
    for tensor, file in weight_map.items():
        if held.get(tensor) != file:
            raise malformed(index, f"tensor `{tensor}` is not in `{file}`")
    if sum(len(part.tensors) for part in parts) != len(weight_map):
        extra = next(name for part in parts for name in part.tensors if weight_map.get(name) != part.path.name)
        raise malformed(index, f"it does not name tensor `{extra}` of `{held[extra]}`")
    return parts


def _read_part(path: Path) -> _Part:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError as error:
        raise CheckpointError(f"`{path}` is missing", hint="download the model again") from error
    except OSError as error:
        raise CheckpointError(f"`{path}` can't be read: {error.strerror}") from error
    try:
        identity = FileIdentity.of(fd)
        header = _read_header(path, fd, identity.size)
    except OSError as error:
        raise CheckpointError(f"`{path}` can't be read: {error.strerror}") from error
    finally:
        os.close(fd)
    data_offset = 8 + len(header)
    entries = parse_json(path, header)
    entries.pop("__metadata__", None)
    tensors = {name: _read_entry(path, name, entry, data_offset) for name, entry in entries.items()}
    _check_layout(path, tensors, data_offset, identity.size)
    return _Part(path, identity, tensors, data_offset)


def _read_header(path: Path, fd: int, file_bytes: int) -> bytes:
    prefix = os.pread(fd, 8, 0)
    length = int.from_bytes(prefix, "little")
    if len(prefix) < 8 or length > file_bytes - 8:
        raise malformed(path, f"its header does not lie within its {file_bytes} bytes")
    if length > MAX_HEADER_BYTES:
        raise malformed(path, f"its header claims {length} bytes; at most {MAX_HEADER_BYTES} are allowed")
    header = os.pread(fd, length, 8)
    if len(header) != length:
        raise malformed(path, "it became shorter while it was read")
    return header


def _read_entry(path: Path, name: str, entry: Any, data_offset: int) -> TensorInfo:
    dtype = entry.get("dtype") if isinstance(entry, dict) else None
    shape = entry.get("shape") if isinstance(entry, dict) else None
    span = entry.get("data_offsets") if isinstance(entry, dict) else None
    if not isinstance(dtype, str) or not _are_sizes(shape) or not _are_sizes(span) or len(span) != 2:
        raise malformed(path, f"tensor `{name}` lacks a sound dtype, shape or data_offsets")
    if len(shape) > MAX_DIMENSIONS:
        raise malformed(path, f"tensor `{name}` has {len(shape)} dimensions")
    if dtype not in DTYPE_BYTES:
        raise UnsupportedModelError(f"tensor `{name}` of `{path}` has the unknown dtype `{dtype}`")
    begin, end = span
    nbytes = math.prod(shape) * DTYPE_BYTES[dtype]
    if end - begin != nbytes:
        raise malformed(path, f"tensor `{name}` takes {end - begin} bytes, but {dtype} {shape} needs {nbytes}")
    return TensorInfo(name, tuple(shape), dtype.lower(), path, data_offset + begin, nbytes)


def _are_sizes(values: Any) -> TypeGuard[list[int]]:
    return isinstance(values, list) and all(type(value) is int and 0 <= value < 1 << 63 for value in values)


def _check_layout(path: Path, tensors: Mapping[str, TensorInfo], data_offset: int, file_bytes: int) -> None:
    """The data is covered by tensors exactly: no overlaps, no gaps, no bytes that nobody owns."""
    end = data_offset
    for tensor in sorted(tensors.values(), key=lambda tensor: (tensor.offset, tensor.nbytes)):
        if tensor.offset != end:
            what = "overlaps the one before it" if tensor.offset < end else "leaves a gap before it"
            raise malformed(path, f"tensor `{tensor.name}` {what}")
        end += tensor.nbytes
    if end != file_bytes:
        raise malformed(path, f"its tensors end at byte {end}, but it has {file_bytes} bytes")
