"""The command line of `llm`, told of us in its own file of models."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.clients.conftest import TEXT, RunningServer


@pytest.mark.parametrize("arguments", [(), ("--no-stream",)])
def test_llm_prompts_from_the_command_line(scripted: RunningServer, tmp_path: Path, arguments: tuple[str, ...]) -> None:
    models = f"- model_id: mine\n  model_name: pelton\n  api_base: {scripted.api}\n"
    (tmp_path / "extra-openai-models.yaml").write_text(models)
    environment = {**os.environ, "LLM_USER_PATH": str(tmp_path), "OPENAI_API_KEY": "none"}
    command = [sys.executable, "-m", "llm", "-m", "mine", *arguments, "-o", "temperature", "0.5", "Hi"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == TEXT
