"""What a checkpoint is: named tensors inside files, and metadata. Knows no model, and reads no weights."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar, Literal

import msgspec

from pelton.errors import CheckpointError, ModelNotFoundError, UnsupportedModelError
from pelton.sizes import format_bytes
from pelton.weights.description import Description, asked_description
from pelton.weights.vectors import VECTOR_READERS

# Files beside safetensors that text and generation settings are read from.
SIDECAR_NAMES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "tokenizer.model",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
    "chat_template.json",
    "generation_config.json",
)


class TensorInfo(msgspec.Struct, frozen=True):
    """One stored tensor.

    shape:  logical, slowest dimension first: [out, in] for matrices, [n] for vectors.
    format: "f32", "bf16", "q4_1", ...: a name of pelton.quant.gguf_types, or a dtype of safetensors in lower case.
    offset: of its first byte from the start of `file`.
    """

    name: str
    shape: tuple[int, ...]
    format: str
    file: Path
    offset: int
    nbytes: int


class FileIdentity(msgspec.Struct, frozen=True):
    """What tells that a file is still the one whose header was read."""

    device: int
    inode: int
    size: int
    modified_ns: int

    @classmethod
    def of(cls, fd: int) -> FileIdentity:
        status = os.fstat(fd)
        return cls(status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)


class Checkpoint(ABC):
    """A model's files after their headers were read and checked.

    path:     what was opened: a file or a directory.
    files:    every file that holds tensors.
    tensors:  by name; their bytes lie inside their files and don't overlap.
    metadata: GGUF: key -> value (arrays of strings become lists when asked for); safetensors: config.json.
    config:   a config.json that describes the model in place of `metadata`: one asked for, or one beside a GGUF.
    sidecars: files beside safetensors by name (SIDECAR_NAMES); a GGUF carries its tokenizer in its metadata.
    """

    kind: ClassVar[Literal["gguf", "safetensors"]]
    path: Path
    files: tuple[Path, ...]
    tensors: Mapping[str, TensorInfo]
    metadata: Mapping[str, Any]
    config: Description | None = None
    sidecars: Mapping[str, Path]

    def __init__(self, path: Path, identities: Mapping[Path, FileIdentity]) -> None:
        self.path = path
        self.files = tuple(identities)
        self._identities = identities

    @abstractmethod
    def fingerprint(self) -> str:
        """Hex digest of all headers and sizes: a key for what is derived from metadata, not a check of the weights."""

    @contextmanager
    def open(self, file: Path) -> Iterator[int]:
        """A descriptor of one of `files`, for as long as the block runs.

        Raises CheckpointError if the file is no longer the one whose header was read.
        """
        try:
            fd = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise CheckpointError(f"`{file}` can't be opened any more: {error.strerror}") from error
        try:
            if FileIdentity.of(fd) != self._identities[file]:
                raise CheckpointError(
                    f"`{file}` changed after its header was read",
                    hint="wait until it is written completely, then start again",
                )
            yield fd
        finally:
            os.close(fd)

    def read_vector(self, name: str) -> Sequence[float]:
        """A small tensor's values in the file's order. Raises UnsupportedModelError if it is stored in blocks."""
        tensor = self.tensors[name]
        reader = vector_reader(tensor)
        with self.open(tensor.file) as fd:
            try:
                return reader(_read(fd, tensor.offset, tensor.nbytes))
            except (EOFError, OSError) as error:
                raise unreadable(tensor, error) from error

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors as stored."""
        return sum(tensor.nbytes for tensor in self.tensors.values())


def vector_reader(tensor: TensorInfo) -> Callable[[bytes], Sequence[float]]:
    """How a vector's bytes become floats. Raises UnsupportedModelError if it is stored in blocks."""
    reader = VECTOR_READERS.get(tensor.format)
    if reader is None:
        raise UnsupportedModelError(
            f"tensor `{tensor.name}` of `{tensor.file}` is stored as `{tensor.format}`; vectors are read from "
            f"{', '.join(f'`{format}`' for format in VECTOR_READERS)}"
        )
    return reader


def _read(fd: int, offset: int, nbytes: int) -> bytes:
    chunks: list[bytes] = []
    while nbytes > 0:
        chunk = os.pread(fd, nbytes, offset)
        if not chunk:
            raise EOFError
        chunks.append(chunk)
        offset += len(chunk)
        nbytes -= len(chunk)
    return b"".join(chunks)


def unreadable(tensor: TensorInfo, error: EOFError | OSError) -> CheckpointError:
    """What to say when a tensor whose place was checked can't be read after all."""
    if isinstance(error, EOFError):
        return CheckpointError(
            f"`{tensor.file}` ends within tensor `{tensor.name}`: it became shorter while it was read",
            hint="wait until it is written completely, or download it again",
        )
    return CheckpointError(f"tensor `{tensor.name}` of `{tensor.file}` can't be read: {error.strerror}")


def open_checkpoint(path: Path, config: Path | None = None) -> Checkpoint:
    """Reads the headers of a .gguf file (or of all shards of one), or of a directory that holds one model.

    config: a config.json, or a directory that holds one, that describes the model in place of its own.
    Raises ModelNotFoundError if there is nothing to open or more than one choice, CheckpointError if what is there is
    malformed, UnsupportedModelError if it is of a kind that Pelton does not read.
    """
    from pelton.weights.gguf import GgufCheckpoint, gguf_models
    from pelton.weights.safetensors import SafetensorsCheckpoint

    asked = None if config is None else asked_description(config)
    if path.is_file():
        if path.suffix == ".safetensors":
            return SafetensorsCheckpoint.open_directory(path.parent, weights=path, asked=asked)
        return GgufCheckpoint.open_file(path, asked)
    if not path.is_dir():
        raise ModelNotFoundError(f"no file or directory `{path}`")
    models = gguf_models(path)
    if len(models) == 1:
        return GgufCheckpoint.open_file(models[0].path, asked)
    if models:
        choices = "".join(f"\n  {model.path.name}  {format_bytes(model.nbytes)}" for model in models)
        raise ModelNotFoundError(f"`{path}` holds several models:{choices}", hint="name one of the files")
    return SafetensorsCheckpoint.open_directory(path, asked=asked)
