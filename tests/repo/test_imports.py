"""What a start may import: a budget by names, since time on a shared machine proves nothing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

# Each costs as much as a good part of Pelton itself, and no start needs it.
SLOW = {"asyncio", "email", "huggingface_hub", "importlib.metadata", "numpy", "rich", "subprocess", "tempfile", "torch"}
SLOW |= {"difflib", "random", "secrets", "tomllib"}
SLOW |= {"concurrent.futures", "http", "multiprocessing", "transformers", "zipfile"}
SLOW |= {"httptools", "prometheus_client", "starlette", "uvicorn", "uvloop"}


def modules_of(*arguments: str) -> set[str]:
    """What is imported once the command is done."""
    script = f"import sys; from pelton.cli.main import main; main({arguments!r}); print('', *sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return set(done.stdout.splitlines()[-1].split())


@pytest.mark.model
def test_chat_with_a_local_file_imports_what_it_needs(smollm2_path: Path) -> None:
    modules = modules_of("chat", "--model", str(smollm2_path), "--max-tokens", "1", "hi")
    assert "pelton._native" in modules
    assert not modules & SLOW
    assert not modules & {"pelton.weights.hub", "pelton.weights.packages", "pelton.weights.wheel", "tokenizers"}


@pytest.mark.model
def test_explain_builds_no_tokenizer(smollm2_path: Path) -> None:
    modules = modules_of("explain", str(smollm2_path))
    assert "pelton.runner.assembly" in modules
    # It lists what other packages have registered.
    metadata = {"importlib.metadata", "email", "random", "tempfile", "zipfile"}
    assert not modules & (SLOW - metadata | {"tokenizers", "minijinja"})


def test_help_imports_no_command() -> None:
    modules = modules_of("--help")
    assert not modules & (SLOW | {"msgspec", "pelton._native", "pelton.config", "pelton.llm"})
