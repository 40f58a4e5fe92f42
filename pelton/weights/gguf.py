"""GGUF files as checkpoints: one file, or the shards of one. Parsing is native; what keys mean is not known here."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from pelton import _native
from pelton.errors import CheckpointError, ModelNotFoundError, UnsupportedModelError
from pelton.weights.checkpoint import Checkpoint, FileIdentity, TensorInfo
from pelton.weights.description import Description, found_description

SHARD_NAME = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf", re.DOTALL)


class GgufModel(msgspec.Struct, frozen=True):
    """One model among the files of a directory. path: its only file, or the first of its shards."""

    path: Path
    nbytes: int


def gguf_models(directory: Path) -> list[GgufModel]:
    """The models that a directory holds, by name. Vision projectors (`mmproj-*`) belong to a model and are none."""
    sizes: dict[Path, int] = {}
    for file in sorted(directory.glob("*.gguf")):
        if file.is_file() and not file.name.lower().startswith("mmproj"):
            match = SHARD_NAME.fullmatch(file.name)
            first = file if match is None else file.with_name(f"{match['stem']}-00001-of-{match['count']}.gguf")
            sizes[first] = sizes.get(first, 0) + file.stat().st_size
    return [GgufModel(path, nbytes) for path, nbytes in sizes.items()]


def shard_paths(path: Path) -> list[Path]:
    """All shards of the model that `path` is a shard of, in order; `[path]` if it is whole."""
    match = SHARD_NAME.fullmatch(path.name)
    if match is None or not 1 <= int(match["number"]) <= int(match["count"]):
        return [path]
    stem, count = match["stem"], match["count"]
    return [path.with_name(f"{stem}-{number:05d}-of-{count}.gguf") for number in range(1, int(count) + 1)]


class GgufMetadata(Mapping[str, Any]):
    """Keys of one header in the file's order.

    A value is made anew at each access: a scalar, a list of str, or a memoryview of numbers.
    """

    def __init__(self, path: Path, header: _native.GgufHeader) -> None:
        self._path = path
        self._header = header
        try:
            self._keys = dict.fromkeys(header.keys())
        except UnicodeDecodeError as error:
            raise _malformed(path, "a key is not valid UTF-8") from error

    def __getitem__(self, key: str) -> Any:
        try:
            return self._header.value(key)
        except UnicodeDecodeError as error:
            raise _malformed(self._path, f"key `{key}` holds a string that is not valid UTF-8") from error

    def strings(self, key: str) -> _native.Strings | None:
        """An array of strings that stays native, or None if the key has no such value."""
        try:
            return self._header.strings(key)
        except UnicodeDecodeError as error:
            raise _malformed(self._path, f"key `{key}` holds a string that is not valid UTF-8") from error

    def __contains__(self, key: object) -> bool:
        return key in self._keys

    def __iter__(self) -> Iterator[str]:
        return iter(self._keys)

    def __len__(self) -> int:
        return len(self._keys)


class _Part(msgspec.Struct, frozen=True):
    """One file's header."""

    path: Path
    identity: FileIdentity
    metadata: GgufMetadata
    tensors: list[TensorInfo]
    header_bytes: int


class GgufCheckpoint(Checkpoint):
    kind = "gguf"

    def __init__(self, path: Path, parts: list[_Part]) -> None:
        super().__init__(path, {part.path: part.identity for part in parts})
        self.metadata = parts[0].metadata
        self.sidecars = {}
        self._header_bytes = {part.path: part.header_bytes for part in parts}
        tensors: dict[str, TensorInfo] = {}
        for tensor in (tensor for part in parts for tensor in part.tensors):
            if tensor.name in tensors:
                raise _malformed(tensor.file, f"tensor `{tensor.name}` is also in `{tensors[tensor.name].file.name}`")
            tensors[tensor.name] = tensor
        self.tensors = tensors

    @classmethod
    def open_file(cls, path: Path, asked: Description | None = None) -> GgufCheckpoint:
        """`path` may be any shard; all of them are opened. asked: describes the model in place of its header."""
        paths = shard_paths(path)
        missing = [shard.name for shard in paths if not shard.is_file()]
        if missing:
            names = ", ".join(f"`{name}`" for name in missing[:4])
            raise ModelNotFoundError(
                f"`{path}` is one of {len(paths)} shards, and {len(missing)} of them are missing: {names}",
                hint="put all shards into one directory",
            )
        parts = [_read_part(shard) for shard in paths]
        if len(parts) > 1:
            _check_shards(parts)
        checkpoint = cls(paths[0], parts)
        checkpoint.config = asked or found_description(path.parent)
        return checkpoint

    def fingerprint(self) -> str:
        import hashlib

        digest = hashlib.blake2b(digest_size=16)
        for file in self.files:
            with self.open(file) as fd:
                digest.update(f"{os.fstat(fd).st_size}\n".encode())
                digest.update(os.pread(fd, self._header_bytes[file], 0))
        return digest.hexdigest()


def _read_part(path: Path) -> _Part:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise CheckpointError(f"`{path}` can't be read: {error.strerror}") from error
    try:
        identity = FileIdentity.of(fd)
        header = _native.GgufHeader(fd)
        tensors = [TensorInfo(name, shape, format, path, *place) for name, shape, format, *place in header.tensors()]
    except NotImplementedError as error:
        raise UnsupportedModelError(f"`{path}` can't be read: {error}") from error
    except UnicodeDecodeError as error:
        raise _malformed(path, "a tensor's name is not valid UTF-8") from error
    except ValueError as error:
        raise _malformed(path, str(error)) from error
    except OSError as error:
        raise CheckpointError(f"`{path}` can't be read: {error.strerror}") from error
    finally:
        os.close(fd)
    return _Part(path, identity, GgufMetadata(path, header), tensors, header.data_offset)


def _check_shards(parts: list[_Part]) -> None:
    """Each shard says its number, from 0, and how many there are; the first may say how many tensors all hold."""
    for number, part in enumerate(parts):
        said = (part.metadata.get("split.no"), part.metadata.get("split.count"))
        if said != (number, len(parts)):
            raise _malformed(
                part.path, f"it should be shard {number} of {len(parts)}, but `split.no` and `split.count` are {said}"
            )
    claimed = parts[0].metadata.get("split.tensors.count")
    held = sum(len(part.tensors) for part in parts)
    if claimed is not None and claimed != held:
        raise _malformed(parts[0].path, f"`split.tensors.count` is {claimed}, but the shards hold {held} tensors")


def _malformed(path: Path, what: str) -> CheckpointError:
    return CheckpointError(f"`{path}` is not a sound GGUF file: {what}", hint="download or convert it again")
