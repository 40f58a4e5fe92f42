"""What a model's own generation settings may say. Loading as a whole is tested with real and tiny models."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pelton import _native
from pelton.config import load_settings
from pelton.errors import CheckpointError, UnsupportedModelError
from pelton.loaded_model import load_model, read_generation_config
from tests.gguf_copies import LLAMA, copy_gguf


def written(folder: Path, content: bytes) -> Path:
    file = folder / "generation_config.json"
    file.write_bytes(content)
    return file


def test_without_a_file_nothing_is_recommended() -> None:
    assert read_generation_config(None) == {}


def test_sampling_is_read_by_our_names_and_the_rest_is_left(tmp_path: Path) -> None:
    content = {"temperature": 0.6, "top_k": 20, "max_new_tokens": 2048, "eos_token_id": [1], "top_p": None}
    found = read_generation_config(written(tmp_path, json.dumps(content).encode()))
    assert found == {"temperature": 0.6, "top_k": 20, "max_tokens": 2048}


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b"\xff\xfe{}",
        b'{"temperature": -1}',
        b'{"top_p": "high"}',
        b'{"top_k": 1e400}',
        b"[" * 100_000,
    ],
)
def test_a_file_that_cannot_be_is_named(tmp_path: Path, content: bytes) -> None:
    file = written(tmp_path, content)
    with pytest.raises(CheckpointError, match=r"generation_config\.json` can't be used"):
        read_generation_config(file)


def test_a_tokenizer_that_can_not_be_made_gives_the_weights_back(tmp_path: Path) -> None:
    path = copy_gguf(LLAMA, tmp_path / "model.gguf", {"tokenizer.ggml.model": "rwkv"})
    before = _native.memory_ledger()
    with pytest.raises(UnsupportedModelError, match="tokenizer model `rwkv`"):
        load_model(load_settings({"model": str(path)}))
    after = _native.memory_ledger()
    assert after | {"scratch": 0} == before | {"scratch": 0}  # the traceback keeps the team
