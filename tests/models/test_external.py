"""A family of another package, found by its entry point: it runs as Pelton's own do."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from pelton.config import load_settings
from pelton.errors import UnsupportedModelError
from pelton.models.registry import families
from pelton.platforms import discover
from pelton.runner.assembly import external_architectures, prepare
from pelton.runner.capture import forward_logits
from tests.models import tiny

PACKAGE = Path(__file__).resolve().parents[1] / "external_provider"
TOKENS = [int(token) for token in np.random.default_rng(6).integers(0, tiny.VOCAB_SIZE, 20)]


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.syspath_prepend(str(PACKAGE))
    discover.load_extension.cache_clear()
    yield
    discover.load_extension.cache_clear()


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    tiny.save(tiny.make("qwen3"), tmp_path, torch.float32)
    return tmp_path


def rename(checkpoint: Path, architecture: str) -> None:
    path = checkpoint / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "architectures": [architecture]}))


def logits(path: Path) -> list[bytes]:
    program = prepare(load_settings({"model": str(path), "threads": 1})).load_program()
    try:
        return [bytes(row) for _, row in forward_logits(program, TOKENS)]
    finally:
        program.close()


@pytest.mark.usefixtures("installed")
def test_a_family_of_another_package_runs_and_is_listed(checkpoint: Path) -> None:
    expected = logits(checkpoint)
    rename(checkpoint, "ShoutForCausalLM")
    assert logits(checkpoint) == expected
    (family,) = families(external_architectures())
    assert (family.title, family.gguf, family.safetensors) == ("Shout", ["shout"], ["ShoutForCausalLM"])


def test_without_the_package_it_is_refused_by_name(checkpoint: Path) -> None:
    rename(checkpoint, "ShoutForCausalLM")
    with pytest.raises(UnsupportedModelError, match="`ShoutForCausalLM`, which Pelton does not know"):
        prepare(load_settings({"model": str(checkpoint)}))
