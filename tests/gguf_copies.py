"""Copies of small GGUF files with other keys, so that one thing at a time is different or wrong."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf

MODELS = Path(__file__).parent / "fixtures" / "models"
LLAMA = MODELS / "llama.gguf"
GEMMA3 = MODELS / "gemma3.gguf"
QWEN3 = MODELS / "qwen3.gguf"


def copy_gguf(source: Path, target: Path, changes: Mapping[str, Any]) -> Path:
    """changes: key -> its new text or list of texts, None to leave it out; `general.architecture` stays in place."""
    reader = gguf.GGUFReader(source)
    architecture = changes.get("general.architecture", reader.fields["general.architecture"].contents())
    writer = gguf.GGUFWriter(target, architecture)
    for name, field in reader.fields.items():
        if name.startswith("GGUF.") or name == "general.architecture" or name in changes:
            continue
        kinds = [*field.types, None]
        writer.add_key_value(name, field.contents(), kinds[0], sub_type=kinds[-2] if len(kinds) > 2 else None)
    for name, value in changes.items():
        if name == "general.architecture" or value is None:
            continue
        if isinstance(value, str):
            writer.add_string(name, value)
        else:
            writer.add_array(name, value)
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return target
