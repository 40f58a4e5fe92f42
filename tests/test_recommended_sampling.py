"""What a model's own generation settings may say. Loading as a whole is tested with real and tiny models."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest

from pelton.errors import CheckpointError
from pelton.recommended_sampling import read_generation_config, read_gguf_sampling


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


def test_a_gguf_header_recommends_sampling_too(caplog: pytest.LogCaptureFixture) -> None:
    header = {
        "general.sampling.temp": struct.unpack("<f", struct.pack("<f", 0.7))[0],
        "general.sampling.top_k": 20,
        "general.sampling.penalty_repeat": 1.5,
        "general.sampling.mirostat": 0,
        "general.sampling.penalty_last_n": -1,
        "general.architecture": "llama",
    }
    assert read_gguf_sampling(header) == {"temperature": 0.7, "top_k": 20, "repetition_penalty": 1.5}
    assert not caplog.records
    assert read_gguf_sampling({}) == {}


def test_what_a_gguf_header_recommends_in_vain_is_told(caplog: pytest.LogCaptureFixture) -> None:
    read_gguf_sampling({"general.sampling.mirostat": 2, "general.sampling.xtc_probability": 0.0})
    (record,) = caplog.records
    assert "`general.sampling.mirostat`" in record.getMessage()
    assert "xtc" not in record.getMessage()


@pytest.mark.parametrize("value", [-1.0, "warm", [1], float("nan"), True])
def test_a_gguf_header_that_cannot_be_is_refused(value: object) -> None:
    with pytest.raises(CheckpointError, match=r"`general\.sampling\.\*` can't be used"):
        read_gguf_sampling({"general.sampling.temp": value})
