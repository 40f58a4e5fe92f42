"""A fused kernel rounds where its members would: whatever is fused, the same bits come out."""

from __future__ import annotations

import pytest
import torch

from pelton.graph.graph import Graph
from pelton.graph.kernel import FUSIONS
from pelton.graph.op import OPS
from pelton.graph.program import compile
from pelton.platforms.cpu import CpuPlatform
from tests.graph.tiny_model import build_tiny_model, formats_of, settings_for
from tests.ops.machines import cpu_machine
from tests.platforms.steps import random_parameters

PROVIDERS = [provider for provider in CpuPlatform().providers() if provider.unusable is None]
IDS = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3, 2, 3, 8, 4]


def raw_weights(graph: Graph, formats: dict[str, str]) -> dict[str, bytes]:
    ...
