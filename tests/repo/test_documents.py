"""What documents say of the code is what the code says."""

from __future__ import annotations

import inspect
from pathlib import Path

from pelton.models.qwen3 import Qwen3
from pelton.models.registry import CHECKED, families, family_table

ROOT = Path(__file__).resolve().parents[2]


def test_the_readme_lists_the_families_of_the_registry() -> None:
    text = (ROOT / "README.md").read_text()
    assert "\n".join(family_table(families())) in text
    words = " ".join(text.split())
    assert all(what in words for what in CHECKED.values())


def test_the_example_of_a_model_is_the_code() -> None:
    lines = [line for line in inspect.getsource(Qwen3).split("\n\n")[0].splitlines() if line]
    assert "\n".join(lines) in (ROOT / "docs" / "adding-a-model.md").read_text()
