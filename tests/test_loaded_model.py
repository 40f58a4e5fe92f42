"""What loading leaves behind when it fails. Loading as a whole is tested with real and tiny models."""

from __future__ import annotations

from pathlib import Path

import pytest

from pelton import _native
from pelton.config import load_settings
from pelton.errors import UnsupportedModelError
from pelton.loaded_model import load_model
from tests.gguf_copies import LLAMA, copy_gguf


def test_a_tokenizer_that_can_not_be_made_gives_the_weights_back(tmp_path: Path) -> None:
    path = copy_gguf(LLAMA, tmp_path / "model.gguf", {"tokenizer.ggml.model": "rwkv"})
    before = _native.memory_ledger()
    with pytest.raises(UnsupportedModelError, match="tokenizer model `rwkv`"):
        load_model(load_settings({"model": str(path)}))
    after = _native.memory_ledger()
    assert after | {"scratch": 0} == before | {"scratch": 0}  # the traceback keeps the team
