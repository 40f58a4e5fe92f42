"""Frameworks and tools that speak to servers like ours.

Each is checked by a file of its own, in a process of its own: they leave sockets and event loops behind, and warn of
much that is not ours to mend.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.clients
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", ["litellm", "langchain", "llm", "lm_eval"])
def test_framework_is_served(name: str, tmp_path: Path) -> None:
    options = ["-W", "ignore", "-p", "no:unraisableexception", "-p", "no:cacheprovider"]
    command = [sys.executable, "-m", "pytest", *options, f"tests/clients/check_{name}.py"]
    environment = {**os.environ, "HF_HOME": str(tmp_path), "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
