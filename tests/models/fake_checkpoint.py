"""A checkpoint header made of plain data, for tests of model files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class FakeTensor:
    shape: tuple[int, ...]
    format: str = "f32"


@dataclass(frozen=True)
class FakeCheckpoint:
    kind: str
    metadata: dict[str, Any]
    tensors: dict[str, FakeTensor] = field(default_factory=dict)
    vectors: dict[str, list[float]] = field(default_factory=dict)

    def read_vector(self, name: str) -> Sequence[float]:
        return self.vectors[name]
