"""The product answers where torch, numpy and transformers can't be imported."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FIXTURES = ROOT / "tests" / "fixtures" / "models"
ABSENT = ("torch", "numpy", "transformers")

# Stands before a program: from here on these modules are not there; what is asked for nevertheless is told at the end.
WITHOUT = f"""
import sys

class Absent:
    asked = []

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {ABSENT!r}:
            self.asked.append(name)
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Absent())
"""

ANSWER = """
import json
from pelton import LLM, SamplingParams

with LLM(sys.argv[1], threads=1) as llm:
    (output,) = llm.generate({"prompt_token_ids": [5, 6, 7]}, SamplingParams(max_tokens=4, logprobs=2, ignore_eos=True))
print(json.dumps({"token_ids": output.outputs[0].token_ids, "asked": Absent.asked, "loaded": sorted(sys.modules)}))
"""

CHAT = """
import json
from pelton.cli.main import main

code = main(sys.argv[1:])
print(json.dumps({"code": code, "asked": Absent.asked, "loaded": sorted(sys.modules)}))
"""


def run_without(program: str, *arguments: str) -> list[str]:
    """The lines that it prints."""
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT + program, *arguments],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def check_untouched(end: str) -> None:
    told = json.loads(end)
    assert told["asked"] == []
    assert not {name.partition(".")[0] for name in told["loaded"]} & set(ABSENT)


@pytest.mark.parametrize("module", ABSENT)
def test_the_environment_has_none_of_them(module: str) -> None:
    """Else the tests below would prove nothing."""
    found = subprocess.run([sys.executable, "-c", f"{WITHOUT}\nimport {module}"], capture_output=True, text=True)
    assert f"No module named '{module}'" in found.stderr


@pytest.mark.parametrize("name", ["llama", "qwen3", "gemma3"])
def test_llm_answers(name: str) -> None:
    (end,) = run_without(ANSWER, str(FIXTURES / f"{name}.gguf"))
    assert len(json.loads(end)["token_ids"]) == 4
    check_untouched(end)


@pytest.mark.model
def test_chat_answers(smollm2_path: Path) -> None:
    question = ["chat", "What is the capital of France?", "--model", str(smollm2_path)]
    *answer, end = run_without(CHAT, *question, "--temperature", "0", "--max-tokens", "16")
    assert "Paris" in "\n".join(answer)
    assert json.loads(end)["code"] == 0
    check_untouched(end)


def test_explain_answers() -> None:
    *shown, end = run_without(CHAT, "explain", str(FIXTURES / "gemma3.gguf"))
    assert shown
    check_untouched(end)
