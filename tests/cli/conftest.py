"""A command line in this process, and small models for it."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from pelton.cli.main import main
from tests.gguf_copies import LLAMA, copy_gguf

# Says the last message and nothing of roles.
TEMPLATE = "{% for message in messages %}{{ message.content }}{% endfor %}"


@dataclass(frozen=True)
class Outcome:
    code: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        """The one JSON document on standard output."""
        return json.loads(self.out)


Pelton = Callable[..., Outcome]


@pytest.fixture
def pelton(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Pelton:
    """pelton(*arguments, piped=bytes): runs the command with an empty model cache, offline."""
    monkeypatch.setenv("PELTON_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("PELTON_OFFLINE", "1")

    def run(*arguments: object, piped: bytes = b"") -> Outcome:
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(piped)))
        capsys.readouterr()
        code = main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return Outcome(code, captured.out, captured.err)

    return run


@pytest.fixture(scope="session")
def chat_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny random model with a chat template."""
    path = tmp_path_factory.mktemp("models") / "chat.gguf"
    return copy_gguf(LLAMA, path, {"tokenizer.chat_template": TEMPLATE})
