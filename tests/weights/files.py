"""Small checkpoints and wheels for tests: sound ones by the formats' own tools, broken ones by hand."""

from __future__ import annotations

import base64
import hashlib
import json
import struct
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import gguf
import numpy as np

Q4_0 = gguf.GGMLQuantizationType.Q4_0


def write_gguf(path: Path, *, shard: tuple[int, int, int] | None = None, name: str = "weight", seed: int = 0) -> Path:
    """A GGUF file with a norm, a Q4_0 matrix [3, 32] and a few keys. shard: number, count, tensors of all shards."""
    random = np.random.default_rng(seed)
    writer = gguf.GGUFWriter(path, "llama")
    if shard is not None:
        writer.add_uint16("split.no", shard[0])
        writer.add_uint16("split.count", shard[1])
        writer.add_int32("split.tensors.count", shard[2])
    writer.add_bool("flag", True)
    writer.add_float32("epsilon", 1e-5)
    writer.add_uint64("large", 1 << 40)
    writer.add_int8("negative", -3)
    writer.add_string("text", "żółw 🐢")
    writer.add_array("strings", ["a", "", "bc"])
    writer.add_array("integers", [1, -2, 3])
    writer.add_array("floats", [0.5, 1.5])
    writer.add_array("flags", [True, False])
    writer.add_tensor(f"{name}.norm", random.standard_normal(4, np.float32))
    codes = gguf.quants.quantize(random.standard_normal((3, 32), np.float32), Q4_0)
    writer.add_tensor(f"{name}.matrix", codes, raw_dtype=Q4_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


class GgufBytes:
    """A GGUF header written field by field, so that any of them can be wrong."""

    def __init__(self) -> None:
        self.magic = b"GGUF"
        self.version = struct.pack("<I", 3)
        self.counts: tuple[int, int] | None = None  # tensors, keys; None: as many as there are
        self.keys: list[bytes] = []
        self.tensors: list[bytes] = []
        self.alignment = 32
        self.data = bytes(64)

    def key(self, name: str | bytes, kind: int, value: bytes) -> GgufBytes:
        self.keys.append(gguf_string(name) + struct.pack("<I", kind) + value)
        return self

    def tensor(self, name: str | bytes, dimensions: Sequence[int], kind: int = 0, offset: int = 0) -> GgufBytes:
        sizes = struct.pack(f"<I{len(dimensions)}Q", len(dimensions), *dimensions)
        self.tensors.append(gguf_string(name) + sizes + struct.pack("<IQ", kind, offset))
        return self

    def write(self, path: Path) -> Path:
        num_tensors, num_keys = self.counts or (len(self.tensors), len(self.keys))
        header = self.magic + self.version + struct.pack("<QQ", num_tensors, num_keys)
        header += b"".join(self.keys) + b"".join(self.tensors)
        path.write_bytes(header + bytes(-len(header) % self.alignment) + self.data)
        return path


def gguf_string(text: str | bytes) -> bytes:
    encoded = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(encoded)) + encoded


def safetensors_bytes(header: Mapping[str, Any] | str, data: bytes) -> bytes:
    encoded = (header if isinstance(header, str) else json.dumps(header)).encode()
    return struct.pack("<Q", len(encoded)) + encoded + data


def entry(dtype: str, shape: Sequence[int], begin: int, end: int) -> dict[str, Any]:
    return {"dtype": dtype, "shape": list(shape), "data_offsets": [begin, end]}


def write_wheel(
    directory: Path,
    name: str,
    members: Mapping[str, bytes],
    *,
    version: str = "1.0",
    requires: Sequence[str] = (),
    recorded: Mapping[str, bytes] | None = None,
) -> Path:
    """A wheel as pip accepts it. recorded: what RECORD is made from, where that is not `members`."""
    stem = name.replace("-", "_")
    info = f"{stem}-{version}.dist-info"
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    metadata += "".join(f"Requires-Dist: {requirement}\n" for requirement in requires)
    files = {
        f"{stem}/__init__.py": b"raise RuntimeError('a wheel of a model must never run')\n",
        **members,
        f"{info}/METADATA": metadata.encode(),
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    lines = [f"{file},{_record_digest(data)},{len(data)}" for file, data in {**files, **(recorded or {})}.items()]
    files[f"{info}/RECORD"] = "\n".join([*lines, f"{info}/RECORD,,", ""]).encode()
    path = directory / f"{stem}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for file, data in files.items():
            archive.writestr(file, data)
    return path


def _record_digest(data: bytes) -> str:
    return "sha256=" + base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode().rstrip("=")
