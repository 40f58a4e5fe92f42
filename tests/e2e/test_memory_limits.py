"""Models as wide as real ones, in little memory and with default settings: they answer, or say what would fit."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from bench import random_model
from pelton import LLM, SamplingParams
from pelton.errors import MemoryPlanError
from pelton.platforms.cpu import platform
from pelton.platforms.cpu.memory import UsableMemory

GIB = 1 << 30
VOCABULARY = Path(__file__).parents[1] / "fixtures" / "models" / "qwen3.gguf"
PROMPT = [(index * index) % 1000 for index in range(40)]
# Layers of each: one of full attention at least, the others recurrent. With the smallest memory that they fit in.
SHAPES = {"qwen3.5-0.8b": (24, 1), "qwen3.5-27b": (4, 4), "qwen3.5-35b-a3b": (4, 4)}


@pytest.fixture(scope="module", params=SHAPES)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int]:
    """(a file whose weights are zeros, the GiB that it needs)."""
    path = tmp_path_factory.mktemp("wide") / f"{request.param}.gguf"
    num_layers, needed = SHAPES[request.param]
    shape = replace(random_model.SHAPES[request.param], layers=num_layers)
    random_model.write(shape, VOCABULARY, path, is_hollow=True)
    return path, needed


@pytest.mark.parametrize("limit", [1, 2, 4, *(pytest.param(limit, marks=pytest.mark.full) for limit in (8, 16))])
def test_default_settings_fit_any_memory(model: tuple[Path, int], limit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    path, needed = model
    monkeypatch.setattr(platform, "usable_memory", lambda: UsableMemory(limit * GIB, None))
    if limit < needed:
        with pytest.raises(MemoryPlanError) as caught:
            LLM(str(path))
        assert re.search(r"free [\d.]+ [GM]iB more, or take a model or quantisation with at most", str(caught.value))
        return
    before = resident_bytes("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the peak is counted from here on
    with LLM(str(path)) as llm:
        (output,) = llm.generate([PROMPT], SamplingParams(max_tokens=3, ignore_eos=True))
        assert len(output.outputs[0].token_ids) == 3
        assert resident_bytes("VmHWM") - before < limit * GIB


def resident_bytes(name: str) -> int:
    found = re.search(rf"^{name}:\s+(\d+) kB", Path("/proc/self/status").read_text(), re.MULTILINE)
    assert found is not None, f"/proc/self/status has no {name}"
    return int(found[1]) * 1024
